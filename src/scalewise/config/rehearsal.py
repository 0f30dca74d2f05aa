"""The strategy of a rehearsal: one rank of N under DDP, the others emulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from scalewise.config.data_parallel import DdpConfig, DeviceKind
from scalewise.config.links import Link
from scalewise.records import to_plain

if TYPE_CHECKING:
    from scalewise.config.cell import CellConfig


@dataclass(frozen=True, kw_only=True)
class RehearsalConfig(DdpConfig):
    """What ``rehearse`` makes of ``strategy=ddp`` on more devices than there are.

    It takes one device. Its rank has the shard, the share of the batch and the DDP of one of
    ``ranks``.
    """

    KIND: ClassVar[str] = "rehearsal"
    FEWEST_DEVICES: ClassVar[int] = 1
    ALLOWED: ClassVar[Mapping[str, tuple[object, ...]]] = {"execution": ("eager", "compile")}

    ranks: Annotated[int, Field(ge=2)]
    """Devices that are rehearsed."""
    link: Link

    def team(self, devices: int) -> int:
        return self.ranks

    def backend_for(self, device_kind: DeviceKind) -> Literal["rehearsal"]:
        return "rehearsal"


def rehearsed(cell: CellConfig) -> RehearsalConfig | None:
    """The settings of a rehearsal; None of a cell that runs for real."""
    return cell.strategy if isinstance(cell.strategy, RehearsalConfig) else None


def as_rehearsal(plain: Mapping[str, Any], ranks: int, link: Link) -> dict[str, Any]:
    """``plain``, which asks for DDP on ``ranks`` devices, as a rehearsal over ``link``."""
    strategy = {
        **plain["strategy"],
        "kind": RehearsalConfig.KIND,
        "name": f"{plain['strategy']['name']}{ranks}_rehearsed_{link.name}",
        "devices": 1,
        "ranks": ranks,
        "link": to_plain(link),
    }
    return {**plain, "strategy": strategy}

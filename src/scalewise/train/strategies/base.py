"""What every strategy has: its typed settings, its rules, and how it shares out the data.

A strategy is a frozen dataclass, which is its config group ``strategy`` and says which cells it can
run, and a function that builds Lightning's strategy from it (``builders``). The settings import
nothing of torch, so that a sweep can check a thousand cells at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from scalewise.components import MOST_IN_NAME

if TYPE_CHECKING:
    import pytorch_lightning as pl

    from scalewise.config import CellConfig
    from scalewise.train.batch_sizes import BatchSizes

DeviceKind = Literal["cuda", "cpu"]

_OPTIONS = {"32-true": "fp32, tf32", "16-mixed": "fp16-mixed"}
"""Lightning's names of precisions, as users choose them."""


@dataclass(frozen=True)
class Setting:
    """What a strategy is built for, on one rank."""

    device_kind: DeviceKind
    rank: int
    world_size: int
    module: pl.LightningModule
    """As it was built, before any device has it."""
    cell: CellConfig
    batch_sizes: BatchSizes
    sample_batch: Callable[[int], Any]
    """As many samples of the training set as a batch on the CPU, for measuring. Raises ValueError
    where a user's LightningDataModule holds them."""


@dataclass(frozen=True)
class StrategyConfig:
    """The config group ``strategy``. ``kind`` chooses the subclass, see ``registry``."""

    KIND: ClassVar[str]
    """The value of ``kind`` that chooses this class."""
    FEWEST_DEVICES: ClassVar[int] = 2
    ONE_MODEL: ClassVar[bool] = True
    """False where the ranks train models of their own: a throughput ceiling, no training job."""
    LEAN_STEPS: ClassVar[bool] = True
    """Whether a step is forward, ``loss.backward()`` and ``optimizer.step()`` and nothing more,
    so that ``train.lean`` may leave Lightning's layers out."""
    UNEVEN: ClassVar[bool] = False
    """Whether the parts of a batch may differ in size."""
    SCORES_TOGETHER: ClassVar[bool] = False
    """Whether ranks communicate in every batch they score, so that all need as many of them."""
    EXECUTIONS: ClassVar[tuple[str, ...] | None] = None
    """Kinds of ``execution`` it works with; None for all."""
    PRECISIONS: ClassVar[tuple[str, ...] | None] = None
    """Lightning's names of the precisions it works with; None for all."""

    name: Annotated[str, Field(max_length=MOST_IN_NAME)]
    kind: str
    devices: int | Literal["auto"] = "auto"
    """Processes, one a device; ``auto`` is all of the host."""

    def __post_init__(self) -> None:
        if self.devices != "auto" and self.devices < self.FEWEST_DEVICES:
            raise ValueError(
                f"devices: found {self.devices} with strategy={self.name}; allowed: "
                f"{self.FEWEST_DEVICES} or more, or auto (strategy=single for one)"
            )

    def check(self, cell: CellConfig) -> None:
        """Refuse a cell that this strategy cannot run.

        Raises ValueError: one line that begins with the full key, and says what was found, what
        is allowed and what to do.
        """
        for key, found, name, allowed in (
            ("execution", cell.execution.kind, cell.execution.name, self.EXECUTIONS),
            ("precision", cell.precision.lightning, cell.precision.name, self.PRECISIONS),
        ):
            if allowed is not None and found not in allowed:
                options = ", ".join(_OPTIONS.get(one, one) for one in allowed)
                raise ValueError(
                    f"{key}: found {name} with strategy={self.name}; allowed: {options}"
                )

    def check_world(self, world_size: int) -> None:
        """Refuse a number of devices. Raises ValueError, as :meth:`check` does."""
        if world_size < self.FEWEST_DEVICES:
            raise ValueError(
                f"strategy.devices: found {world_size} with strategy={self.name}; allowed: "
                f"{self.FEWEST_DEVICES} or more"
            )

    def data_shards(self, world_size: int) -> int:
        """Into how many disjoint parts a global batch is cut.

        ``world_size`` where every rank feeds samples of its own; 1 where all feed the same.
        """
        return world_size

    def data_shard(self, rank: int, world_size: int) -> int:
        """Which of :meth:`data_shards` a rank feeds; ranks that share one feed the same samples."""
        return rank * self.data_shards(world_size) // world_size

    def share_out(self, batch_size: int, world_size: int) -> tuple[int, ...]:
        """Samples of each of the :meth:`data_shards`, for a batch of ``batch_size`` in all.

        Raises ValueError where they cannot be shared.
        """
        shards = self.data_shards(world_size)
        if batch_size % shards:
            below = batch_size - batch_size % shards
            nearest = [str(b) for b in (below, below + shards) if b > 0]
            raise ValueError(
                f"batch_size: found {batch_size} on {world_size} devices with scaling=strong; "
                f"allowed: a multiple of {shards} (nearest: {' or '.join(nearest)})"
            )
        return (batch_size // shards,) * shards

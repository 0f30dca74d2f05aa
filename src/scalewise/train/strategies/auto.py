"""The strategy is left to measurement: a sweep runs its candidates shortly, then trains the better.

Nothing is ever built from this: ``sweep.auto`` puts the candidates in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import NonNegativeInt, PositiveInt

from scalewise.train.strategies.base import StrategyConfig

if TYPE_CHECKING:
    from scalewise.config import CellConfig


@dataclass(frozen=True)
class AutoConfig(StrategyConfig):
    """``strategy=auto``."""

    KIND: ClassVar[str] = "auto"
    FEWEST_DEVICES: ClassVar[int] = 2

    candidates: Mapping[str, Any] = field(default_factory=dict)
    """Name to the settings of each strategy that may be chosen."""
    probe_steps: int = 60
    """Steps of each short run, warm-up included."""
    probe_warmup_steps: NonNegativeInt = 20
    """First steps of a short run, excluded from its timing."""
    probe_repeats: PositiveInt = 3
    """Short runs of each candidate, each freshly started."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.candidates) < 2:
            raise ValueError(
                f"candidates: found {len(self.candidates)}; allowed: two strategies or more"
            )
        if self.probe_warmup_steps >= self.probe_steps:
            raise ValueError(
                f"probe_warmup_steps: found {self.probe_warmup_steps} with probe_steps="
                f"{self.probe_steps}; allowed: 0 to {self.probe_steps - 1}"
            )
        for one in self.built().values():
            if isinstance(one, AutoConfig):
                raise ValueError("candidates: found auto among them; allowed: any other strategy")

    def plain(self) -> dict[str, dict[str, Any]]:
        """Each candidate's settings as plain data, on as many devices as were asked for."""
        settled = {}
        for name, settings in self.candidates.items():
            own = dict(settings)
            if own.get("kind") != "single" and self.devices != "auto":
                own["devices"] = self.devices
            settled[name] = own
        return settled

    def built(self) -> dict[str, StrategyConfig]:
        """Each candidate's settings, typed. Raises DataError (a ValueError) for a wrong one."""
        from scalewise.train.strategies.registry import strategy_config

        return {
            name: strategy_config(plain, f"strategy.candidates.{name}")
            for name, plain in self.plain().items()
        }

    def check(self, cell: CellConfig) -> None:
        """Refuse what any candidate refuses."""
        for one in self.built().values():
            one.check(cell)

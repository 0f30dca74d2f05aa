"""One device: what every other strategy is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from scalewise.train.strategies.base import StrategyConfig


@dataclass(frozen=True)
class SingleConfig(StrategyConfig):
    """``strategy=single``."""

    KIND: ClassVar[str] = "single"
    FEWEST_DEVICES: ClassVar[int] = 1

    devices: int | Literal["auto"] = 1

    def __post_init__(self) -> None:
        if self.devices != 1:
            raise ValueError(
                f"devices: found {self.devices} with strategy=single; allowed: 1, "
                "or strategy=ddp for more"
            )

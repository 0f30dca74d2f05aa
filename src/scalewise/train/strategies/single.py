"""One device: what every other strategy is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from scalewise.train.strategies.base import Setting, StrategyConfig

if TYPE_CHECKING:
    from pytorch_lightning.strategies import Strategy


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

    def build(self, setting: Setting) -> Strategy | str:
        """Lightning's own choice for one device."""
        return "auto"

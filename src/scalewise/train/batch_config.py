"""How ``batch_size=auto`` searches. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveInt

from scalewise.ranges import require

STRATEGIES = ("single", "ddp")
"""Their replicas are whole models, so that each rank can try a size by itself."""


@dataclass(frozen=True)
class BatchSearchConfig:
    """The key ``batch_search``: bounds of the search, in samples a device."""

    first: PositiveInt = 1
    """The size to begin with."""
    max: PositiveInt = 65536
    """The largest size to try."""
    margin: Annotated[float, Field(ge=0, le=0.5)] = 0.05
    """Share of the largest that fits that is kept free: a fragmented allocator needs more."""

    def __post_init__(self) -> None:
        require("first", self.first, self.first <= self.max, f"1 to max, {self.max}")


DEFAULT_SEARCH = BatchSearchConfig()


def check_search(strategy: str, kind: str) -> None:
    """Raises ValueError for a strategy whose batch size cannot be searched."""
    if kind == "auto":
        raise ValueError(
            "batch_size: found auto with strategy=auto, whose candidates are compared at one batch "
            "size; allowed: a number, or strategy=single or ddp"
        )
    if kind not in STRATEGIES:
        raise ValueError(
            f"batch_size: found auto with strategy={strategy}; allowed: a number, or "
            "strategy=single or ddp, whose replicas are whole models"
        )

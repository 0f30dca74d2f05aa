"""How batches are fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveInt


@dataclass(frozen=True)
class LoaderConfig:
    """Settings of PyTorch's DataLoader that change speed and nothing else.

    All but the first mean something only where there are workers or a GPU; elsewhere they are
    passed over, so that one configuration fits every host.
    """

    num_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that fetch batches for each rank; 0 fetches in the training process."""
    pin_memory: bool = True
    """Copy batches to page-locked memory first. Only where the device is a GPU."""
    persistent_workers: bool = True
    """Keep the workers, if any, from one epoch to the next."""
    prefetch_factor: PositiveInt = 2
    """Batches each worker keeps ready."""
    device_prefetch: Annotated[int, Field(ge=0, le=64)] = 0
    """Batches copied to the GPU ahead of their step, on a stream of their own; 0 copies each when
    its step asks for it."""
    device_resident: bool = False
    """Keep the whole data set in the GPU's memory and pick batches there: for sets of tensors."""

    def __post_init__(self) -> None:
        if self.device_resident and self.num_workers:
            raise ValueError(
                f"num_workers: found {self.num_workers} with device_resident=true; allowed: 0, for "
                "worker processes cannot reach data on the GPU"
            )

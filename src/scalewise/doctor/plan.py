"""The plan of an examination, and the record that one rank keeps of it. Torch-free."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scalewise.config import first_line
from scalewise.records import Backend, RankMeasurements, save_json

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

ENV_DEVICE = "SCALEWISE_DEVICE"
"""This rank's DeviceInfo as JSON."""

_MIB = 2**20


@dataclass(frozen=True)
class Budget:
    """Sizes are given and times are limits: a slow host measures the same with fewer repetitions.

    Seconds are of one measurement on one rank unless said otherwise. With these, eight GPUs are
    done within a minute.
    """

    gemm_s: float = 0.5
    launch_s: float = 0.08
    copy_s: float = 0.2
    staging_s: float = 0.06
    staging_bytes: int = 128 * _MIB
    pair_s: float = 0.03
    """One direction of one pair of GPUs."""
    pair_bytes: int = 256 * _MIB
    gpu_memory_bytes: int = 1024 * _MIB
    """Large against any cache of the device."""
    cpu_memory_bytes: int = 256 * _MIB
    size_factor: int = 4
    """From one size of a collective's message to the next."""
    nccl_s: float = 8.0
    """All collectives of a backend together, on all ranks at once."""
    gloo_s: float = 6.0


_QUICK = Budget(
    gemm_s=0.15, launch_s=0.02, copy_s=0.05, staging_s=0.03, pair_s=0.01,
    size_factor=64, nccl_s=3.0, gloo_s=4.0,
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The user's choices for an examination."""

    quick: bool = False
    soak_s: float = 0.0

    @property
    def budget(self) -> Budget:
        return _QUICK if self.quick else Budget()

    def sizes(self, backend: Backend) -> tuple[int, ...]:
        """Bytes of the collectives' messages, from 8 up to the largest, which is always there."""
        largest = (1024 if backend == "nccl" else 64) * _MIB
        sizes = [8]
        while (size := sizes[-1] * self.budget.size_factor) < largest:
            sizes.append(size)
        return (*sizes, largest)

    def limit_s(self, devices: int) -> float:
        """After this long, ranks that have not ended are ended: something hangs."""
        return 120.0 + self.soak_s + 2.0 * devices


class RankRecord:
    """The measurements of one rank so far.

    The file is rewritten after each of them, so that a crash or a hang in one leaves what came
    before.
    """

    def __init__(self, path: Path, rank: int, device: torch.device) -> None:
        self.found = RankMeasurements(rank, "start")
        self._path = path
        self.device = device

    def note(self, **changes: object) -> None:
        """Replace fields of :class:`RankMeasurements`."""
        self.found = replace(self.found, **changes)  # type: ignore[arg-type]
        save_json(self._path, self.found)

    def add(self, field: str, name: str, work: Callable[[], object]) -> None:
        """Append the result of ``work`` to a tuple of the measurements."""
        result = self.attempt(name, work)
        if result is not None:
            self.note(**{field: (*getattr(self.found, field), result)})

    def miss(self, name: str, reason: str) -> None:
        self.note(missing={**self.found.missing, name: reason})

    def attempt(self, name: str, work: Callable[[], T]) -> T | None:
        """The result of ``work``, or None with the reason recorded under ``name``."""
        try:
            return work()
        except Exception as error:  # whatever a measurement dies of is why it is missing
            traceback.print_exception(error)
            self.miss(name, first_line(error))
            return None

    def stage(self, name: str, work: Callable[[], T]) -> T | None:
        """As :meth:`attempt`; time it, and hand the device memory it used back."""
        self.note(stage=name)
        begin = time.perf_counter()
        result = self.attempt(name, work)
        self.release()
        self.note(seconds={**self.found.seconds, name: time.perf_counter() - begin})
        return result

    def release(self) -> None:
        """Hand unused device memory back, for NCCL and for the other ranks' buffers."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()

"""What an examination measures and how long it may take. Torch-free.

Sizes are given, times are budgets: a slow host measures the same things with fewer repetitions,
so that eight GPUs are done within a minute.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from scalewise.config import first_line
from scalewise.records import Backend, RankMeasurements, load_json, save_json

if TYPE_CHECKING:
    import torch


ENV_DEVICE = "SCALEWISE_DEVICE"
"""This rank's DeviceInfo as JSON."""


ENV_PARENT = "SCALEWISE_SUPERVISOR_PID"


_MIB = 2**20


@dataclass(frozen=True)
class Plan:
    """Seconds are of one measurement on one rank unless said otherwise."""

    quick: bool = False
    soak_s: float = 0.0
    backend: Literal["auto", "nccl", "gloo"] = "auto"

    @property
    def gemm_s(self) -> float:
        return 0.15 if self.quick else 0.5

    @property
    def launch_s(self) -> float:
        """All launch costs together."""
        return 0.1 if self.quick else 0.4

    @property
    def copy_s(self) -> float:
        return 0.05 if self.quick else 0.2

    @property
    def staging_s(self) -> float:
        return 0.03 if self.quick else 0.06

    @property
    def staging_bytes(self) -> int:
        return (64 if self.quick else 128) * _MIB

    @property
    def pair_s(self) -> float:
        """One direction of one pair of GPUs."""
        return 0.01 if self.quick else 0.03

    @property
    def pair_bytes(self) -> int:
        return (64 if self.quick else 256) * _MIB

    @property
    def gloo_pairs_s(self) -> float:
        """All pairs together."""
        return 0.6 if self.quick else 2.0

    @property
    def gloo_pair_bytes(self) -> int:
        return (1 if self.quick else 4) * _MIB

    def memory_bytes(self, device_kind: str) -> int:
        """Large against any cache of the device."""
        if device_kind == "cuda":
            return 1024 * _MIB
        return (64 if self.quick else 256) * _MIB

    def backends(self, device_kind: str) -> tuple[Backend, ...]:
        """NCCL only where there are GPUs; gloo runs in host memory everywhere."""
        if device_kind != "cuda" or self.backend == "gloo":
            return ("gloo",)
        return ("nccl",) if self.backend == "nccl" else ("nccl", "gloo")

    def sizes(self, backend: Backend) -> tuple[int, ...]:
        """Bytes of the collectives' messages, smallest first."""
        factor = 64 if self.quick else 4
        return message_sizes((1024 if backend == "nccl" else 64) * _MIB, factor)

    def collectives_s(self, backend: Backend) -> float:
        """All collectives of a backend together, on all ranks at once."""
        if backend == "nccl":
            return 3.0 if self.quick else 8.0
        return 4.0 if self.quick else 6.0

    def limit_s(self, devices: int) -> float:
        """After this long, ranks that have not ended are ended: something hangs."""
        return 120.0 + self.soak_s + 2.0 * devices


def message_sizes(largest: int, factor: int = 4, smallest: int = 8) -> tuple[int, ...]:
    """Bytes from ``smallest`` in steps of ``factor`` up to ``largest``, which is always there."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= factor
    return (*sizes, largest)


def save_plan(folder: Path, plan: Plan) -> None:
    save_json(folder / "plan.json", plan)


def load_plan(folder: Path) -> Plan:
    return load_json(folder / "plan.json", Plan)


# The record one rank keeps while it measures.
#
# ``rank<r>.json`` is rewritten after each measurement, so that a crash or a hang in one leaves
# what came before.


T = TypeVar("T")


class RankRecord:
    """What was measured so far, on disk at every moment."""

    def __init__(self, path: Path, rank: int, device: torch.device) -> None:
        self.found = RankMeasurements(rank, "start")
        self._path = path
        self._device = device

    def note(self, **changes: object) -> None:
        """Replace fields of :class:`RankMeasurements`."""
        self.found = replace(self.found, **changes)  # type: ignore[arg-type]
        save_json(self._path, self.found)

    def miss(self, name: str, reason: str) -> None:
        self.note(missing={**self.found.missing, name: reason})

    def attempt(self, name: str, work: Callable[[], T]) -> T | None:
        """The result of ``work``, or None with the reason recorded under ``name``."""
        try:
            return work()
        except Exception as error:  # whatever a measurement dies of is why it is missing
            self._fail(name, error)
            return None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, note what it died of, hand the device memory it used back."""
        self.note(stage=name)
        begin = time.perf_counter()
        try:
            yield
        except Exception as error:  # any failure is this stage's and ends nothing else
            self._fail(name, error)
        self.release()
        self.note(seconds={**self.found.seconds, name: time.perf_counter() - begin})

    def release(self) -> None:
        """Hand unused device memory back, for NCCL and for the other ranks' buffers."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.empty_cache()

    def _fail(self, name: str, error: Exception) -> None:
        traceback.print_exception(error)
        self.miss(name, first_line(error))

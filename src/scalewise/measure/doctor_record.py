"""The record one rank keeps while it measures.

``rank<r>.json`` is rewritten after each measurement, so that a crash or a hang in one leaves what
came before.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scalewise.errors import first_line
from scalewise.records.doctor import RankMeasurements
from scalewise.records.files import save_json

if TYPE_CHECKING:
    import torch

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

"""The order of copies on several ranks, and their figures. No GPU is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scalewise.doctor import copies
from scalewise.doctor.copies import STAGING, Staging, host_copies, memory_copy
from scalewise.doctor.plan import Budget, RankRecord
from scalewise.records import CopyRate, Timing
from scalewise.train import Team

_CPU = torch.device("cpu")


class Meetings(Team):
    """Rank 1 of several, whose peers are always on time."""

    def __init__(self, size: int) -> None:
        super().__init__(0, 1)
        self.rank, self.size = size - 1, size
        self.met = 0

    def barrier(self) -> None:
        self.met += 1


class Buffers:
    """Buffers that take no memory, one kind of which cannot be filled."""

    def __init__(self, device: torch.device, byte_count: int) -> None:
        self.bytes = byte_count

    def measure(
        self, kind: Staging, budget_s: float, meet: Callable[[], object] | None = None
    ) -> CopyRate:
        if meet is not None:
            meet()
        if kind == "d2h_pinned":
            raise RuntimeError("the pattern is broken")
        return CopyRate(kind, meet is not None, self.bytes, Timing((1.0,), 1), 1.0, True)


def no_memory(device: torch.device, byte_count: int) -> Buffers:
    raise MemoryError("cannot pin")


_ALONE = [(kind, False) for kind in STAGING if kind != "d2h_pinned"]
_BROKEN = {"d2h_pinned alone": "RuntimeError: the pattern is broken"}
_BROKEN_TWICE = {**_BROKEN, "d2h_pinned together": "RuntimeError: the pattern is broken"}


@pytest.mark.parametrize(
    ("size", "buffers", "copied", "missing", "met"),
    [
        (1, Buffers, _ALONE, _BROKEN, 1),
        (2, Buffers, [*_ALONE, ("h2d_pinned", True)], _BROKEN_TWICE, 2 + 2),
        (3, no_memory, [], {"host staging": "MemoryError: cannot pin"}, 3 + 2),
    ],
)
def test_each_rank_copies_alone_then_pinned_kinds_together_and_comes_to_every_meeting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    buffers: object,
    copied: list[tuple[str, bool]],
    missing: dict[str, str],
    met: int,
) -> None:
    monkeypatch.setattr(copies, "HostStaging", buffers)
    team = Meetings(size)
    record = RankRecord(tmp_path / "rank.json", team.rank, _CPU)
    host_copies(record, team, Budget(), None, _CPU)  # without a UUID: NVML is not asked
    assert [(c.kind, c.together) for c in record.found.copies] == copied
    assert (record.found.missing, team.met) == (missing, met)


def test_a_copy_in_memory_counts_bytes_read_and_written() -> None:
    rate = memory_copy(_CPU, 2**20, 0.01)
    assert rate.correct and rate.kind == "host"
    assert rate.gb_s == pytest.approx(2 * 2**20 / rate.timing.median_us / 1e3)


def test_a_rank_that_cannot_fill_its_buffers_comes_to_the_meeting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staging = object.__new__(copies.HostStaging)
    monkeypatch.setattr(staging, "_ends", lambda kind: (None, None), raising=False)
    met: list[int] = []
    with pytest.raises(AttributeError):
        staging.measure("h2d_pinned", 0.1, lambda: met.append(1))
    assert met == [1]

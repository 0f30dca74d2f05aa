"""The order of copies on several ranks, and their figures. No GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scalewise.doctor import copies
from scalewise.doctor.copies import STAGING, HostCopies, Staging, memory_copy
from scalewise.doctor.plan import Budget, RankRecord
from scalewise.records import CopyRate, DeviceInfo, RankMeasurements, Timing
from scalewise.train import Team


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

    def prepare(self, kind: Staging) -> None:
        if kind == "d2h_pinned":
            raise RuntimeError("the pattern is broken")

    def measure(self, kind: Staging, budget_s: float, *, together: bool) -> CopyRate:
        return CopyRate(kind, together, self.bytes, Timing((1.0,), 1), 1.0, True)


def no_memory(device: torch.device, byte_count: int) -> Buffers:
    raise MemoryError("cannot pin")


def found(tmp_path: Path, team: Team) -> RankMeasurements:
    record = RankRecord(tmp_path / "rank.json", team.rank, torch.device("cpu"))
    gpu = DeviceInfo("cuda", "NVIDIA H200")  # without a UUID: NVML is not asked
    HostCopies(record, team, Budget(), gpu, torch.device("cpu")).run()
    return record.found


def test_each_rank_copies_alone_in_its_turn_and_the_pinned_kinds_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "HostStaging", Buffers)
    team = Meetings(2)
    measured = found(tmp_path, team)
    alone = [(kind, False) for kind in STAGING if kind != "d2h_pinned"]
    assert [(c.kind, c.together) for c in measured.copies] == [*alone, ("h2d_pinned", True)]
    assert measured.missing == {"d2h_pinned": "RuntimeError: the pattern is broken"}
    assert team.met == 2 + 2


def test_a_rank_alone_copies_with_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "HostStaging", Buffers)
    assert not any(copy.together for copy in found(tmp_path, Meetings(1)).copies)


def test_a_rank_without_buffers_comes_to_every_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "HostStaging", no_memory)
    team = Meetings(3)
    measured = found(tmp_path, team)
    assert measured.copies == () and measured.missing == {"host staging": "MemoryError: cannot pin"}
    assert team.met == 3 + 2


def test_a_copy_in_memory_counts_bytes_read_and_written() -> None:
    rate = memory_copy(torch.device("cpu"), 2**20, 0.01)
    assert rate.correct and rate.kind == "host"
    assert rate.gb_s == pytest.approx(2 * 2**20 / rate.timing.median_us / 1e3)

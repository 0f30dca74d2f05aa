"""Records of a finished cell in, its time and the parts of it out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from scalewise.records import CellFolder, CellResult, HeartbeatWriter
from scalewise.sweep.durations import Measured
from scalewise.sweep.finished_times import duration_of


def test_start_and_end_of_a_finished_cell_are_told_by_its_heartbeats(tmp_path: Path) -> None:
    now = time.time()
    folder = CellFolder(tmp_path / "cell")
    result = CellResult(
        "c", "a", "cell", 0, 1, now - 4.0, now + 3.0, 2, "ddp", "weak", 2, 1, (), ()
    )
    unknown = Measured("a", result.finished_at - result.started_at, "train", 2)
    assert duration_of(folder, result, "train") == unknown
    for rank in range(2):
        assert duration_of(folder, result, "train") == unknown, "one rank does not tell of all"
        writer = HeartbeatWriter(folder.heartbeat_path(rank))
        writer.begin(10)
        writer.close()
    known = duration_of(folder, result, "train")
    assert known.start_s == pytest.approx(4.0, abs=1.0)
    assert known.end_s == pytest.approx(3.0, abs=1.0)

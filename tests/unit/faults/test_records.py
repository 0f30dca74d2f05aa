"""What faults of records leave behind is found, and only then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from faults import FaultConfig
from faults.observe import findings
from faults.records import leave_records

from fakes.recorded import DDP, Spec, write_sweep
from scalewise.analysis import load_sweep
from scalewise.analysis.run import measure_run
from scalewise.records import CellFolder

CPU = Spec(strategy="ddp", devices=2, phases_ms=DDP.phases_ms, kind="cpu")


def named_after(path: Path, fault: FaultConfig) -> list[str]:
    sweep = write_sweep(path, [CPU])
    (cell,) = load_sweep(sweep).cells
    for old in CellFolder(cell.path).device_series_paths():
        old.unlink()  # as monitor.devices=false leaves it
    for _ in range(2):  # again changes nothing
        leave_records(fault, CellFolder(cell.path), 2)
    (cell,) = load_sweep(sweep).cells
    assert cell.problems == ()
    return [one.code for one in findings(measure_run(cell))]


def test_replayed_throttling_is_found_on_every_device(tmp_path: Path) -> None:
    fault = FaultConfig("throttled_replay", mhz=1780.0)
    assert named_after(tmp_path, fault) == ["throttled"] * 2


@pytest.mark.parametrize("digits", [2, 3, 9])
def test_a_published_line_per_replica_is_found(tmp_path: Path, digits: int) -> None:
    fault = FaultConfig("per_replica_import", digits=digits)
    assert named_after(tmp_path, fault) == ["per_replica_throughput"]


def test_other_faults_leave_nothing(tmp_path: Path) -> None:
    assert named_after(tmp_path, FaultConfig("stall", ms=5.0)) == []

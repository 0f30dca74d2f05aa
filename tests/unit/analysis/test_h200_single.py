"""A real run on one H200 (driver 580), as recorded: lanes, words, energy, report."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import pytest

from scalewise.analysis import CellRecords, DeviceUsage, Run, load_sweep
from scalewise.analysis.run import measure_run
from scalewise.report import builder

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "h200_single"


@pytest.fixture(scope="module")
def cell() -> CellRecords:
    (found,) = load_sweep(GOLDEN).cells
    return found


@pytest.fixture(scope="module")
def run(cell: CellRecords) -> Run:
    return measure_run(cell)


@pytest.fixture(scope="module")
def gpu(run: Run) -> DeviceUsage:
    assert run.usage is not None
    (found,) = run.usage.devices
    return found


def test_it_is_whole(cell: CellRecords) -> None:
    assert cell.state == "done"
    assert cell.problems == ()
    assert len(cell.steps[0]) == 400


def test_an_idle_gpu_at_345_mhz_is_not_throttled(cell: CellRecords, gpu: DeviceUsage) -> None:
    (series,) = cell.devices
    first = series.samples[0][gpu.device.id]
    assert (first.sm_clock_mhz, first.throttle_reasons) == (345.0, ())
    assert (gpu.throttle_reasons, gpu.throttled_share) == ((), 0.0)
    assert series.alerts == ()


def test_gpm_is_of_training_not_of_the_start_before_it(gpu: DeviceUsage) -> None:
    # The reading before it, 0.000006 %, is mostly of the seconds before training.
    assert gpu.sm_activity_percent == pytest.approx(0.4345, abs=1e-4)
    assert gpu.utilization_percent == 8.0


def test_energy_by_counter_and_by_power_agree_within_two_percent(
    run: Run, gpu: DeviceUsage
) -> None:
    assert gpu.energy is not None
    assert gpu.energy.run_j == pytest.approx(4472.035 - 3442.15)
    assert gpu.energy.run_integrated_j == pytest.approx(0.9836 * gpu.energy.run_j, rel=1e-4)
    assert gpu.energy.idle_w == pytest.approx(77.97, abs=0.01)
    assert gpu.energy.source == "counter"
    assert gpu.energy.missing == ()
    # 360 steps in 0.817 s between 92 and 121 W.
    assert run.value("energy_j_per_step") == pytest.approx(0.272, abs=0.001)
    assert run.value("energy_j_per_run") == gpu.energy.run_j


def test_its_report_has_the_energy_the_timeline_and_no_balance(tmp_path: Path) -> None:
    sweep = shutil.copytree(GOLDEN, tmp_path / "sweep")
    files = builder.build(sweep)
    page = files.details.read_text(encoding="utf-8")
    row = "| medium single x1 | 120 | 0.272 | 2.12 | 1,030 | 1,013 | -1.6 | 78.0 | counter |"
    assert row in page
    assert "## Load balance" not in page
    rows = list(csv.DictReader(io.StringIO((sweep / "report/gpu_timeline.csv").read_text())))
    assert len(rows) == 14
    assert rows[-1]["energy_j"] == "4472.035"
    assert rows[0]["sm_activity_percent"] == ""


def test_it_names_no_machine() -> None:
    text = b"".join(p.read_bytes() for p in GOLDEN.rglob("*") if p.is_file())
    for word in (b"/work", b"/tmp", b"/home", b"/usr", b"GPU-2a4d"):
        assert word not in text

"""A long run tells whether the seconds that were timed were a burst."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes.recorded import DDP, Spec, repeats, swept
from fakes.sections import lines_of
from fakes.simulated_training import Training, simulate
from scalewise.analysis import Analysis, analyse
from scalewise.analysis.model import CellRecords
from scalewise.analysis.sustained import BURST_FROM
from scalewise.records import DeviceSample, DeviceSeries, SampledDevice
from scalewise.report.export import results_csv, results_json

STEP_MS = {"forward": 4.0, "backward": 5.0, "optimizer": 0.5}
TOTAL_S, SETTLES_AFTER_S = 90.0, 60.0
TIMED_STEPS = 200
LONG = replace(
    DDP, config={"workload": "sustained", "measure": {"min_time_s": TOTAL_S}, "max_steps": None}
)


def long_cell(cell: CellRecords, slower: float, wobble_ms: float = 0.0) -> CellRecords:
    """The cell with steps of 10 ms that take ``slower`` times as long after a minute.

    Each stretch of two seconds is longer or shorter than others by up to ``wobble_ms`` a step.
    """
    step_ms = sum(STEP_MS.values()) + 0.5
    per_second = 1e3 / step_ms
    stretches = np.random.default_rng(1).uniform(0, wobble_ms, 1000)

    def delay(_: int, step: int) -> float:
        late = (slower - 1) * step_ms if step > SETTLES_AFTER_S * per_second else 0.0
        return float(late + stretches[int(step / (2 * per_second))])

    told = Training(
        host_ms=STEP_MS, host_delay={"backward": delay}, steps=int(TOTAL_S * per_second)
    )
    series, _ = simulate(told)
    end_s = int(series[0].rows["start_ns"][-1] / 1e9)
    device = SampledDevice("GPU-0", 0, "a GPU", 0)
    samples = tuple(
        {
            "GPU-0": DeviceSample(
                "GPU-0",
                sm_clock_mhz=1980.0 if second < SETTLES_AFTER_S else 1905.0,
                memory_clock_mhz=2619.0,
                power_w=600.0,
                temperature_c=45.0 + second / 3,
            )
        }
        for second in range(end_s)
    )
    times = tuple(float(second) for second in range(end_s))
    devices = DeviceSeries("host", "nvml", 1.0, (device,), {}, times, samples)
    return replace(cell, steps=series, devices=(devices,))


def analysed(path: Path, slower: float, wobble_ms: float = 0.0) -> Analysis:
    specs = [
        replace(one, steps=TIMED_STEPS, config={"max_steps": TIMED_STEPS, **one.config})
        for one in (*repeats(Spec(), [1.0, 1.001, 0.999]), *repeats(DDP, [1.0, 1.001, 0.999]))
    ]
    sweep = swept(path, *specs, replace(LONG, steps=TIMED_STEPS))
    *others, long = sweep.cells
    return analyse(replace(sweep, cells=(*others, long_cell(long, slower, wobble_ms))))


@pytest.fixture(scope="module")
def burst(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analysed(tmp_path_factory.mktemp("burst"), slower=1.05)


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analysed(tmp_path_factory.mktemp("steady"), slower=1.0)


def test_steps_that_slow_down_after_a_minute_make_the_verdict_a_burst(burst: Analysis) -> None:
    (pair,) = burst.pairs
    (found,) = burst.sustained.values()
    assert found.ratio == pytest.approx(1.05, abs=0.005)
    assert found.is_burst and str(found) in [one.text for one in pair.doubts]
    assert str(found).startswith("burst: after ")
    assert str(found).endswith("% longer (1,980 -> 1,905 MHz)")
    assert str(found) in pair.judgement.reason
    assert pair.judgement.verdict == "beneficial"


def test_steps_that_stay_are_sustained(steady: Analysis) -> None:
    (pair,) = steady.pairs
    (found,) = steady.sustained.values()
    assert not found.is_burst and pair.doubts == ()
    assert str(found).startswith("sustained over 91 s: within 0.")
    assert str(found) in pair.judgement.reason


def test_the_beginning_is_as_long_as_what_the_other_cells_timed(steady: Analysis) -> None:
    (pair,) = steady.pairs
    (found,) = steady.sustained.values()
    timed_s = [run.throughput.seconds for run in pair.multi.runs if run.throughput]
    assert found.early.seconds == pytest.approx(np.mean(timed_s), abs=0.011)
    assert found.late.seconds == pytest.approx(TOTAL_S / 5, rel=0.02)


def test_windows_that_differ_anyway_are_no_burst(tmp_path: Path) -> None:
    (found,) = analysed(tmp_path, slower=1.03, wobble_ms=2.0).sustained.values()
    assert found.noise is not None
    assert BURST_FROM < found.ratio < 1 + found.noise
    assert not found.is_burst
    assert "of which windows differ by" in str(found)


def test_a_long_run_is_no_repeat_of_the_others(burst: Analysis) -> None:
    (pair,) = burst.pairs
    assert len(pair.multi.runs) == 3
    assert [c.label for c in burst.measured] == ["large single x1", "large ddp x2"]
    assert "large ddp sustained x2" in [c.label for c in burst.configurations]


def test_files_and_devices_tell_it(burst: Analysis) -> None:
    (found,) = burst.sustained.values()
    rows = {row["configuration"]: row for row in csv.DictReader(io.StringIO(results_csv(burst)))}
    assert float(rows["large ddp x2"]["sustained_ratio"]) == found.ratio
    assert rows["large single x1"]["sustained_ratio"] == ""
    told = {c["label"]: c for c in json.loads(results_json(burst))["configurations"]}
    assert told["large ddp x2"]["sustained_s"] == found.seconds
    (line,) = [line for line in lines_of(burst, "devices") if "timed steps against" in line]
    assert line.startswith("large ddp x2: last 18")
    for words in ("SM clock 1,980 -> 1,905 MHz", "power 600 -> 600 W", "temperature 45 -> "):
        assert words in line


def test_a_long_run_that_ended_at_once_says_why_it_tells_nothing(tmp_path: Path) -> None:
    sweep = swept(tmp_path, Spec(), DDP, LONG)
    *others, long = sweep.cells
    short = tuple(replace(s, rows=s.rows[:13]) for s in long.steps)
    analysis = analyse(replace(sweep, cells=(*others, replace(long, steps=short))))
    assert not analysis.sustained
    assert "window of its 0.0" in analysis.unsustained[0]
    assert any("not told whether speed holds" in one for one in lines_of(analysis, "devices"))

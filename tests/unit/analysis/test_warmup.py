"""Timing begins where the step time is steady; a stall is no warm-up."""

import csv
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fakes.recorded import DDP, Spec, analysed, edit_ranks, write_sweep
from fakes.sections import lines_of
from fakes.step_files import write_rows
from scalewise.analysis import Analysis, Run, analyse, load_sweep
from scalewise.analysis.model import WarmUp
from scalewise.analysis.run import measure_run
from scalewise.analysis.step_figures import find_first, squared_errors
from scalewise.records import CellFolder, LengthRecord, read_steps
from scalewise.report import export
from scalewise.sweep.running_cells import measure_objective

LEAST = 20
Floats = npt.NDArray[np.float64]


def steps(*levels: tuple[int, float], cv: float = 0.02) -> Floats:
    """So many steps at each level in ms, with noise, after a cold first one."""
    times = np.concatenate([np.full(count, ms) for count, ms in levels])
    times *= np.exp(cv * np.random.default_rng(3).standard_normal(len(times)))
    times[0] *= 20
    return times


def with_long(times: Floats, *at: int, ms: float = 400.0) -> Floats:
    times = times.copy()
    times[list(at)] = ms
    return times


STEADY = steps((200, 10.0))
SUDDEN = steps((75, 14.0), (145, 10.0))


@pytest.mark.parametrize(
    ("times", "found"),
    [
        (STEADY, ("MSER-5", LEAST, LEAST)),
        (SUDDEN, ("MSER-5", 75, 75)),
        (steps((73, 10.0), (147, 14.0)), ("MSER-5", 75, 75)),
        (steps((75, 10.2), (145, 10.0)), ("MSER-5", LEAST, LEAST)),
        *((steps((75, ms), (145, 10.0), cv=0.0), ("MSER-5", at, at))
          for ms, at in ((9.6, 75), (9.8, LEAST), (10.2, LEAST), (10.4, 75))),
        (steps((150, 14.0), (70, 10.0)), ("not steady", LEAST, 150)),
        (steps((40, 14.0), (29, 10.0)), ("count", LEAST, LEAST)),
        # A stall stays in the figures, also inside a warm-up.
        *((with_long(STEADY, *at), ("MSER-5", LEAST, LEAST))
          for at in ((60,), (20, 21, 23), (60, 61, 62, 63, 64), (199,))),
        (with_long(SUDDEN, 50), ("not steady", LEAST, 75)),
        (with_long(SUDDEN, 150, 180, ms=9_000.0), ("MSER-5", 75, 75)),
        # A burst in the middle is no warm-up: plain MSER-5 begins after it, at step 90.
        (with_long(STEADY, *range(70, 85), ms=22.0), ("MSER-5", LEAST, LEAST)),
    ],
)  # fmt: skip
def test_timing_begins_where_steps_keep_a_level(times: Floats, found: tuple[str, int, int]) -> None:
    assert find_first(times, LEAST) == found
    assert squared_errors(np.array([0.0, 0.0, 3.0])) == pytest.approx([2 / 3, 9 / 8, 0.0])
    said = [str(WarmUp("not steady", LEAST, LEAST, at, 100)) for at in (60, 61)]
    for one, why in zip(said, ("60 of 100, after a stall;", "61 of 100, after half "), strict=True):
        assert why in one and one.endswith(" from 20 on are timed")


@pytest.mark.parametrize("end", [60, 120])
def test_an_exponential_warm_up_ends_within_two_batches_of_3_percent(end: int) -> None:
    falling = 1 + 0.5 * (0.03 / 0.5) ** (np.arange(400) / end)
    rule, first, _ = find_first(falling * steps((400, 10.0), cv=0.01), LEAST)
    assert rule == "MSER-5"
    assert abs(first - end) <= 10


def unflagged(path: Path, least: int) -> Path:
    """The same sweep as if only its ``least`` first steps had been taken for warm-up."""
    for file in path.glob("*/steps/rank*"):
        rows = read_steps(file, int(file.stem.removeprefix("rank"))).rows.copy()
        rows["flags"][least:] = 0
        write_rows(file, rows)
    return path


WARM = 50
"""Steps that are ten times slower."""


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Analysis]:
    """A sweep whose warm-up was flagged, and one in which it has to be found."""
    folder = tmp_path_factory.mktemp("warm")
    specs = [replace(side, steps=200, warmup=WARM) for side in (Spec(), DDP)]
    found = unflagged(write_sweep(folder / "found", specs), 10)
    return analysed(folder / "flagged", *specs), analyse(load_sweep(found))


def with_early_sample(run: Run) -> Run:
    """A reading of idle devices between the 10th step and the 50th."""
    (series,) = run.cell.devices
    early = {key: replace(one, utilization_percent=1.0) for key, one in series.samples[0].items()}
    when = series.times[0] - 1.0
    series = replace(series, times=[when, *series.times], samples=[early, *series.samples])
    return measure_run(replace(run.cell, devices=(series,)))


def test_every_figure_is_of_the_same_window(sides: tuple[Analysis, Analysis]) -> None:
    for ours, theirs in zip(*(one.measured for one in sides), strict=True):
        a, b = (with_early_sample(config.runs[0]) for config in (ours, theirs))
        assert a.throughput.steps == 150
        for figure in ("throughput", "anatomy", "balance", "usage", "missing"):
            assert getattr(a, figure) == getattr(b, figure), figure
        assert a.value("utilization_per_device_percent") == ours.runs[0].value(
            "utilization_per_device_percent"
        )
    assert sides[0].budgets == sides[1].budgets
    assert sides[0].pairs[0].speedup == sides[1].pairs[0].speedup


def test_a_running_sweep_measures_what_the_report_says(sides: tuple[Analysis, Analysis]) -> None:
    for config in sides[1].measured:
        cell = config.runs[0].cell
        told = cell.planned.cell_id, "global_samples_per_s", False
        _, *rates = measure_objective(CellFolder(cell.path), *told)
        assert set(rates) == {config.runs[0].samples_per_s}


def test_the_record_says_where_timing_begins(sides: tuple[Analysis, Analysis]) -> None:
    for analysis in sides:
        for config in json.loads(export.results_json(analysis))["configurations"]:
            (run,) = config["runs"]
            assert [run[k] for k in ("timed_from_step", "timed_steps", "warmup_rule")] == [
                50, 150, "MSER-5",
            ]  # fmt: skip
        for row in csv.DictReader(io.StringIO(export.results_csv(analysis))):
            assert row["timed_from_step"] == "50"
            assert (row["timed_steps"], row["warmup_rule"]) == ("150", "MSER-5")


def test_a_run_not_steady_or_timed_too_short_is_doubted_and_timed_whole(tmp_path: Path) -> None:
    path = unflagged(write_sweep(tmp_path, [replace(DDP, steps=200, warmup=150)]), 10)
    (config,) = (found := analyse(load_sweep(path))).measured
    assert config.runs[0].throughput.steps == 190
    (doubt,) = [line for line in lines_of(found, "remarks") if "not steady" in line]
    assert "150 of 200, after half" in doubt and "all steps from 10 on are timed" in doubt
    for share, told in ((0.8, False), (0.7, True)):
        asked = LengthRecord("min_time_s", config.runs[0].throughput.seconds / share, 200, 190)
        of = asdict(asked), None  # the first rank announces it
        edit_ranks(path, lambda rank, of=of: rank.update(length=of[rank["rank"]]))
        assert ("timed_short" in {one.code for one in analyse(load_sweep(path)).remarks}) == told

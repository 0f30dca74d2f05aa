"""Time that no limit explains: said with its size, accusing nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recorded import DDP, Spec, repeats, write_sweep

from scalewise.analysis.diagnose import diagnose
from scalewise.analysis.load import load_sweep
from scalewise.analysis.lost_time import hiccup_line, long_steps, wait_clause
from scalewise.analysis.run import Run, measure_run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import analyse
from scalewise.records import StepSeries
from scalewise.report.doubts import warnings


def configuration(path: Path, *specs: Spec) -> Configuration:
    (config,) = analyse(load_sweep(write_sweep(path, specs))).measured
    return config


def with_long(run: Run, steps: tuple[int, ...], ms: float) -> Run:
    """These steps of every rank longer by ``ms`` on both timelines."""
    series = []
    for one in run.cell.steps:
        rows = one.rows.copy()
        for line in ("host", "device"):
            rows[f"{line}_step_ms"][list(steps)] += ms
        series.append(StepSeries(one.rank, rows, 0))
    return measure_run(replace(run.cell, steps=tuple(series)))


@pytest.mark.parametrize(
    ("at", "ms", "events", "first"),
    [((), 0.0, 0, 0), ((12, 14), 70.0, 1, 12), ((12, 50), 70.0, 2, 12)],
)
def test_long_steps_are_counted_with_what_they_take(
    tmp_path: Path, at: tuple[int, ...], ms: float, events: int, first: int
) -> None:
    (run,) = configuration(tmp_path, Spec()).runs
    found = long_steps(with_long(run, at, ms))
    if not at:
        assert found is None
        return
    assert found is not None
    assert (found.count, found.steps, found.events, found.first_step) == (2, 50, events, first)
    assert found.excess_ms == pytest.approx(2 * ms / 50, rel=0.01)
    assert found.share == pytest.approx(160 / 640, rel=0.01)
    assert found.excess_share == pytest.approx(140 / 640, rel=0.01)


@pytest.mark.parametrize(
    ("at", "advised"),
    [((12, 14), "more warm-up (warmup_steps) or a longer run"), ((12, 50), "no typical step")],
)
def test_two_long_steps_are_a_doubt_although_no_stall(
    tmp_path: Path, at: tuple[int, ...], advised: str
) -> None:
    config = configuration(tmp_path, Spec())
    line = hiccup_line(replace(config, runs=(with_long(config.runs[0], at, 70.0),)))
    assert line is not None
    assert "2 of 50 steps took 25% of the time (the first at step 12; mean step 12.8 ms" in line
    assert advised in line


@pytest.mark.parametrize(("ms", "doubted"), [(50.0, False), (62.0, True)])
def test_long_steps_are_a_doubt_from_a_tenth_of_the_time_on(
    tmp_path: Path, ms: float, doubted: bool
) -> None:
    config = configuration(tmp_path, Spec())  # 50 steps of 10 ms
    line = hiccup_line(replace(config, runs=(with_long(config.runs[0], (12,), ms),)))
    assert (line is not None) == doubted


def test_many_runs_are_not_told_one_by_one(tmp_path: Path) -> None:
    config = configuration(tmp_path, *repeats(Spec(), [1.0] * 5))
    line = hiccup_line(replace(config, runs=tuple(with_long(r, (12,), 90.0) for r in config.runs)))
    assert line is not None
    assert "in repeat 2 (" in line
    assert "in repeat 3" not in line
    assert "and so in 2 more runs" in line


def test_stalls_are_not_also_a_doubt(tmp_path: Path) -> None:
    analysis = analyse(load_sweep(write_sweep(tmp_path, [Spec(steps=160)])))
    (config,) = analysis.measured
    long = replace(config, runs=(with_long(config.runs[0], (20, 60, 110), 300.0),))
    doubt = replace(analysis, configurations=(long,))
    assert [line for line in warnings(doubt) if "hiccups" in line]
    (stalls,) = doubt.measured
    named = replace(doubt, diagnoses={config.config_id: diagnose(stalls)})
    assert [d.limit for d in named.diagnoses[config.config_id]] == ["stalls"]
    assert not [line for line in warnings(named) if "hiccups" in line]


@pytest.mark.parametrize(("late_ms", "told"), [(1.0, False), (3.0, True)])
def test_waits_are_told_rank_by_rank_from_a_tenth_of_the_step_on(
    tmp_path: Path, late_ms: float, told: bool
) -> None:
    slow = replace(DDP, slow_ranks_ms={1: late_ms})
    clause = wait_clause(configuration(tmp_path, *repeats(slow, [1.0, 1.0])))
    assert (clause is not None) == told
    if clause is not None:
        assert clause == (
            "ranks wait 1.5 of 9.2 ms a step for the last of them (rank 0: 3, rank 1: 0; rank 1 is "
            "last in most steps in 2 of 2 runs)"
        )


def test_one_device_waits_for_nobody(tmp_path: Path) -> None:
    assert wait_clause(configuration(tmp_path, Spec())) is None

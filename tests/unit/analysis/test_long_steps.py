"""Steps of seconds: set aside, and named with their run and their length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, analysed, repeats
from fakes.sections import lines_of
from scalewise.analysis import Configuration, Run, long_step_line
from scalewise.analysis.run import measure_run
from scalewise.analysis.step_parts import long_step_clause
from scalewise.analysis.verdicts import add_doubts
from scalewise.records import StepSeries


def configuration(path: Path, *specs: Spec) -> Configuration:
    (config,) = analysed(path, *specs).measured
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
    ("long", "said"),
    [
        ((120,), "step 120 took 20.0 s on rank 0 (median 10 ms); set aside from"),
        ((20, 60), "2 of 190 steps are too many to be set aside"),
        (tuple(range(20, 60)), "and 37 more of more than 2 s (median 10 ms); 40 of 190"),
    ],
)
def test_a_report_names_long_steps_their_run_and_their_length(
    tmp_path: Path, long: tuple[int, ...], said: str
) -> None:
    analysis = analysed(tmp_path, Spec(steps=200))
    (config,) = analysis.measured
    assert long_step_line(config.runs[0]) is None
    run = with_long(config.runs[0], long, 19_990.0)
    line = long_step_line(run)
    assert line is not None
    assert line.startswith(f"long_step: {run.cell.planned.name}: step ")
    assert said in line
    told = replace(analysis, configurations=(replace(config, runs=(run,)),))
    assert line in lines_of(told, "doubts")


def test_a_long_step_leaves_no_trace_in_the_figures_of_a_run(tmp_path: Path) -> None:
    slow = replace(DDP, steps=210, slow_ranks_ms={1: 1.0})
    (run,) = configuration(tmp_path, slow).runs
    disturbed = with_long(run, (120,), 20_000.0)
    assert disturbed.samples_per_s == pytest.approx(run.samples_per_s, rel=1e-3)
    assert disturbed.value("step_time_ms") == pytest.approx(run.value("step_time_ms"), rel=1e-3)
    assert disturbed.anatomy is not None and run.anatomy is not None
    for line in ("host", "device"):
        before, after = run.anatomy.mean(line), disturbed.anatomy.mean(line)
        assert before is not None and after is not None
        assert after.step_ms == pytest.approx(before.step_ms, rel=1e-3)
    assert disturbed.balance is not None and disturbed.balance.behind_share is not None
    assert run.balance is not None
    assert disturbed.balance.behind_share == pytest.approx(run.balance.behind_share, rel=1e-3)


def test_a_long_step_is_a_doubt_at_the_verdict(tmp_path: Path) -> None:
    specs = [*repeats(Spec(steps=210), [1.0] * 3), *repeats(replace(DDP, steps=210), [1.0] * 3)]
    analysis = analysed(tmp_path, *specs)
    (pair,) = analysis.pairs
    assert pair.doubts == ()
    run = with_long(pair.multi.runs[1], (120,), 20_000.0)
    multi = replace(pair.multi, runs=(pair.multi.runs[0], run, pair.multi.runs[2]))
    told = add_doubts(replace(pair, multi=multi), {})
    expected = f"long_step: {run.cell.planned.name}: step 120 took 20.0 s on rank 0"
    assert [(one.code, one.text) for one in told.doubts] == [("long_step", expected)]
    assert told.judgement.reason.endswith(expected)
    assert told.judgement.verdict == pair.judgement.verdict


def test_an_answer_names_the_long_steps_of_three_runs(tmp_path: Path) -> None:
    config = configuration(tmp_path, *repeats(Spec(steps=210), [1.0] * 5))
    runs = tuple(with_long(run, (120,), 20_000.0) for run in config.runs)
    clause = long_step_clause(replace(config, runs=runs))
    assert clause is not None
    assert [run.cell.planned.name in clause for run in runs] == [True] * 3 + [False] * 2
    assert clause.endswith("and in 2 more runs")
    assert long_step_clause(config) is None

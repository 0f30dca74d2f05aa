"""Steps of seconds: set aside, and named with their run and their length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, analysed, repeats
from fakes.sections import lines_of
from scalewise.analysis import Configuration, Run
from scalewise.analysis.doubts import doubt_speedup
from scalewise.analysis.run import measure_run
from scalewise.analysis.step_parts import long_step_figures
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
    assert long_step_figures(config.runs[0]) is None
    run = with_long(config.runs[0], long, 19_990.0)
    told = replace(analysis, configurations=(replace(config, runs=(run,)),))
    (found,) = (one for one in told.remarks if one.code == "long_step")
    assert (found.run, found.about) == (run.cell.planned.name, config.config_id)
    assert said in found.text
    assert any(found.text in line for line in lines_of(told, "remarks"))


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
    assert pair.remarks == ()
    run = with_long(pair.multi.runs[1], (120,), 20_000.0)
    multi = replace(pair.multi, runs=(pair.multi.runs[0], run, pair.multi.runs[2]))
    told = doubt_speedup(replace(pair, multi=multi), {})
    assert [(one.code, one.run) for one in told.remarks] == [("long_step", run.cell.planned.name)]
    assert analysis.say_why(told).endswith("; single steps took seconds")
    assert told.verdict == pair.verdict

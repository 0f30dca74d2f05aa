"""Time that no limit explains: said with its size, accusing nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, analysed, repeats
from fakes.sections import lines_of
from scalewise.analysis import Configuration, Run, long_step_line
from scalewise.analysis.diagnosis import diagnose
from scalewise.analysis.run import measure_run
from scalewise.analysis.time_budget import hiccup_line, hiccups_of, long_step_clause, wait_clause
from scalewise.analysis.verdicts import doubted
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
    ("at", "ms", "events", "first"),
    [((), 0.0, 0, 0), ((12, 13), 70.0, 1, 12), ((12, 14), 70.0, 2, 12)],
)
def test_hiccups_are_counted_with_what_they_take(
    tmp_path: Path, at: tuple[int, ...], ms: float, events: int, first: int
) -> None:
    (run,) = configuration(tmp_path, Spec()).runs
    found = hiccups_of(with_long(run, at, ms))
    if not at:
        assert found is None
        return
    assert found is not None
    assert (found.count, found.steps, found.events, found.first_step) == (2, 50, events, first)
    assert found.excess_ms == pytest.approx(2 * ms / 50, rel=0.01)
    assert found.share == pytest.approx(160 / 640, rel=0.01)
    assert found.excess_share == pytest.approx(140 / 640, rel=0.01)


def test_two_hiccups_are_a_doubt_although_no_stall(tmp_path: Path) -> None:
    config = configuration(tmp_path, Spec())
    line = hiccup_line(replace(config, runs=(with_long(config.runs[0], (12, 50), 70.0),)))
    assert line is not None
    assert "2 of 50 steps took 25% of the time (the first at step 12; mean step 12.8 ms" in line


@pytest.mark.parametrize(("ms", "doubted"), [(50.0, False), (62.0, True)])
def test_hiccups_are_a_doubt_from_a_tenth_of_the_time_on(
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
    analysis = analysed(tmp_path, Spec(steps=160))
    (config,) = analysis.measured
    long = replace(config, runs=(with_long(config.runs[0], (20, 60, 110), 300.0),))
    doubt = replace(analysis, configurations=(long,))
    assert [line for line in lines_of(doubt, "doubts") if "hiccups" in line]
    (stalls,) = doubt.measured
    named = replace(doubt, diagnoses={config.config_id: diagnose(stalls)})
    assert [d.limit for d in named.diagnoses[config.config_id]] == ["stalls"]
    assert not [line for line in lines_of(named, "doubts") if "hiccups" in line]


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
    assert hiccups_of(disturbed) is None


def test_a_long_step_is_a_doubt_at_the_verdict(tmp_path: Path) -> None:
    specs = [*repeats(Spec(steps=210), [1.0] * 3), *repeats(replace(DDP, steps=210), [1.0] * 3)]
    analysis = analysed(tmp_path, *specs)
    (pair,) = analysis.pairs
    assert pair.doubts == ()
    run = with_long(pair.multi.runs[1], (120,), 20_000.0)
    multi = replace(pair.multi, runs=(pair.multi.runs[0], run, pair.multi.runs[2]))
    told = doubted(replace(pair, multi=multi), {})
    expected = f"long_step: {run.cell.planned.name}: step 120 took 20.0 s on rank 0"
    assert told.doubts == (expected,)
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

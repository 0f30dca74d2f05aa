"""Idle time of pipelines, from records with known phases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from fakes.pipelines import PIPE, PIPE_MS, pipelined
from fakes.recorded import DDP, SINGLE_MS, Spec, write_sweep
from fakes.sections import cells, lines_of
from scalewise.analysis import IDLE, Configuration, load_sweep, measure_pipeline
from scalewise.analysis.loss_budget import make_budget
from scalewise.analysis.run import measure_run
from scalewise.records import PipelineRecord


def in_stages(path: Path, spec: Spec) -> Configuration:
    (config,) = [c for c in pipelined(path, spec).measured if c.devices == 2]
    return config


def losses(config: Configuration) -> dict[str, float]:
    """The limits of these runs for themselves, in ms a step."""
    budget = make_budget(config)
    assert budget is not None
    return {loss.cause: loss.ms for loss in budget.limits}


@pytest.mark.parametrize(
    ("stages", "microbatches", "share"), [(2, 1, 1 / 2), (2, 8, 1 / 9), (4, 4, 3 / 7), (1, 4, 0)]
)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_bubble_follows_the_formula(
    schedule: Literal["1f1b", "gpipe"], stages: int, microbatches: int, share: float
) -> None:
    record = PipelineRecord(schedule, stages, 0, microbatches)
    assert record.bubble_share == pytest.approx(share)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_idle_is_what_is_neither_forward_nor_backward(tmp_path: Path, kind: str) -> None:
    config = in_stages(tmp_path, replace(PIPE, kind=kind))
    run = config.runs[0]
    found = measure_pipeline(run.cell, run.anatomy)
    assert found is not None
    assert found.idle_share == pytest.approx((0.25, 0.25), rel=0.02)
    assert str(found) == (
        "1f1b with 2 stages and 4 microbatches idles 25% of its schedule (rank 0: 25%, rank 1: "
        "25%); the bubble alone, (p - 1) / (m + p - 1), is 20%"
    )
    assert losses(config)["stages"] == pytest.approx(2.0, rel=0.02)


def test_stages_that_hardly_idle_are_no_limit(tmp_path: Path) -> None:
    busy = replace(PIPE, phases_ms={**PIPE_MS, "other": 0.2})
    assert "stages" not in losses(in_stages(tmp_path, busy))


def test_stages_are_not_compared_as_if_they_did_the_same(tmp_path: Path) -> None:
    late = replace(PIPE, phases_ms={**PIPE_MS, "other": 3.0}, slow_ranks_ms={1: 3.0})
    config = in_stages(tmp_path, late)
    run = config.runs[0]
    assert run.balance is None
    assert run.missing["balance"] == "one after another"
    # The slowest stage's step is explained by the mean over stages: the rest is nobody's.
    assert set(losses(config)) == {"stages", "unexplained"}


def test_the_verdict_blames_waiting_and_the_report_shows_both(tmp_path: Path) -> None:
    analysis = pipelined(tmp_path, PIPE)
    (pair,) = analysis.pairs
    assert "2.01 waiting for other pipeline stages" in analysis.say_why(pair)
    idle, memory = lines_of(analysis, "divided")
    assert "the bubble alone, (p - 1) / (m + p - 1), is 20% (first of 2 runs)" in idle
    assert "optimizer state 1 / 2 MiB" in memory


def test_the_anatomy_calls_idle_time_what_it_is(tmp_path: Path) -> None:
    analysis = pipelined(tmp_path, PIPE)
    rows = {row["configuration"]: row for row in cells(analysis, "anatomy", "anatomy")}
    single, pipe = rows["large single x1"], rows["large pipeline x2"]
    assert (pipe[IDLE], pipe["callbacks and loops"]) == ("2.01", "-")
    assert (single[IDLE], single["callbacks and loops"]) == ("-", "0.201")


def test_without_a_pipeline_there_is_nothing_to_say(tmp_path: Path) -> None:
    write_sweep(tmp_path, [Spec(phases_ms=SINGLE_MS), DDP])
    for cell in load_sweep(tmp_path).cells:
        run = measure_run(cell)
        assert measure_pipeline(run.cell, run.anatomy) is None
        assert (run.balance is not None) == (run.world_size == 2)

"""A standstill outside of the steps is in no figure of theirs, and named all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import DDP, write_sweep

from scalewise.analysis.load import load_sweep
from scalewise.analysis.pauses import pauses
from scalewise.analysis.standstill import set_aside
from scalewise.analysis.summary import analyse
from scalewise.records import Standstill, StepSeries
from scalewise.report.doubts import warnings

PAUSE_NS = 4_000_000_000
GAP_NS = 10_000_000_000
"""Between two steps of the run: a checkpoint."""
FIRST_AFTER = 30


def a_run_with_a_checkpoint(tmp_path: Path) -> Any:
    """Of two ranks, as analysed."""
    (config,) = analyse(load_sweep(write_sweep(tmp_path, [replace(DDP, kind="cpu")]))).measured
    series = []
    for one in config.runs[0].cell.steps:
        rows = one.rows.copy()
        rows["start_ns"][FIRST_AFTER:] += GAP_NS
        series.append(StepSeries(one.rank, rows, one.epoch_offset_ns))
    return config, series


def stopped(config: Any, series: list[StepSeries], begins_ns: dict[int, int]) -> Any:
    """The analysed configuration, each of whose ranks stood still for 4 s from then on."""
    (run,) = config.runs
    ranks = tuple(
        replace(r, standstills=(Standstill(begins_ns[r.rank], begins_ns[r.rank] + PAUSE_NS),))
        if r.rank in begins_ns
        else r
        for r in run.cell.result.ranks
    )
    result = replace(run.cell.result, ranks=ranks)
    cell = replace(run.cell, steps=set_aside(series, ranks), result=result)
    return replace(config, runs=(replace(run, cell=cell),))


def told(config: Any) -> list[str]:
    (run,) = config.runs
    return [str(pause) for pause in pauses(run.cell.steps, run.cell.result.ranks)]


SUSPENDED = (
    "it was suspended for 4.0 s outside of its timed steps (all of its processes stood still); "
    "no figure of steps holds that time"
)


@pytest.mark.parametrize("before_first", [False, True])
def test_a_suspension_between_steps_and_before_the_first_is_named(
    tmp_path: Path, before_first: bool
) -> None:
    config, series = a_run_with_a_checkpoint(tmp_path)
    starts = series[0].rows["start_ns"]
    begin = int(starts[0]) - 2 * PAUSE_NS if before_first else int(starts[FIRST_AFTER]) - PAUSE_NS
    suspended = stopped(config, series, {0: begin, 1: begin})
    assert told(suspended) == [SUSPENDED]
    assert told(stopped(config, series, {})) == []


def test_one_within_a_step_is_named_with_that_step_alone(tmp_path: Path) -> None:
    config, series = a_run_with_a_checkpoint(tmp_path)
    for one in series:
        one.rows["host_step_ms"][20] += PAUSE_NS / 1e6
        one.rows["start_ns"][21:] += PAUSE_NS
    begin = int(series[0].rows["start_ns"][20]) + 2_000_000
    assert told(stopped(config, series, {0: begin, 1: begin})) == []
    assert told(stopped(config, series, {0: begin})) == []


def test_a_rank_that_stood_still_alone_between_steps_is_named(tmp_path: Path) -> None:
    config, series = a_run_with_a_checkpoint(tmp_path)
    begin = int(series[1].rows["start_ns"][FIRST_AFTER]) - PAUSE_NS
    (line,) = told(stopped(config, series, {1: begin}))
    assert line.startswith("rank 1 stood still for 4.0 s outside of its timed steps")


def test_the_report_says_so(tmp_path: Path) -> None:
    analysis = analyse(load_sweep(write_sweep(tmp_path, [replace(DDP, kind="cpu")])))
    config, series = analysis.measured[0], list(analysis.measured[0].runs[0].cell.steps)
    begin = int(np.min(series[0].rows["start_ns"])) - 2 * PAUSE_NS
    suspended = stopped(config, series, {0: begin, 1: begin})
    lines = warnings(replace(analysis, configurations=(suspended,)))
    assert [line for line in lines if SUSPENDED in line]

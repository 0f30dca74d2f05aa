"""Stages of a pipeline whose GPUs idle between kernels, each judged by its own GPM reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.pipelines import PIPE, PIPE_MS, pipelined
from scalewise.analysis import Run
from scalewise.analysis.diagnosis import diagnose_run
from scalewise.analysis.diagnosis_case import Diagnosis

STEP_MS = sum(PIPE_MS.values()) + 2.0
PARTS_MS = PIPE_MS["forward"] + PIPE_MS["backward"]


def of_parts(percent: float) -> float:
    """What GPM reads over whole steps where the SMs work ``percent`` of forwards and backwards."""
    return percent * PARTS_MS / STEP_MS


def with_activity(run: Run, percents: Mapping[int, float | None]) -> Run:
    assert run.usage
    devices = [
        replace(device, sm_activity_percent=percents[rank], activity_readings=7)
        for rank, device in enumerate(run.usage.devices)
    ]
    return replace(run, usage=replace(run.usage, devices=tuple(devices)))


def named(
    path: Path, percents: Mapping[int, float | None], microbatches: int = 4
) -> list[Diagnosis]:
    (config,) = [c for c in pipelined(path, PIPE, microbatches).measured if c.devices == 2]
    return diagnose_run(with_activity(config.runs[0], percents))


def test_a_stage_that_idles_between_kernels_is_named_with_all_stages(tmp_path: Path) -> None:
    found = named(tmp_path, {0: of_parts(40), 1: of_parts(80)})
    (limit,) = [d for d in found if "launch-bound" in d.limit]
    assert (limit.limit, limit.rank) == ("launch-bound stages", 0)
    assert limit.ms == pytest.approx(0.6 * PARTS_MS, rel=0.02)
    assert "at most 40 % (n=7) of 6 ms (rank 0), 80 % (n=7) of 6 ms" in limit.evidence
    assert "between the kernels of 4 microbatches" in limit.evidence
    # (p - 1) / (m + p - 1) with two stages and two microbatches
    assert "with strategy.microbatches=2 " in limit.refutation
    assert "the bubble grows to 33%" in limit.refutation


def test_what_cannot_be_halved_is_tested_with_a_larger_batch(tmp_path: Path) -> None:
    found = named(tmp_path, {0: of_parts(40), 1: of_parts(80)}, microbatches=1)
    (limit,) = [d for d in found if d.limit == "launch-bound stages"]
    assert limit.refutation.startswith("with twice the batch (batch_size) ")


def test_a_mean_below_half_is_no_second_diagnosis(tmp_path: Path) -> None:
    found = named(tmp_path, {0: of_parts(30), 1: of_parts(40)})
    assert [d.limit for d in found if "launch" in d.limit] == ["launch-bound stages"]


def test_busy_stages_are_told_where_stages_idle(tmp_path: Path) -> None:
    found = named(tmp_path, {0: of_parts(54), 1: of_parts(89)})
    assert "launch-bound stages" not in [d.limit for d in found]
    (idle,) = [d for d in found if d.limit == "idle pipeline stages"]
    assert "at most 54 % (n=7) of 6 ms (rank 0), 89 % (n=7) of 6 ms" in idle.evidence


@pytest.mark.parametrize("percents", [{0: None, 1: None}, {0: 20.0, 1: None}])
def test_without_gpm_nothing_is_said_of_activity(
    tmp_path: Path, percents: Mapping[int, float | None]
) -> None:
    found = named(tmp_path, percents)
    assert [d.limit for d in found] == ["idle pipeline stages"]
    assert "SMs" not in found[0].evidence

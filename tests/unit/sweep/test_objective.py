"""What a sweeper is told of a cell that several ranks trained."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.config import build_cell
from scalewise.records import CellFolder, DeviceInfo, PlannedCell, RankSummary
from scalewise.sweep import recorded_end
from scalewise.sweep.compose import compose_cell
from scalewise.sweep.job import Job, Outcome
from scalewise.sweep.recorded_end import Try

SLOT = DeviceInfo("cpu", "a processor")


def summary(rank: int, samples_fed: int, train_loss: float) -> RankSummary:
    return RankSummary(
        rank=rank,
        local_rank=rank,
        pid=1,
        device=SLOT,
        parameters_total=1,
        parameters_trainable=1,
        steps_completed=1,
        samples_fed=samples_fed,
        epochs_completed=1,
        gradient_bytes=None,
        gradient_buckets=None,
        flops_per_sample=None,
        peak_allocated_mib=None,
        peak_reserved_mib=None,
        allocation_retries=None,
        peak_rss_mib=1.0,
        metrics={"train_loss": train_loss},
        step_rows=0,
        metric_rows=1,
    )


def ended(tmp_path: Path, objective: str, *summaries: RankSummary) -> tuple[Outcome, CellFolder]:
    """What becomes of a cell of two ranks that leave these behind."""
    folder = CellFolder(tmp_path / "sweep" / "cell")
    folder.path.mkdir(parents=True)
    two = ["model=medium", "strategy=ddp", "strategy.devices=2", f"sweep.objective={objective}"]
    folder.save_config(compose_cell(two))
    planned = PlannedCell("id", "config", "cell", (), 0, 2)
    job = Job(str(folder.path), planned, (SLOT, SLOT), str(tmp_path), (), ())
    for one in summaries:
        folder.save_rank(one)
    cell, began_s = build_cell(folder.load_config()), time.monotonic() - 70.0
    only = Try(job, cell, folder, 1, started_at=0.0, began_s=began_s)
    return only.record_result(lambda ranks: ()), folder


def test_the_objective_is_of_all_ranks(tmp_path: Path) -> None:
    outcome, folder = ended(tmp_path, "train_loss", summary(0, 300, 2.0), summary(1, 100, 1.0))
    assert outcome.objective == 1.75
    assert folder.load_result().objective == 1.75


def test_a_result_took_the_time_in_which_its_cell_ran(tmp_path: Path) -> None:
    """From 1970 to now, if it went by the time of day."""
    _, folder = ended(tmp_path, "train_loss", summary(0, 300, 2.0), summary(1, 100, 1.0))
    assert folder.load_result().took_s == pytest.approx(70, abs=10)


@pytest.mark.parametrize(("without", "told"), [(1, False), (0, True)])
def test_a_run_that_trained_nothing_is_no_fastest_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: int, told: bool
) -> None:
    monkeypatch.setattr(recorded_end, "throughput_of", lambda folder, ranks: 1000.0)
    ranks = [replace(summary(r, 100, 1.0), steps_without_loss=without) for r in range(2)]
    outcome, _ = ended(tmp_path, "global_samples_per_s", *ranks)
    assert (outcome.objective == 1000.0) is told
    assert ("1 of 1 steps trained nothing" in outcome.message) is not told
    assert outcome.global_samples_per_s == 1000.0

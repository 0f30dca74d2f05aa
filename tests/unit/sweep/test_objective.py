"""The answer to a sweeper for a cell that several ranks trained."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import rank_summary
from fakes.settings import SETTINGS
from scalewise.records import (
    CellFolder,
    DeviceInfo,
    PlannedCell,
    RankSummary,
    RehearsalRecord,
)
from scalewise.supervisor import Job, Origin
from scalewise.supervisor.attempt import Try
from scalewise.sweep import running_cells
from scalewise.sweep.running_cells import measure_objective

SLOT = DeviceInfo("cpu", "a processor")


def summary(rank: int, samples_fed: int, train_loss: float) -> RankSummary:
    return rank_summary(
        rank, SLOT, 1, samples_fed, metrics={"train_loss": train_loss}, metric_rows=1
    )


def ended(tmp_path: Path, *summaries: RankSummary, batch: int | None = None) -> CellFolder:
    """A cell of two ranks that leave these behind, recorded."""
    folder = CellFolder(tmp_path / "sweep" / "cell")
    planned = PlannedCell("id", "config", "cell", (), 0, 2)
    job = Job(str(folder.path), planned, SETTINGS, (SLOT, SLOT), Origin(str(tmp_path), (), ()))
    for one in summaries:
        folder.save_rank(replace(one, largest_step_samples=batch))
    only = Try(job, folder, 1, started_at=0.0, began_s=time.monotonic() - 70.0)
    assert only.record_result(lambda ranks: ()).outcome == "done"
    return folder


def test_the_objective_is_of_all_ranks(tmp_path: Path) -> None:
    folder = ended(tmp_path, summary(0, 300, 2.0), summary(1, 100, 1.0))
    _, objective, _ = measure_objective(folder, "id", "train_loss", was_reported=False)
    assert objective == 1.75


def test_an_objective_that_was_not_measured_is_said_once(tmp_path: Path) -> None:
    folder = ended(tmp_path, summary(0, 300, 2.0), summary(1, 100, 1.0))
    ending, objective, _ = measure_objective(folder, "id", "f1", was_reported=False)
    assert (objective, "'f1'" in ending.message) == (None, True)
    ending, _, _ = measure_objective(folder, "id", "f1", was_reported=True)
    assert ending.message == ""


@pytest.mark.parametrize("objective", ["train_loss", "f1", "global_samples_per_s"])
def test_a_rehearsal_has_no_objective(tmp_path: Path, objective: str) -> None:
    alone = replace(summary(0, 300, 2.0), rehearsed=RehearsalRecord(8, "pcie", "a doctor"))
    folder = ended(tmp_path, alone, summary(1, 100, 1.0))
    ending, value, rate = measure_objective(folder, "id", objective, was_reported=False)
    assert (ending.outcome, ending.message, value, rate) == ("done", "", None, None)


@pytest.mark.parametrize(("batch", "sizes"), [(None, (32, 32)), (8, (8, 16))])
def test_batch_sizes_are_those_that_were_fed_where_the_ranks_tell(
    tmp_path: Path, batch: int | None, sizes: tuple[int, int]
) -> None:
    folder = ended(tmp_path, summary(0, 300, 2.0), summary(1, 100, 1.0), batch=batch)
    result = folder.load_result()
    assert (result.per_device_batch_size, result.global_batch_size) == sizes


def test_a_result_took_the_time_in_which_its_cell_ran(tmp_path: Path) -> None:
    """From 1970 to now, if it went by the time of day."""
    folder = ended(tmp_path, summary(0, 300, 2.0), summary(1, 100, 1.0))
    assert folder.load_result().elapsed_s == pytest.approx(70, abs=10)


@pytest.mark.parametrize(("without", "told"), [(1, False), (0, True)])
def test_a_run_that_trained_nothing_is_no_fastest_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: int, told: bool
) -> None:
    monkeypatch.setattr(running_cells, "throughput_of", lambda folder, ranks: 1000.0)
    ranks = [replace(summary(r, 100, 1.0), steps_without_loss=without) for r in range(2)]
    ending, objective, rate = measure_objective(
        ended(tmp_path, *ranks), "id", "global_samples_per_s", was_reported=False
    )
    assert (objective == 1000.0) is told
    assert ("1 of 1 steps trained nothing" in ending.message) is not told
    assert rate == 1000.0

"""What a sweeper is told of a cell that several ranks trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from scalewise.records import CellFolder, DeviceInfo, PlannedCell, RankSummary
from scalewise.sweep.compose import compose_cell
from scalewise.sweep.job import Job
from scalewise.sweep.supervisor import Supervisor

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


def test_the_objective_is_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CellFolder(tmp_path / "sweep" / "cell")
    folder.path.mkdir(parents=True)
    two = ["model=medium", "strategy=ddp", "strategy.devices=2", "sweep.objective=train_loss"]
    folder.save_config(compose_cell(two))
    planned = PlannedCell("id", "config", "cell", (), 0, 2)
    job = Job(str(folder.path), planned, (SLOT, SLOT), str(tmp_path), (), ())
    supervisor = Supervisor(job, wakeup=cast(Any, None))
    monkeypatch.setattr(supervisor, "_co_tenants", lambda summaries: ())
    for rank, (fed, loss) in enumerate([(300, 2.0), (100, 1.0)]):
        folder.save_rank(summary(rank, fed, loss))
    assert supervisor._record_result().objective == 1.75
    assert folder.load_result().objective == 1.75

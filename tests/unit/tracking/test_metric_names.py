"""Names of a user's metrics that a tracker would refuse, and all of the run with them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from fakes.recorded_cell import RecordedCell
from scalewise.records import CellFolder, MetricRow, MetricsWriter, current_attempt
from scalewise.tracking.rows import CellRows
from scalewise.tracking.tracker import run_summary
from scalewise.tracking.trackio import as_trackio_says

NO_ENCODING = "loss\ud800"


def test_rows_have_names_that_can_be_written(tmp_path: Path) -> None:
    cell = CellFolder(tmp_path)
    writer = MetricsWriter(cell.metrics_path(0))
    writer.append(MetricRow(1.0, 1, 0, 4, {"": 1.0, NO_ENCODING: 2.0}))
    writer.close()
    (row,) = CellRows(cell, {}, 1.0).read()
    assert row.values["(no name)"] == 1.0
    assert row.values[r"loss\ud800"] == 2.0


def test_a_summary_has_names_that_can_be_written(tmp_path: Path) -> None:
    cell = RecordedCell(CellFolder(tmp_path))
    cell.train(20)
    cell.close()
    cell.succeed()
    attempt = current_attempt(cell.folder)
    assert attempt is not None and attempt.result is not None
    ranks = tuple(dataclasses.replace(r, metrics={NO_ENCODING: 2.0}) for r in attempt.result.ranks)
    named = dataclasses.replace(
        attempt, result=dataclasses.replace(attempt.result, ranks=ranks, models=len(ranks))
    )
    values = run_summary(cell.folder, named, None).values
    assert any(r"loss\ud800" in name for name in values)
    json.dumps(dict(values), ensure_ascii=False).encode()


def test_trackio_has_readings_of_gpus_under_its_own_names() -> None:
    found = dict(
        as_trackio_says(name, value)
        for name, value in {
            "gpu/2/utilization_percent": 80.0,
            "gpu/2/memory_used_mib": 2048.0,
            "gpu/beef-2/power_w": 300.0,
            "gpu/2/sm_activity_percent": 70.0,
            "gpus/total_memory_used_mib": 4096.0,
            "process/0/rss_mib": 1.0,
            "step": 1.0,
        }.items()
    )
    assert found == {
        "gpu/2/utilization": 80.0,
        "gpu/2/allocated_memory": 2.0,
        "gpu/beef-2/power": 300.0,
        "gpu/2/sm_activity_percent": 70.0,
        "gpu/total_allocated_memory": 4.0,
        "process/0/rss_mib": 1.0,
        "value/step": 1.0,
    }

"""``batch_size=auto`` from the command line: ranks that search, then ranks that train with it."""

from __future__ import annotations

import pytest

from fakes.train_command import LEAN, Train
from scalewise.host import usable_cores
from scalewise.records.batch_search import load_batch_search


@pytest.mark.slow
@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_both_ranks_agree_on_a_size_and_train_with_it(train: Train) -> None:
    run = train(
        *LEAN,
        "dataset.samples=400",
        "batch_size=auto",
        "batch_search.max=24",
        "strategy=ddp",
        "strategy.devices=2",
        "hardware=cpu",
    )
    assert run.status == 0, run.err
    cells = run.cells()
    (search,) = (folder for name, (_, folder) in cells.items() if name.startswith("find_batch-"))
    (trained,) = (folder for _, folder in cells.values() if folder.path != search.path)
    record = load_batch_search(trained.path)
    assert record is not None and record == load_batch_search(search.path)
    assert (record.per_device_batch_size, record.global_batch_size) == (24, 48)
    assert [t.per_device_batch_size for t in record.trials] == [1, 2, 4, 8, 16, 24]
    assert record.limit_mib is not None and record.peak_mib is not None
    assert 0 < record.peak_mib < record.limit_mib
    result = trained.load_result()
    assert (result.global_batch_size, result.per_device_batch_size) == (48, 24)
    assert result.ranks[0].samples_fed == 24 * result.ranks[0].steps_completed
    assert search.load_result().ranks[1].steps_completed == 0
    said = [line for line in run.err.splitlines() if line.startswith("batch ")]
    assert len(said) == 2 and "batch_size=48 with scaling=strong found, not chosen" in said[0]
    assert str(search.path / "find_batch.json") in said[1]
    assert "Batch size found by search" in (run.sweep.report_path / "report.md").read_text()

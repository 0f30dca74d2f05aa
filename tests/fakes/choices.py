"""What ``strategy=auto`` and ``batch_size=auto`` leave behind, on whatever they ran."""

from __future__ import annotations

from fakes.train_command import LEAN, SMALL, Finished
from scalewise.records import BatchSearchRecord, CellFolder, StrategyDecision, find_record

STEPS = 15
AUTO_STRATEGY = (
    *SMALL,
    "strategy=auto",
    "strategy.devices=2",
    "strategy.probe_steps=12",
    "strategy.probe_warmup_steps=2",
    "strategy.probe_repeats=1",
    f"max_steps={STEPS}",
)
AUTO_BATCH = (
    *LEAN, "validation=never", "model=gpt2_tiny", "dataset=synthetic_tokens",
    "dataset.train_samples=16384", "batch_size=auto",
)  # fmt: skip
"""With more samples than fit into a GPU of 1 GiB at once."""
CAP_GIB = 1


def check_decision(run: Finished) -> None:
    """Candidates were tried shortly, and the better one trained and says why."""
    assert run.status == 0, run.err
    said = [s for s in (run.out + run.err).splitlines() if s.startswith("strategy ")]
    assert len(said) == 3
    decisions = [
        (c, find_record(folder.path, StrategyDecision)) for c, folder in run.cells().values()
    ]
    probes = [cell for cell, decision in decisions if decision is None]
    ((trained, decision),) = [(c, d) for c, d in decisions if d is not None]
    assert sorted(cell.devices or 0 for cell in probes) == [1, 2]
    assert trained.devices == (1 if decision.chosen == "single" else 2)
    assert decision.lines()[1] in said[1]
    assert decision.rule is not None and decision.rule.says == "single"
    result = run.sweep.cell(trained.name).load_result()
    assert result.strategy == decision.chosen
    assert result.ranks[0].steps_completed == STEPS
    report = (run.sweep.report_path / "details.md").read_text()
    assert "Strategy chosen by measurement" in report


def check_limited_by_memory(record: BatchSearchRecord, trained: CellFolder) -> None:
    """The search of GPUs with ``CAP_GIB`` each ended where memory did, and training kept to it."""
    assert (record.limited_by, record.limit_mib) == ("memory", 1024 * CAP_GIB)
    assert any(trial.outcome == "oom" for trial in record.trials)
    for rank in trained.load_result().ranks:
        assert rank.peak_allocated_mib is not None
        assert 0 < rank.peak_allocated_mib <= 1024 * CAP_GIB


def check_found_batch(run: Finished, ranks: int) -> tuple[BatchSearchRecord, CellFolder]:
    """A size was searched and trained with: its record, and the cell that trained."""
    assert run.status == 0, run.err
    cells = run.cells()
    (search,) = (folder for name, (_, folder) in cells.items() if name.startswith("find_batch-"))
    (trained,) = (folder for _, folder in cells.values() if folder.path != search.path)
    record = find_record(trained.path, BatchSearchRecord)
    assert record is not None and record == find_record(search.path, BatchSearchRecord)
    each, together = record.per_device_batch_size, record.global_batch_size
    assert (record.world_size, together) == (ranks, ranks * each)
    assert record.limit_mib is not None and record.peak_mib is not None
    assert 0 < record.peak_mib < record.limit_mib
    result = trained.load_result()
    assert (result.global_batch_size, result.per_device_batch_size) == (together, each)
    assert len(result.ranks) == ranks
    for rank in result.ranks:
        assert rank.samples_fed == each * rank.steps_completed > 0
    assert search.load_result().ranks[-1].steps_completed == 0
    said = [line for line in run.err.splitlines() if line.startswith("batch ")]
    assert len(said) == 2
    assert f"batch_size={together} with scaling=strong was found by the search" in said[0]
    assert str(search.path / "find_batch.json") in said[1]
    assert "Batch size found by search" in (run.sweep.report_path / "details.md").read_text()
    return record, trained

"""A sweep that measures its loader finds what was planted, and its report names the limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.train_command import LEAN, Train
from scalewise.analysis import analyse, load_sweep
from scalewise.records import LoaderRecord, find_record

BATCH_S = 0.1
BATCH_SIZE = 16
PLANTED = 2 * BATCH_SIZE / BATCH_S
"""Samples/s of two workers that give a batch each after so long."""


def test_training_that_waits_for_a_planted_loader_is_told_its_ceiling(
    train: Train, own_code: Path
) -> None:
    run = train(
        *LEAN, "model._target_=mine.Net", "dataset._target_=mine.SlowData",
        f"+dataset.batch_ms={1000 * BATCH_S:g}", f"batch_size={BATCH_SIZE}", "max_steps=42",
        "dataset.loader.num_workers=2", "validation=never", "hardware=cpu",
        "sweep.loader_ceiling=true", "sweep.objective=train_loss", "-m", cwd=own_code,
    )  # fmt: skip
    assert run.status == 0, run.err
    (name,) = (name for name in run.cells() if name.startswith("loader-"))
    record = find_record(run.cells()[name][1].path, LoaderRecord)
    assert record is not None and record.warm is not None and record.cold is None
    assert record.warm.global_samples_per_s == pytest.approx(PLANTED, rel=0.1)
    found = analyse(load_sweep(run.sweep.path))
    (config,) = found.measured
    ceiling, budget = found.ceilings[config.config_id], found.budgets[config.config_id]
    assert ceiling.is_limit, ceiling
    (loss,) = (one for one in budget.limits if one.cause == "loader")
    assert loss is budget.losses[0] and ceiling.words in loss.evidence
    assert "of what its loaders give" in run.out and "waiting for the loader" in run.out
    plain = json.loads((run.sweep.path / "report" / "results.json").read_text())
    told = [one["loader_ceiling"] for one in plain["configurations"] if one["loader_ceiling"]]
    assert [one["cell"] for one in told] == [name]

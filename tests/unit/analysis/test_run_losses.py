"""The loss of a step is that of all its samples, whichever ranks recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import DDP, Spec, swept, write_sweep
from scalewise.analysis import CellRecords, Run, configurations, load_sweep
from scalewise.analysis.run import measure_run
from scalewise.analysis.scaling import pair_all
from scalewise.records import MetricRow

LOSSES = {0: (4.0, 2.0), 1: (1.0, 1.0)}
"""Two steps of each rank."""


def rows(rank: int, fed: int | None, losses: Sequence[float | None]) -> tuple[MetricRow, ...]:
    return tuple(
        MetricRow(0.0, 10 * step, 0, 320 * step, {"train_loss": loss, "learning_rate": 0.1}, fed)
        for step, loss in enumerate(losses, start=1)
    )


def validation(loss: float) -> MetricRow:
    return MetricRow(0.0, 20, 0, 640, {"val_loss": loss})


@pytest.fixture
def ddp(tmp_path: Path) -> CellRecords:
    return swept(tmp_path, DDP).cells[0]


def measured(
    cell: CellRecords,
    metrics: Mapping[int, Sequence[MetricRow]],
    *,
    fed: Sequence[int] = (640, 640),
    shards: Sequence[int | None] = (None, None),
    models: int = 1,
    config: Mapping[str, Any] | None = None,
) -> Run:
    assert cell.result is not None
    told = zip(cell.result.ranks, fed, shards, strict=True)
    ranks = tuple(replace(one, samples_fed=n, data_shard=shard) for one, n, shard in told)
    return measure_run(
        replace(
            cell,
            metrics={rank: tuple(own) for rank, own in metrics.items()},
            result=replace(cell.result, ranks=ranks, models=models),
            config={**(cell.config or {}), **(config or {})},
        )
    )


def reached(run: Run) -> tuple[str, float | None]:
    assert run.loss is not None, run.missing
    return run.loss.name, run.final_loss


def test_each_rank_counts_by_the_samples_of_the_step(ddp: CellRecords) -> None:
    """As in ``strategy=heterogeneous``: 24 of 32 samples have a loss of 2, the others of 1."""
    run = measured(ddp, {0: rows(0, 24, LOSSES[0]), 1: rows(1, 8, LOSSES[1])})
    assert reached(run) == ("train_loss", 1.75)
    assert run.loss_history is not None
    assert run.loss_history.values == (3.25, 1.75)


def test_older_rows_count_by_the_samples_of_the_run(ddp: CellRecords) -> None:
    older = {rank: rows(rank, None, own) for rank, own in LOSSES.items()}
    assert reached(measured(ddp, older, fed=(900, 300))) == ("train_loss", 1.75)
    assert reached(measured(ddp, older)) == ("train_loss", 1.5)
    assert reached(measured(ddp, older, fed=(0, 0))) == ("train_loss", 1.5), "nothing was counted"


@pytest.mark.parametrize("lost", [{}, {1: ()}])
def test_the_loss_of_one_rank_alone_is_called_so(
    ddp: CellRecords, lost: dict[int, tuple[()]]
) -> None:
    assert reached(measured(ddp, {0: rows(0, 16, LOSSES[0]), **lost})) == (
        "train_loss of rank 0",
        2.0,
    )


def test_ranks_of_one_replica_count_once(ddp: CellRecords) -> None:
    """A pipeline: whoever has the loss speaks for the stages that share its samples."""
    last_stage = {0: (), 1: rows(1, 32, LOSSES[1])}
    assert reached(measured(ddp, last_stage, shards=(0, 0))) == ("train_loss", 1.0)
    both = {rank: rows(rank, 32, LOSSES[1]) for rank in range(2)}
    assert reached(measured(ddp, both, shards=(0, 0))) == ("train_loss", 1.0)


def test_models_that_never_met_have_no_loss_in_common(ddp: CellRecords) -> None:
    each = {r: (*rows(r, 16, own), validation(own[0])) for r, own in LOSSES.items()}
    epochs = measured(ddp, each, models=2, config={"validation": "epoch"})
    assert reached(epochs) == ("mean val_loss of 2 models", 2.5)
    assert epochs.loss_history is not None
    assert epochs.loss_history.name == "mean train_loss of 2 models"
    scored = {rank: (*own[:2], validation(0.5)) for rank, own in each.items()}
    end = measured(ddp, scored, models=2, config={"validation": "end"})
    assert reached(end) == ("val_loss of the first of 2 models", 0.5)


def test_replicas_that_drift_apart_are_called_so(ddp: CellRecords) -> None:
    local_sgd = {"strategy": {"name": "often", "kind": "local_sgd"}}
    apart = {rank: rows(rank, 16, own) for rank, own in LOSSES.items()}
    run = measured(ddp, apart, config=local_sgd)
    assert reached(run) == ("mean train_loss of 2 replicas", 1.5)
    scored = {rank: (*own, validation(0.7)) for rank, own in apart.items()}
    assert reached(measured(ddp, scored, config=local_sgd)) == ("val_loss", 0.7)


def test_a_validation_that_nobody_reduced_counts_ranks_alike(ddp: CellRecords) -> None:
    each = {0: (validation(1.0),), 1: (validation(3.0),)}
    assert reached(measured(ddp, each, fed=(900, 300))) == ("val_loss", 2.0)


def test_one_diverged_rank_is_a_diverged_run(ddp: CellRecords) -> None:
    run = measured(ddp, {0: rows(0, 16, (4.0, 2.0)), 1: rows(1, 16, (1.0, None))})
    assert run.final_loss is None
    assert "train_loss is not finite from step 20 on" in run.missing["loss"]


def test_steps_that_a_rank_lacks_have_no_mean(ddp: CellRecords) -> None:
    run = measured(ddp, {0: rows(0, 16, (4.0, 2.0)), 1: rows(1, 16, (1.0,))})
    assert run.loss_history is not None
    assert (run.loss_history.samples, run.loss_history.values) == ((320,), (2.5,))


UNLIKE = replace(DDP, rank_losses={0: 0.125, 1: -0.125})
"""Rank 0's samples are harder than rank 1's; both together are those of one device."""


def test_two_devices_are_compared_by_all_their_samples(tmp_path: Path) -> None:
    pairs, _ = pair_all(configurations(swept(tmp_path, Spec(), UNLIKE)))
    loss = pairs[0].loss
    assert loss is not None
    assert (loss.name, loss.multi) == ("train_loss", pytest.approx(loss.single))


def test_where_only_rank_0_is_left_the_comparison_says_so(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), UNLIKE])
    (lost,) = path.glob("*-ddp-*/metrics/rank1.jsonl")
    lost.unlink()
    pairs, _ = pair_all(configurations(load_sweep(path)))
    loss = pairs[0].loss
    assert loss is not None
    assert loss.name == "train_loss of rank 0"
    assert loss.multi - loss.single == pytest.approx(0.125)


def test_models_that_never_met_are_not_compared_by_their_loss(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), UNLIKE])
    (result,) = path.glob("*-ddp-*/result.json")
    result.write_text(result.read_text().replace('"models": 1', '"models": 2'))
    pairs, _ = pair_all(configurations(load_sweep(path)))
    assert pairs[0].judgement.verdict == "ceiling"
    assert pairs[0].loss is None

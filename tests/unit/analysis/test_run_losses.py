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


OLDER = {rank: rows(rank, None, own) for rank, own in LOSSES.items()}
ALIKE = {rank: rows(rank, 16, own) for rank, own in LOSSES.items()}
FIRST_ALONE = {0: ALIKE[0]}
EACH_SCORED = {rank: (*own, validation(LOSSES[rank][0])) for rank, own in ALIKE.items()}
ONE_SCORE = {rank: (*own, validation(0.5)) for rank, own in ALIKE.items()}
LOCAL_SGD = {"strategy": {"name": "often", "kind": "local_sgd"}}


@pytest.mark.parametrize(
    ("metrics", "settings", "name", "loss"),
    [
        # As in strategy=heterogeneous: 24 of 32 samples have a loss of 2, the others of 1.
        ({0: rows(0, 24, LOSSES[0]), 1: rows(1, 8, LOSSES[1])}, {}, "train_loss", 1.75),
        # Older rows do not count the samples of their step: those of the run stand in.
        (OLDER, {"fed": (900, 300)}, "train_loss", 1.75),
        (OLDER, {}, "train_loss", 1.5),
        (OLDER, {"fed": (0, 0)}, "train_loss", 1.5),
        (FIRST_ALONE, {}, "train_loss of rank 0", 2.0),
        ({**FIRST_ALONE, 1: ()}, {}, "train_loss of rank 0", 2.0),
        # Stages of a pipeline share their samples: whoever has the loss speaks for all.
        ({0: (), 1: rows(1, 32, LOSSES[1])}, {"shards": (0, 0)}, "train_loss", 1.0),
        ({r: rows(r, 32, LOSSES[1]) for r in (0, 1)}, {"shards": (0, 0)}, "train_loss", 1.0),
        (EACH_SCORED, {"models": 2, "config": {"validation": "epoch"}},
         "mean val_loss of 2 models", 2.5),
        (ONE_SCORE, {"models": 2, "config": {"validation": "end"}},
         "val_loss of the first of 2 models", 0.5),
        (ALIKE, {"config": LOCAL_SGD}, "mean train_loss of 2 replicas", 1.5),
        (ONE_SCORE, {"config": LOCAL_SGD}, "val_loss", 0.5),
        # A validation that nobody reduced counts ranks alike.
        ({0: (validation(1.0),), 1: (validation(3.0),)}, {"fed": (900, 300)}, "val_loss", 2.0),
    ],
)  # fmt: skip
def test_the_loss_is_that_of_all_ranks_or_says_whose_it_is(
    ddp: CellRecords,
    metrics: Mapping[int, Sequence[MetricRow]],
    settings: dict[str, Any],
    name: str,
    loss: float,
) -> None:
    run = measured(ddp, metrics, **settings)
    assert run.loss is not None, run.missing
    assert (run.loss.name, run.value("loss_reached")) == (name, loss)


def test_the_history_is_of_all_ranks_too(ddp: CellRecords) -> None:
    run = measured(ddp, {0: rows(0, 24, LOSSES[0]), 1: rows(1, 8, LOSSES[1])})
    models = measured(ddp, EACH_SCORED, models=2)
    assert run.loss_history is not None and models.loss_history is not None
    assert run.loss_history.values == (3.25, 1.75)
    assert models.loss_history.name == "mean train_loss of 2 models"


def test_one_diverged_rank_is_a_diverged_run(ddp: CellRecords) -> None:
    run = measured(ddp, {0: rows(0, 16, (4.0, 2.0)), 1: rows(1, 16, (1.0, None))})
    assert run.value("loss_reached") is None
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
    assert pairs[0].verdict == "ceiling"
    assert pairs[0].loss is None

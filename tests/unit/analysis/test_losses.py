"""The loss of a step is that of all its samples, whichever ranks recorded it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import DDP, swept
from scalewise.analysis import CellRecords, Run
from scalewise.analysis.losses import (
    Losses,
    MetricCurve,
    divergence,
    equal_samples,
    longest_loss_curve,
    loss_curve,
)
from scalewise.analysis.run import measure_run
from scalewise.analysis.steps import NotMeasuredError
from scalewise.records import BACKWARD_LOSS, MetricRow

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
    cell: CellRecords, metrics: Mapping[int, Sequence[MetricRow]], *,
    fed: Sequence[int] = (640, 640), shards: Sequence[int | None] = (None, None), models: int = 1,
    config: Mapping[str, Any] | None = None,
) -> Run:  # fmt: skip
    told = zip(cell.result.ranks, fed, shards, strict=True)
    ranks = tuple(replace(one, samples_fed=n, data_shard=shard) for one, n, shard in told)
    result, config = replace(cell.result, ranks=ranks, models=models), config or {}
    own = {rank: tuple(told) for rank, told in metrics.items()}
    all_of_it = {**(cell.config or {}), **config}
    return measure_run(replace(cell, metrics=own, result=result, config=all_of_it))


OLDER = {rank: rows(rank, None, own) for rank, own in LOSSES.items()}
ALIKE = {rank: rows(rank, 16, own) for rank, own in LOSSES.items()}
FIRST_ALONE = {0: ALIKE[0]}
EACH_SCORED = {rank: (*own, validation(LOSSES[rank][0])) for rank, own in ALIKE.items()}
FIRST_HAS_MORE = {
    **ALIKE, 0: tuple(replace(one, values={**one.values, "aux_loss": 9.0}) for one in ALIKE[0])
}  # fmt: skip
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
        (FIRST_HAS_MORE, {}, "train_loss", 1.5),
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
    ddp: CellRecords, metrics: Mapping[int, Sequence[MetricRow]], settings: dict[str, Any],
    name: str, loss: float,
) -> None:  # fmt: skip
    run = measured(ddp, metrics, **settings)
    assert (run.loss.name, run.value("loss_reached")) == (name, loss)


def test_one_diverged_rank_is_a_diverged_run(ddp: CellRecords) -> None:
    run = measured(ddp, {0: rows(0, 16, (4.0, 2.0)), 1: rows(1, 16, (1.0, None))})
    assert run.value("loss_reached") is None
    assert "train_loss is not finite from step 20 on" in run.missing["loss"]


def test_steps_that_a_rank_lacks_have_no_mean(ddp: CellRecords) -> None:
    run = measured(ddp, {0: rows(0, 16, (4.0, 2.0)), 1: rows(1, 16, (1.0,))})
    assert (run.loss_history.samples, run.loss_history.values) == ((320,), (2.5,))


# Which loss is compared, which is drawn, and what a diverged run says.
def logged(*values: dict[str, float | None]) -> Losses:
    rows = [MetricRow(0.0, i + 1, 0, 32 * (i + 1), v) for i, v in enumerate(values)]
    names = dict.fromkeys(name for row in values for name in row if "loss" in name)
    return {n: MetricCurve(n, n, [row for row in rows if n in row.values]) for n in names}


TRAINED = logged({"train_loss": 3.0}, {"train_loss": 2.0}, {"train_loss": 1.0, "val_loss": 1.5})


@pytest.mark.parametrize(
    ("losses", "name", "final"),
    [
        (TRAINED, "val_loss", 1.5),
        (logged({"lr": 0.1, "masked_lm_loss": 4.0}), "masked_lm_loss", 4.0),
        (logged({"train_loss": None}, {"train_loss": 2.0}), "train_loss", 2.0),
    ],
    ids=["validation where it was scored", "any other", "one that recovered"],
)
def test_one_loss_is_compared(losses: Losses, name: str, final: float) -> None:
    assert (loss_curve(losses).name, loss_curve(losses).final) == (name, final)


def test_the_longest_curve_that_ends_finite_is_drawn() -> None:
    drawn = longest_loss_curve({**logged(*[{"aux_loss": 1.0}] * 4, {"aux_loss": None}), **TRAINED})
    assert (drawn.name, drawn.samples) == ("train_loss", (32, 64, 96))
    assert drawn.values == (3.0, 2.0, 1.0)


def test_a_loss_between_logged_ones_is_on_the_line_and_beyond_them_unknown() -> None:
    curve = longest_loss_curve(TRAINED)
    assert [curve.at(samples) for samples in (31, 32, 48, 96, 97)] == [None, 3.0, 2.5, 1.0, None]


@pytest.mark.parametrize(
    ("one", "other", "samples"),
    [
        ((100, 200, 300), (150, 300, 450), 300),  # both logged the end of the shorter
        ((100, 200, 300), (80, 160, 200, 320), 200),  # not the last of either
        ((100, 300), (110, 220, 330), 300),  # nothing in common: the end of the shorter
        ((10, 300), (10, 220, 330), 300),  # in common only at the begin
    ],
)
def test_losses_are_compared_where_all_logged_one_late_enough(
    one: tuple[int, ...], other: tuple[int, ...], samples: int
) -> None:
    curves = [
        MetricCurve("loss", "loss", [MetricRow(0.0, 1, 0, fed, {"loss": 1.0}) for fed in each])
        for each in (one, other)
    ]
    assert equal_samples(curves) == equal_samples(curves[::-1]) == samples


UNKNOWN = [
    ([{"lr": 0.1}], "no loss was recorded"),
    ([{"train_loss": None}], "was never a finite number: training diverged"),
    # What a diverged run had reached before is not what it reached.
    ([{"train_loss": 3.0}, {"train_loss": None}, {"train_loss": None}], "not finite from step 2"),
    ([{BACKWARD_LOSS: 0.7}, {BACKWARD_LOSS: 0.6}], "a script may scale what it calls backward on"),
]


@pytest.mark.parametrize("read", [loss_curve, longest_loss_curve])
@pytest.mark.parametrize(("rows", "why"), UNKNOWN)
def test_what_is_missing_says_why(
    read: Callable[[Losses], MetricCurve], rows: list[dict[str, float | None]], why: str
) -> None:
    with pytest.raises(NotMeasuredError, match=why):
        read(logged(*rows))


@pytest.mark.parametrize(
    ("rows", "diverged"),
    [
        *(([{name: 2.0}, {name: None}], name) for name in ("train_loss", "val_loss", "loss_g")),
        *(([{"train_loss": 2.0, beside: None}, {"train_loss": 1.0}], None)
          for beside in ("best_val_loss", "aux_loss", "glossary_hits")),
        # One that is filtered does not hide the one that is trained.
        ([{"loss": 2.0, BACKWARD_LOSS: 2.0}, {"loss": 1.0, BACKWARD_LOSS: None}], BACKWARD_LOSS),
    ],
)  # fmt: skip
def test_a_loss_that_ends_not_finite_has_diverged_and_no_metric_beside_it(
    rows: list[dict[str, float | None]], diverged: str | None
) -> None:
    said = diverged and f"{diverged} is not finite from step 2 on: training diverged"
    assert divergence(logged(*rows)) == said

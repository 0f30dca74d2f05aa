"""Which loss is compared, which is drawn, and what a diverged run says."""

import pytest

from scalewise.analysis.losses import (
    LossCurve,
    divergence,
    equal_samples,
    longest_loss_curve,
    loss_curve,
)
from scalewise.analysis.steps import NotMeasuredError
from scalewise.records import MetricRow


def rows(*values: dict[str, float | None]) -> list[MetricRow]:
    return [MetricRow(0.0, i + 1, 0, 32 * (i + 1), v) for i, v in enumerate(values)]


TRAINED = rows({"train_loss": 3.0}, {"train_loss": 2.0}, {"train_loss": 1.0, "val_loss": 1.5})


def test_validation_is_compared_where_it_was_scored_and_the_longest_curve_drawn() -> None:
    compared, drawn = loss_curve(TRAINED), longest_loss_curve(TRAINED)
    assert (compared.name, compared.final) == ("val_loss", 1.5)
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
        LossCurve("train_loss", "train_loss", each, (1.0,) * len(each)) for each in (one, other)
    ]
    assert equal_samples(curves) == equal_samples(curves[::-1]) == samples


def test_a_metric_of_another_name_that_is_a_loss_counts() -> None:
    assert loss_curve(rows({"lr": 0.1, "masked_lm_loss": 4.0})).name == "masked_lm_loss"


@pytest.mark.parametrize("read", [loss_curve, longest_loss_curve])
def test_what_is_missing_says_why(read: object) -> None:
    assert callable(read)
    with pytest.raises(NotMeasuredError, match="no loss was recorded"):
        read(rows({"lr": 0.1}))
    with pytest.raises(NotMeasuredError, match="diverged"):
        read(rows({"train_loss": None}))


def test_what_a_diverged_run_had_reached_before_is_not_what_it_reached() -> None:
    diverged = rows({"train_loss": 3.0}, {"train_loss": None}, {"train_loss": None})
    with pytest.raises(NotMeasuredError, match="not finite from step 2 on: training diverged"):
        loss_curve(diverged)


def test_a_loss_that_recovered_is_a_loss() -> None:
    assert loss_curve(rows({"train_loss": None}, {"train_loss": 2.0})).final == 2.0


@pytest.mark.parametrize("beside", ["best_val_loss", "aux_loss", "glossary_hits"])
def test_a_metric_beside_the_loss_that_is_not_finite_is_no_divergence(beside: str) -> None:
    assert divergence(rows({"train_loss": 2.0, beside: None}, {"train_loss": 1.0})) is None


@pytest.mark.parametrize("name", ["train_loss", "val_loss", "loss_g"])
def test_a_loss_that_ends_not_finite_has_diverged(name: str) -> None:
    assert divergence(rows({name: 2.0}, {name: None})) == (
        f"{name} is not finite from step 2 on: training diverged"
    )

"""Two ranks on gloo, one of them late by random times, end after the step that rank 0 announced."""

import pytest

from fakes.strategy_ranks import JITTERED, Trained, train_variants
from scalewise.records import read_steps

MIN_TIME_S = 0.5
LEAST_LEAD_S = 0.25
VARIANTS: dict[str, tuple[str, ...]] = {
    "ddp": ("strategy=ddp", "accumulate_grad_batches=2", "batch_size=8", "validation=epoch"),
    "local_sgd": ("strategy=local_sgd", "strategy.period=7"),
    "pipeline": ("strategy=pipeline", "strategy.microbatches=2"),
    "task_parallel": ("strategy=task_parallel",),
}
"""Steps that begin with a batch or not, meet in each step, seldom, or never."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    ends = ("max_steps=null", f"measure.min_time_s={MIN_TIME_S}", "dataset.samples=400")
    return train_variants(
        tmp_path_factory.mktemp("length"),
        {JITTERED + n: (*how, *ends, "strategy.devices=2") for n, how in VARIANTS.items()},
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_ranks_end_after_the_announced_step_which_they_knew_before(
    trained: Trained, name: str
) -> None:
    ranks = trained.ranks(JITTERED + name)
    told = [rank.length for rank in ranks]
    assert len(ranks) == 2 and all(one is not None for one in told)
    last = told[0].announced_step  # type: ignore[union-attr]
    assert last is not None
    assert [one.announced_step for one in told if one] == [last, last]
    assert [rank.steps_completed for rank in ranks] == [last, last]
    assert ranks[0].epochs_completed > 1  # the data did not end it
    for rank, summary in enumerate(ranks):
        assert summary.length is not None and summary.length.announced_at_step is not None
        times_ms = read_steps(trained.cell(JITTERED + name).steps_path(rank), rank).column("step")
        ahead_s = times_ms[summary.length.announced_at_step :].sum() / 1e3
        assert ahead_s >= LEAST_LEAD_S
        assert times_ms[5:].sum() / 1e3 >= MIN_TIME_S

"""``batch_size=auto`` and ``strategy=auto`` from the command line: short cells, then training."""

from __future__ import annotations

import pytest

from fakes.choices import AUTO_STRATEGY, check_decision, check_found_batch
from fakes.train_command import LEAN, Train
from scalewise.host import usable_cores

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores"),
]


def test_both_ranks_agree_on_a_size_and_train_with_it(train: Train) -> None:
    run = train(
        *LEAN,
        "dataset.samples=400",
        "batch_size=auto",
        "batch_search.max=6",
        "strategy=ddp",
        "strategy.devices=2",
        "hardware=cpu",
        "hydra.launcher.warm=true",
    )
    record, _ = check_found_batch(run, ranks=2)
    assert (record.per_device_batch_size, record.global_batch_size) == (6, 12)
    assert [t.per_device_batch_size for t in record.trials] == [1, 2, 4, 6]


def test_the_better_strategy_is_trained_and_says_why(train: Train) -> None:
    check_decision(train(*AUTO_STRATEGY, "hardware=cpu", "hydra.launcher.warm=true"))

"""``batch_size=auto`` from the command line: ranks that search, then ranks that train with it."""

from __future__ import annotations

import pytest

from fakes.choices import check_found_batch
from fakes.train_command import LEAN, Train
from scalewise.host import usable_cores


@pytest.mark.slow
@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_both_ranks_agree_on_a_size_and_train_with_it(train: Train) -> None:
    run = train(
        *LEAN,
        "dataset.samples=400",
        "batch_size=auto",
        "batch_search.max=6",
        "strategy=ddp",
        "strategy.devices=2",
        "hardware=cpu",
    )
    record, _ = check_found_batch(run, ranks=2)
    assert (record.per_device_batch_size, record.global_batch_size) == (6, 12)
    assert [t.per_device_batch_size for t in record.trials] == [1, 2, 4, 6]

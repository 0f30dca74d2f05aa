"""What a loader says of its batches is known only where nothing changes it on the way."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from scalewise.train.data import GlobalBatchSampler
from scalewise.train.recording.summary import loader_batch_size

DATA: Any = torch.zeros(40, 3)


class AtMost:
    """A batch sampler of one's own, whose ``batch_size`` is the most it gives."""

    batch_size = 8

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("loader", "batches", "said"),
    [
        (DataLoader(DATA, 8), 5, 8),
        (DataLoader(DATA, 64), 1, None),
        (DataLoader(DATA, batch_sampler=AtMost()), 2, None),  # type: ignore[arg-type]
        (DataLoader(DATA, batch_sampler=GlobalBatchSampler(40, 4, 0, 2, 0, 3)), 2, 12),
        ([DataLoader(DATA, 8)], 5, None),
    ],
)
def test_a_loader_says_its_batch_size(loader: object, batches: int, said: int | None) -> None:
    trainer = SimpleNamespace(train_dataloader=loader, num_training_batches=batches)
    assert loader_batch_size(cast(pl.Trainer, trainer)) == said

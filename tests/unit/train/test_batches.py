"""What is read of a batch and its loss, whatever a user's loader and module make of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from scalewise.train.data import GlobalBatchSampler
from scalewise.train.recording import BatchSizes
from scalewise.train.recording.step_timer import count_samples, loss_of
from scalewise.train.recording.summary import loader_batch_size

LOSS = torch.tensor(0.5)
DATA: Any = torch.zeros(40, 3)


OURS = GlobalBatchSampler(40, BatchSizes((4,) * 2), 0, 0, 3)


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
        (
            DataLoader(DATA, batch_sampler=GlobalBatchSampler(40, BatchSizes((4,) * 2), 0, 0, 3)),
            2,
            4,
        ),
        ([DataLoader(DATA, 8)], 5, None),
    ],
)
def test_a_loader_says_its_batch_size(loader: object, batches: int, said: int | None) -> None:
    trainer = SimpleNamespace(train_dataloader=loader, num_training_batches=batches)
    assert loader_batch_size(cast(pl.Trainer, trainer)) == said


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        ((torch.zeros(4, 1), torch.zeros(4)), 4),
        ({"id": "x", "x": torch.zeros(3)}, 3),
        ([["a", "b"], torch.zeros(2)], 2),
        (torch.tensor(1.0), 1),
        ("text", 0),
        (None, 0),
    ],
)
def test_samples_are_counted_from_the_batch(batch: object, samples: int) -> None:
    assert count_samples(batch) == samples


@pytest.mark.parametrize("outputs", [LOSS, {"loss": LOSS, "x": 1}, LOSS.reshape(1, 1)])
def test_one_real_number_is_a_loss(outputs: object) -> None:
    assert loss_of(outputs) == LOSS


@pytest.mark.parametrize(
    "outputs",
    [None, {}, {"loss": "text"}, torch.ones(3), {"loss": torch.ones(2, 2)}, torch.ones(0),
     torch.tensor(1j)],
)  # fmt: skip
def test_anything_else_is_no_loss_and_ends_no_run(outputs: object) -> None:
    assert loss_of(outputs) is None

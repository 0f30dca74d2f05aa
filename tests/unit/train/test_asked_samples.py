"""What a loader was asked for in a step is known only where nothing changes it on the way."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import GradientAccumulationScheduler
from torch.utils.data import DataLoader

from scalewise.train.callbacks.planned_steps import loader_samples_per_step

DATA: Any = torch.zeros(40, 3)


class AtMost:
    """A batch sampler of one's own, whose ``batch_size`` is the most it gives."""

    batch_size = 8

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3, 4]])


def asked(loader: object, *callbacks: pl.Callback, each: int = 1) -> int | None:
    trainer = SimpleNamespace(
        train_dataloader=loader, callbacks=list(callbacks), accumulate_grad_batches=each
    )
    return loader_samples_per_step(cast(pl.Trainer, trainer))


def test_a_batch_size_is_asked_for_as_often_as_batches_are_accumulated() -> None:
    assert asked(DataLoader(DATA, 8), GradientAccumulationScheduler({0: 2}), each=2) == 16


def test_a_batch_sampler_of_ones_own_asks_for_nothing_that_is_known() -> None:
    assert asked(DataLoader(DATA, batch_sampler=AtMost())) is None  # type: ignore[arg-type]


def test_nor_does_an_accumulation_that_changes() -> None:
    assert asked(DataLoader(DATA, 8), GradientAccumulationScheduler({0: 4, 1: 2})) is None

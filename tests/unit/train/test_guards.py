"""A user's loader that has run dry ends his fit."""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import LambdaCallback
from pytorch_lightning.demos.boring_classes import BoringModel, RandomDataset
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from fakes.small_fit import small_trainer
from scalewise.config import ConfigError
from scalewise.train import experiment
from scalewise.train.experiment import CellTrainer, refuse_empty_epoch

pytestmark = pytest.mark.timeout(60)


class Nothing(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(())


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        experiment._silence_warnings()
        yield


def two_batches() -> DataLoader[Tensor]:
    return DataLoader(RandomDataset(32, 8), batch_size=4)


def fit(loader: Iterable[Any]) -> pl.Trainer:
    """Ten steps in as many epochs as it takes."""
    trainer = small_trainer(
        max_steps=10,
        max_epochs=-1,
        callbacks=[LambdaCallback(on_train_epoch_end=refuse_empty_epoch)],
    )
    trainer.fit(BoringModel(), loader)
    return trainer


def test_a_loader_with_batches_in_every_epoch_is_let_be() -> None:
    assert fit(two_batches()).global_step == 10


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ((batch for batch in two_batches()), "in epoch 2, after 2 steps"),
        (DataLoader(Nothing(), batch_size=4), "in epoch 1, after 0 steps"),
    ],
    ids=["generator", "empty stream"],
)
def test_an_epoch_without_a_batch_is_refused(loader: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fit(loader)


def test_a_schedule_over_all_steps_is_refused_where_time_ends_the_run() -> None:
    quiet: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    trainer = CellTrainer(max_steps=-1, max_epochs=-1, **quiet)
    with pytest.raises(ConfigError, match=r"^max_steps: found null, and the module asks how"):
        _ = trainer.estimated_stepping_batches
    assert CellTrainer(max_steps=7, max_epochs=-1, **quiet).estimated_stepping_batches == 7

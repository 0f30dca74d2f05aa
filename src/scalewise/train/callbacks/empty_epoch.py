"""A loader of the user's that has run dry ends his run, and does not spin it for ever."""

from __future__ import annotations

import pytorch_lightning as pl


class EmptyEpochError(ValueError):
    """One line: which epoch had no batch, and what to do about it."""


class EmptyEpochGuard(pl.Callback):
    """Fails a fit in the first epoch that has no batch.

    Lightning goes on to the next epoch, which with no limit of epochs is the same again, for ever:
    a generator can be read once, and a loader over a stream may find nothing to begin with.

    Args:
        data_name: what the configuration calls the data.
    """

    def __init__(self, data_name: str) -> None:
        self._data_name = data_name

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Raises :class:`EmptyEpochError`."""
        if trainer.fit_loop.epoch_loop.batch_progress.current.ready:
            return
        if trainer.global_step == 0:
            raise EmptyEpochError(nothing_trained(self._data_name))
        raise EmptyEpochError(
            f"dataset: no batch came from {self._data_name} in epoch {trainer.current_epoch + 1}, "
            f"after {trainer.global_step} steps; allowed: a loader that gives batches whenever it "
            "is iterated (a generator does so once), or no more epochs than it has (max_epochs)"
        )


def nothing_trained(data_name: str) -> str:
    """What to say of data without a single batch."""
    return (
        f"dataset: no batch came from {data_name}, so nothing was trained; allowed: "
        "one batch or more for every rank (has it fewer samples than one batch, and drop_last?)"
    )

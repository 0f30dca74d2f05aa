"""Which samples a rank feeds, by index, read from what its loader draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
from torch.utils.data import DataLoader

from scalewise.records import CellFolder, ShardIndices, write_shard
from scalewise.train.callbacks.steps import StepTimer


class _Listening:
    """A batch sampler that keeps the index lists it passes on during its first epoch."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.drawn: list[list[int]] = []
        self.epochs = 0
        self.first_epoch_complete = False

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __iter__(self) -> Iterator[list[int]]:
        self.epochs += 1
        if self.epochs > 1:
            yield from self.inner
            return
        for batch in self.inner:
            self.drawn.append(batch)
            yield batch
        self.first_epoch_complete = True


class ShardAudit(pl.Callback):
    """Records the indices of the first epoch to ``audit/rank<r>.npz``.

    Keeping a reference to each index list costs nothing that a step could feel.

    Args:
        folder: where the record goes.
        steps: counts the samples that were fed: a loader with workers draws ahead.
        data_shard: the part of the data this rank is to feed; None: a part of its own.
    """

    def __init__(self, folder: CellFolder, steps: StepTimer, data_shard: int | None = None) -> None:
        self.folder = folder
        self.data_shard = data_shard
        self.missing: dict[str, str] = {}
        self._steps = steps
        self._listening: _Listening | None = None
        self._dataset_size = 0
        self._fed_first_epoch: int | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        # Lightning makes the first epoch's iterator before any hook sees the loader; the
        # strategy's last word on a loader comes just before that.
        strategy: Any = trainer.strategy
        process = strategy.process_dataloader

        def listening(loader: object) -> object:
            processed = process(loader)
            if trainer.training and self._listening is None:
                self._listen(processed)
            return processed

        strategy.process_dataloader = listening

    def leave_out(self, reason: str) -> None:
        """Record no indices, for a reason that is said instead."""
        self.missing["shard_audit"] = reason

    def _listen(self, loader: object) -> None:
        if "shard_audit" in self.missing:
            return
        sampler = getattr(loader, "batch_sampler", None)
        dataset = getattr(loader, "dataset", None)
        if not isinstance(loader, DataLoader) or not isinstance(sampler, Iterable):
            self.missing["shard_audit"] = (
                f"the training data comes from {type(loader).__name__} without a batch sampler, "
                "so which samples a rank fed is not known by index"
            )
            return
        self._dataset_size = len(cast(Sized, dataset))
        self._listening = _Listening(sampler)
        # DataLoader refuses a new sampler after construction; this one draws the same batches.
        object.__setattr__(loader, "batch_sampler", self._listening)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._fed_first_epoch is None:
            self._fed_first_epoch = self._steps.samples

    def save(self, rank: int) -> None:
        """Write the record, if there is anything to say."""
        if self._listening is None:
            return
        fed = self._fed_first_epoch if self._fed_first_epoch is not None else self._steps.samples
        flat = [index for batch in self._listening.drawn for index in batch][:fed]
        complete = self._listening.first_epoch_complete and self._fed_first_epoch is not None
        indices = np.asarray(flat, dtype=np.int64)
        write_shard(
            self.folder.shard_path(rank),
            ShardIndices(rank, indices, self._dataset_size, complete, self.data_shard),
        )

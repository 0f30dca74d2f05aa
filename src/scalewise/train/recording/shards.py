"""The part of the data that a rank feeds, and which samples its loader draws, by index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from scalewise.config import in_one_line
from scalewise.records import CellFolder, ShardIndices, write_shard
from scalewise.train.recording.step_timer import StepTimer

if TYPE_CHECKING:
    import pytorch_lightning as pl


class BatchSizes(tuple[int, ...]):
    """Samples of each shard in a batch, equal or not."""

    @property
    def total(self) -> int:
        return sum(self)

    def share(self, shard: int) -> float:
        """The part of a batch that this shard gives, 0 to 1."""
        return self[shard] / self.total


@dataclass(frozen=True)
class DataShare:
    """The part of each global batch that one rank feeds."""

    shard: int | None = None
    """Its number; ranks that share one feed the same samples. None: a part of its own."""
    sizes: BatchSizes | None = None
    """Sizes of all parts of a batch; None: all as large as this one."""

    def global_samples(self, samples: int, world_size: int) -> int:
        """Different samples that all ranks have fed together when this one has fed ``samples``."""
        if self.sizes is None or self.shard is None:
            return samples * world_size
        return round(samples / self.sizes.share(self.shard))


OWN_SHARE = DataShare()
"""As data parallelism has it: a part of its own, as large as any other."""


class _Listening:
    """In the place of a batch sampler, keeps the index lists of its first epoch."""

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


class ShardRecorder:
    """Records the indices of the first epoch to ``audit/rank<r>.npz``.

    Keeping a reference to each index list costs nothing that a step could feel. Samples that were
    fed are counted by ``steps``: a loader with workers draws ahead.
    """

    def __init__(self, folder: CellFolder, steps: StepTimer, data_shard: int | None = None) -> None:
        self.folder = folder
        self.data_shard = data_shard
        self.missing: dict[str, str] = {}
        self._steps = steps
        self._listening: _Listening | None = None
        self._dataset_size = 0
        self._fed_first_epoch: int | None = None

    def setup(self, trainer: pl.Trainer) -> None:
        """Listen to the training loader once Lightning has made it."""
        # Lightning makes the first epoch's iterator before any hook sees the loader; the
        # strategy's last word on a loader comes just before that.
        strategy: Any = trainer.strategy
        process = strategy.process_dataloader

        def listening(loader: object) -> object:
            processed = process(loader)
            if trainer.training and self._listening is None:
                self._try_to_listen(processed)
            return processed

        strategy.process_dataloader = listening

    def _try_to_listen(self, loader: object) -> None:
        """Listen to the loader; where that fails, the fit goes on and the reason is recorded."""
        try:
            source = _not_by_index(loader)
            if source:
                self.missing["shard_audit"] = f"the training data comes from {source}"
                return
            assert isinstance(loader, DataLoader) and isinstance(loader.dataset, Sized)
            self._dataset_size = len(loader.dataset)
            self._listening = _Listening(loader.batch_sampler)
            # DataLoader refuses a new sampler after construction.
            object.__setattr__(loader, "batch_sampler", self._listening)
        except Exception as error:  # a user's loader and dataset may raise anything
            why = in_one_line(error, 200, with_class=True)
            self.missing["shard_audit"] = f"the training data could not be looked at: {why}"

    def end_epoch(self) -> None:
        """The first one is what the record holds."""
        if self._fed_first_epoch is None:
            self._fed_first_epoch = self._steps.samples

    def save(self, rank: int) -> None:
        """Write the record, if there is anything to say.

        A fit that has ended well is not lost for its audit: what cannot be written is missing.
        """
        heard, ended = self._listening, self._fed_first_epoch
        if heard is None:
            return
        fed = self._steps.samples if ended is None else ended
        complete = heard.first_epoch_complete and ended is not None
        try:
            flat = [index for batch in heard.drawn for index in batch][:fed]
            indices = np.asarray(flat, dtype=np.int64)
            shard = ShardIndices(rank, indices, self._dataset_size, complete, self.data_shard)
            write_shard(self.folder.shard_path(rank), shard)
        except Exception as error:  # a user's batch sampler may have drawn anything
            why = in_one_line(error, 200, with_class=True)
            self.missing["shard_audit"] = f"what the batch sampler drew is no record: {why}"


def _not_by_index(loader: object) -> str:
    """Words for a loader whose samples have no index that one could record; else empty."""
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, IterableDataset):
        return f"{type(dataset).__name__}, an IterableDataset"
    if not isinstance(loader, DataLoader) or not isinstance(loader.batch_sampler, Iterable):
        return f"{type(loader).__name__} without a batch sampler"
    return "" if isinstance(dataset, Sized) else f"{type(dataset).__name__}, which has no length"

"""From a dataset to the batches of one rank.

A global batch is the same set of samples however many ranks share it: batch ``k`` of an epoch is
the ``k``-th slice of one seeded permutation, and each rank takes its part of that slice. Losses
of one device and of many can therefore be compared sample for sample.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from scalewise.config import NO_TEST, ConfigError, LoaderConfig
from scalewise.datasets import BatchedDataset
from scalewise.train.recording import BatchSizes, on_stream


class GlobalBatchSampler(Sampler[list[int]]):
    """One shard's share of every global batch of a shuffled epoch.

    An incomplete last global batch is dropped, so that every step costs the same everywhere.

    Args:
        size: samples in the dataset.
        sizes: samples each shard takes from a global batch, read anew in every epoch.
        shard: whose share.
        seed: of the permutation; the epoch is added to it.
        steps_per_batch: global batches handed over at once, one after the other in one list; the
            last list of an epoch may hold fewer.

    Raises ValueError for a global batch larger than the dataset.
    """

    def __init__(
        self, size: int, sizes: BatchSizes, shard: int, seed: int, steps_per_batch: int = 1
    ) -> None:
        if sizes.total > size:
            raise ValueError(
                f"batch_size: found {sizes.total} samples a step, but the training set "
                f"has {size}; allowed: at most {size}"
            )
        self.size = size
        self.sizes = sizes
        self.shard = shard
        self.seed = seed
        self.steps_per_batch = steps_per_batch
        self.epoch = 0

    @property
    def samples_per_step(self) -> int:
        """Samples of a step that are this shard's."""
        return self.sizes[self.shard]

    @property
    def steps(self) -> int:
        """Optimizer steps an epoch has data for."""
        return self.size // self.sizes.total

    @property
    def sampler(self) -> GlobalBatchSampler:
        """Where Lightning looks for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(self.steps / self.steps_per_batch)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=generator)
        batches = order[: self.steps * self.sizes.total].view(self.steps, self.sizes.total)
        begin = sum(self.sizes[: self.shard])
        own = batches[:, begin : begin + self.samples_per_step]
        for first in range(0, self.steps, self.steps_per_batch):
            yield own[first : first + self.steps_per_batch].flatten().tolist()


class ShardBatchSampler(Sampler[list[int]]):
    """One rank's share of an evaluation set, each sample exactly once and none repeated.

    Args:
        together: ranks communicate in every batch, so all get as many: batches of nearly one size
            (with ``batch_size=1`` and a remainder one of them has two samples). Raises ValueError
            where there are fewer samples than ranks.
    """

    def __init__(
        self, size: int, batch_size: int, rank: int, world_size: int, together: bool = False
    ) -> None:
        self.indices = range(rank, size, world_size)
        held = len(self.indices)
        if not together:
            self._edges = [*range(0, held, batch_size), held] if held else [0]
            return
        if size < world_size:
            raise ValueError(
                f"dataset: found {size} samples to score on {world_size} devices that do it "
                f"together; allowed: at least {world_size}, or validation=never"
            )
        count = min(math.ceil(math.ceil(size / world_size) / batch_size), size // world_size)
        self._edges = [i * held // count for i in range(count + 1)]

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __iter__(self) -> Iterator[list[int]]:
        return (list(self.indices[begin:end]) for begin, end in pairwise(self._edges))


def collate(samples: Any) -> Any:
    """Pass on a batch that the dataset made as a whole; stack single samples."""
    return default_collate(samples) if isinstance(samples, list) else samples


def make_loader(
    dataset: Dataset[Any], sampler: Sampler[list[int]], config: LoaderConfig, device_kind: str
) -> DataLoader[Any]:
    """The batches of ``sampler``. Raises ValueError for data that cannot lie on the device."""
    workers: dict[str, Any] = {}
    if config.num_workers:
        workers = {
            "persistent_workers": config.persistent_workers,
            "prefetch_factor": config.prefetch_factor,
        }
    on_gpu = device_kind == "cuda"
    resident = config.device_resident and on_gpu
    loader: type[DataLoader[Any]] = OneThreadLoader if on_gpu else DataLoader
    if config.device_prefetch and on_gpu and not resident:
        loader = functools.partial(DevicePrefetchLoader, config.device_prefetch)  # type: ignore[assignment]
    return loader(
        on_device(dataset, torch.device("cuda")) if resident else dataset,
        batch_sampler=sampler,
        num_workers=config.num_workers,
        # Without a GPU there is nothing to pin for, and torch warns.
        pin_memory=config.pin_memory and on_gpu and not resident,
        collate_fn=collate,
        **workers,
    )


def on_device(dataset: Dataset[Any], device: torch.device) -> Dataset[Any]:
    """``dataset`` with all of its data in the memory of ``device``.

    Raises ValueError for a data set that does not consist of tensors.
    """
    if not hasattr(dataset, "to"):
        raise ValueError(
            f"dataset.loader.device_resident: found true, but {type(dataset).__name__} has no "
            "method to(device); allowed: a data set of tensors, or "
            "dataset.loader.device_prefetch=2"
        )
    moved: Dataset[Any] = dataset.to(device)
    return moved


class OwnLoaders(pl.LightningDataModule):
    """The loaders of the module that is trained."""

    def take(self, module: pl.LightningModule, target: str) -> None:
        """Raises :class:`ConfigError` for a model, built by ``target``, without a loader."""
        if (why := without_loader(module)) is not None:
            raise ConfigError(f"dataset: found own_loaders beside model._target_={target}, {why}")
        for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
            if _has(name, module):
                setattr(self, name, getattr(module, name))


def without_loader(network: Any) -> str | None:
    """Why nothing trains a model, or its class, on a loader of its own; None where it has one."""
    told = "which is no LightningModule with train_dataloader; allowed: one that has it, or "
    return (
        None if _has("train_dataloader", network) else f"{told}dataset._target_=package.module.NAME"
    )


def without_test(hook: str, target: str, part: Any) -> str | None:
    """Why ``part``, of Lightning's, or its class ``target`` tests nothing; None where it does."""
    has_it = _has(hook, part) or _has(hook, part, pl.LightningDataModule)
    return None if has_it else NO_TEST.format(f"{target} has no {hook}")


def _has(name: str, part: Any, base: type = pl.LightningModule) -> bool:
    kind = part if isinstance(part, type) else type(part)
    called = callable(getattr(part, name, None))  # a loader itself is not, and Lightning calls it
    return called and issubclass(kind, base) and is_overridden(name, part, base)


class OneThreadLoader(DataLoader[Any]):
    """A loader whose batches of a :class:`BatchedDataset` are made by the thread that asks, alone.

    torch divides a copy of 32,768 numbers among all threads, and waits for the last: up to 13 ms
    and more beside a busy host. Alone, a thread takes 0.4 ms for a MiB.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        alone = not self.num_workers and isinstance(self.dataset, BatchedDataset)
        while True:
            threads = torch.get_num_threads()
            torch.set_num_threads(1 if alone else threads)
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                torch.set_num_threads(threads)
            yield batch


class DevicePrefetchLoader(OneThreadLoader):
    """A loader whose batches are on the current GPU, copied ``ahead`` batches early.

    Copies run on a stream of their own, beside the steps before them: only where the batches come
    in page-locked memory (``pin_memory=true``). A step waits for the copy of its batch alone.
    """

    def __init__(self, ahead: int, *args: Any, **options: Any) -> None:
        self.ahead = ahead
        super().__init__(*args, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        device = torch.device("cuda", torch.cuda.current_device())
        copying = torch.cuda.Stream(device)
        coming: deque[tuple[Any, torch.cuda.Event]] = deque()

        def to_device(part: Tensor) -> Tensor:
            return part.to(device, non_blocking=True)

        for batch in super().__iter__():
            with on_stream(copying):
                moved = apply_to_collection(batch, Tensor, to_device)
                done = torch.cuda.Event()
                done.record(copying)
            coming.append((moved, done))
            if len(coming) > self.ahead:
                yield _ready(*coming.popleft())
        while coming:
            yield _ready(*coming.popleft())


def _ready(batch: Any, done: torch.cuda.Event) -> Any:
    """``batch``, usable on the current stream: its memory is not reused before that is done."""
    stream = torch.cuda.current_stream()
    stream.wait_event(done)
    apply_to_collection(batch, Tensor, lambda part: part.record_stream(stream))
    return batch

"""From a dataset to the batches of one rank.

A global batch is the same set of samples however many ranks share it: batch ``k`` of an epoch is
the ``k``-th slice of one seeded permutation, and each rank takes its part of that slice. Losses
of one device and of many can therefore be compared sample for sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from scalewise.datasets.loader import LoaderConfig


class GlobalBatchSampler(Sampler[list[int]]):
    """One rank's share of every global batch of a shuffled epoch.

    An incomplete last global batch is dropped, so that every step costs the same everywhere.

    Args:
        size: samples in the dataset.
        per_rank: samples each rank takes from a global batch.
        rank, world_size: whose share.
        seed: of the permutation; the epoch is added to it.
    """

    def __init__(self, size: int, per_rank: int, rank: int, world_size: int, seed: int) -> None:
        if per_rank * world_size > size:
            raise ValueError(
                f"batch_size: found {per_rank * world_size} samples a step, but the training set "
                f"has {size}; allowed: at most {size}"
            )
        self.size = size
        self.per_rank = per_rank
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0

    @property
    def sampler(self) -> GlobalBatchSampler:
        """Where Lightning looks for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size // (self.per_rank * self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=generator)
        for step in range(len(self)):
            begin = (step * self.world_size + self.rank) * self.per_rank
            yield order[begin : begin + self.per_rank].tolist()


class ShardBatchSampler(Sampler[list[int]]):
    """One rank's share of an evaluation set, each sample exactly once and none repeated.

    Ranks may get different numbers of batches; nothing in evaluation communicates before the
    metrics are computed, so none waits.
    """

    def __init__(self, size: int, batch_size: int, rank: int, world_size: int) -> None:
        self.indices = range(rank, size, world_size)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.indices) / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for begin in range(0, len(self.indices), self.batch_size):
            yield list(self.indices[begin : begin + self.batch_size])


def collate(samples: Any) -> Any:
    """Pass on a batch that the dataset made as a whole; stack single samples."""
    return default_collate(samples) if isinstance(samples, list) else samples


def train_loader(
    dataset: Dataset[Any],
    config: LoaderConfig,
    per_rank: int,
    rank: int,
    world_size: int,
    seed: int,
    device_kind: str,
) -> DataLoader[Any]:
    """Batches of ``per_rank`` samples of this rank's share. Raises ValueError if too large."""
    sampler = GlobalBatchSampler(len(cast(Sized, dataset)), per_rank, rank, world_size, seed)
    return _loader(dataset, sampler, config, device_kind)


def validation_loader(
    dataset: Dataset[Any],
    config: LoaderConfig,
    batch_size: int,
    rank: int,
    world_size: int,
    device_kind: str,
) -> DataLoader[Any]:
    """Every sample of this rank's share of ``dataset`` once."""
    sampler = ShardBatchSampler(len(cast(Sized, dataset)), batch_size, rank, world_size)
    return _loader(dataset, sampler, config, device_kind)


def _loader(
    dataset: Dataset[Any], sampler: Sampler[list[int]], config: LoaderConfig, device_kind: str
) -> DataLoader[Any]:
    workers: dict[str, Any] = {}
    if config.num_workers:
        workers = {
            "persistent_workers": config.persistent_workers,
            "prefetch_factor": config.prefetch_factor,
        }
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=config.num_workers,
        # Without a GPU there is nothing to pin for, and torch warns.
        pin_memory=config.pin_memory and device_kind == "cuda",
        collate_fn=collate,
        **workers,
    )

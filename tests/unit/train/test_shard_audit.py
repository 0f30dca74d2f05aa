"""The audit of shards looks on: whatever a user's data is, the fit does not fail for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from scalewise.records import CellFolder, read_shard
from scalewise.train.recording.shards import ShardRecorder

SAMPLES = 10


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.zeros(SAMPLES, 2))


class StreamOfKnownLength(Stream):
    def __len__(self) -> int:
        return SAMPLES


class ByName(TensorDataset):
    """Whose samples have names and no place."""

    def __getitem__(self, name: str) -> Any:
        return self.tensors[0][int(name.removeprefix("sample "))]


class Names(Sampler[list[str]]):
    def __iter__(self) -> Iterator[list[str]]:
        yield from ([f"sample {first}", f"sample {first + 1}"] for first in range(0, SAMPLES, 2))

    def __len__(self) -> int:
        return SAMPLES // 2


class LengthFails(TensorDataset):
    def __len__(self) -> int:
        raise KeyError("no index file")


def audited(folder: CellFolder, loader: object) -> ShardRecorder:
    """One epoch of ``loader`` under the audit, as Lightning would run it."""
    audit = ShardRecorder(folder, SimpleNamespace(samples=SAMPLES))  # type: ignore[arg-type]
    strategy = SimpleNamespace(process_dataloader=lambda same: same)
    trainer: Any = SimpleNamespace(strategy=strategy, training=True)
    audit.setup(trainer)
    assert len(list(strategy.process_dataloader(loader))) == SAMPLES // 2
    audit.end_epoch()
    audit.save(0)
    return audit


def test_samples_with_an_index_are_recorded(tmp_path: Path) -> None:
    data = TensorDataset(torch.zeros(SAMPLES, 2))
    folder = CellFolder(tmp_path)
    assert audited(folder, DataLoader(data, batch_size=2)).missing == {}
    shard = read_shard(folder.shard_path(0), 0)
    assert (shard.dataset_size, shard.epoch_complete) == (SAMPLES, True)
    assert shard.indices.tolist() == list(range(SAMPLES))


NOT_BY_INDEX = "so which samples a rank fed is not known by index"


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(Stream(), batch_size=2), f"from Stream, an IterableDataset, {NOT_BY_INDEX}"),
        (DataLoader(StreamOfKnownLength(), batch_size=2), f"an IterableDataset, {NOT_BY_INDEX}"),
        (torch.zeros(5, 2, 2), f"from Tensor without a batch sampler, {NOT_BY_INDEX}"),
        (
            DataLoader(ByName(torch.zeros(SAMPLES)), batch_sampler=Names()),
            "what the batch sampler drew is no record: ValueError: invalid literal",
        ),
        (
            DataLoader(
                LengthFails(torch.zeros(SAMPLES)),
                batch_sampler=[[i, i + 1] for i in range(0, SAMPLES, 2)],
            ),
            "the training data could not be looked at: KeyError: 'no index file'",
        ),
    ],
    ids=["stream", "stream of known length", "no loader", "names", "no length"],
)
def test_data_that_cannot_be_audited_is_trained_on_and_the_reason_kept(
    tmp_path: Path, loader: object, said: str
) -> None:
    folder = CellFolder(tmp_path)
    assert said in audited(folder, loader).missing["shard_audit"]
    assert not folder.shard_path(0).exists()

"""Which samples go into which batch of which rank."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from scalewise.config import LoaderConfig
from scalewise.datasets.contract import TensorPairs
from scalewise.records import CellFolder, read_shard
from scalewise.train import data
from scalewise.train.data import GlobalBatchSampler, ShardBatchSampler, make_loader
from scalewise.train.recording import BatchSizes
from scalewise.train.recording.shards import ShardRecorder, _Listening
from scalewise.train.recording.step_timer import count_samples, loss_of
from scalewise.train.recording.summary import loader_batch_size

SIZE, BATCH = 103, 12


def batches(sizes: tuple[int, ...], epoch: int) -> list[list[list[int]]]:
    """For each rank, its batches of an epoch."""
    ranks = []
    for rank, size in enumerate(sizes):
        sampler = GlobalBatchSampler(SIZE, BatchSizes(sizes), rank, 7)
        sampler.sampler.set_epoch(epoch)
        ranks.append(list(sampler))
        assert [len(batch) for batch in ranks[-1]] == [size] * len(sampler)
    return ranks


@pytest.mark.parametrize(
    ("sizes", "epoch"), [((6, 6), 0), ((4,) * 3, 5), ((1,) * 12, 1), ((7, 3, 2), 0)]
)
def test_the_ranks_batches_are_the_single_devices_batch(sizes: tuple[int, ...], epoch: int) -> None:
    (alone,) = batches((BATCH,), epoch)
    shares = batches(sizes, epoch)
    assert [[i for rank in step for i in rank] for step in zip(*shares, strict=True)] == alone
    fed = [i for batch in alone for i in batch]
    assert len(fed) == len(set(fed)) == SIZE // BATCH * BATCH, "the incomplete batch is dropped"
    assert set(fed) <= set(range(SIZE))


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size: found 104 samples a step, but the training"):
        GlobalBatchSampler(SIZE, BatchSizes((52,) * 2), 0, 0)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 8])
@pytest.mark.parametrize(("size", "world"), [(1, 1), (33, 2), (3, 2), (101, 4), (4, 4), (10, 3)])
def test_evaluation_shares_are_disjoint_and_cover_and_are_as_many_for_ranks_that_score_together(
    size: int, world: int, batch_size: int, together: bool
) -> None:
    samplers = [ShardBatchSampler(size, batch_size, rank, world, together) for rank in range(world)]
    ranks = [list(sampler) for sampler in samplers]
    assert [len(s) for s in samplers] == [len(rank) for rank in ranks]
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(size))
    sizes = [len(batch) for rank in ranks for batch in rank]
    assert 1 <= min(sizes) <= max(sizes) <= max(1 + together, batch_size)
    assert len({len(rank) for rank in ranks}) == 1 or not together


def test_ranks_without_a_sample_have_no_batch_and_cannot_score_together() -> None:
    assert [len(list(ShardBatchSampler(1, 4, rank, 3))) for rank in range(3)] == [1, 0, 0]
    with pytest.raises(ValueError, match="dataset: found 1 samples to score on 3 devices"):
        ShardBatchSampler(1, 4, 0, 3, together=True)


# What is read of a batch and its loss, whatever a user's loader and module make of them.
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
    [(DataLoader(DATA, 8), 5, 8), (DataLoader(DATA, 64), 1, None), ([DataLoader(DATA, 8)], 5, None),
     (DataLoader(DATA, batch_sampler=AtMost()), 2, None),  # type: ignore[arg-type]
     (DataLoader(DATA, batch_sampler=OURS), 2, 4)],
)  # fmt: skip
def test_a_loader_says_its_batch_size(loader: object, batches: int, said: int | None) -> None:
    trainer = SimpleNamespace(train_dataloader=loader, num_training_batches=batches)
    assert loader_batch_size(cast(pl.Trainer, trainer)) == said


class Placed(TensorDataset):
    def to(self, device: torch.device) -> "Placed":
        return self


@pytest.mark.parametrize(
    ("kind", "options", "ahead", "pinned"),
    [("cuda", {"device_prefetch": 2}, 2, True), ("cuda", {"pin_memory": False}, None, False),
     ("cuda", {"device_prefetch": 2, "device_resident": True}, None, False),
     ("cpu", {"device_prefetch": 2}, None, False)],
)  # fmt: skip
def test_only_what_a_gpu_does_not_hold_is_copied_ahead_and_pinned(
    kind: str, options: dict[str, Any], ahead: int | None, pinned: bool
) -> None:
    loader = make_loader(Placed(DATA), OURS, LoaderConfig(**options), kind)
    assert (getattr(loader, "ahead", None), loader.pin_memory) == (ahead, pinned)


@pytest.mark.parametrize(("kind", "threads"), [("cuda", 1), ("cpu", 3)])
def test_one_thread_makes_a_batch(monkeypatch: pytest.MonkeyPatch, kind: str, threads: int) -> None:
    count = lambda *_: (torch.tensor(torch.get_num_threads()),)  # noqa: E731
    monkeypatch.setattr(TensorPairs, "__getitems__", count)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    loader = make_loader(TensorPairs(DATA, DATA), OURS, LoaderConfig(pin_memory=False), kind)
    seen = [(of.item(), torch.get_num_threads()) for (of,) in loader]
    torch.set_num_threads(before)
    assert seen == [(threads, 3)] * len(OURS)


@pytest.mark.parametrize("ahead", [1, 2, 9])
def test_what_is_copied_ahead_comes_in_order_to_the_last_batch(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    events: list[str] = []
    event = SimpleNamespace(record=lambda _: events.append("copied"))
    cuda = SimpleNamespace(
        current_device=lambda: 0, Stream=lambda _: None, Event=lambda: event,
        current_stream=lambda: SimpleNamespace(wait_event=lambda _: events.append("used")),
    )  # fmt: skip
    as_on_gpu = {**vars(torch), "cuda": cuda, "device": lambda *_: "cpu"}
    monkeypatch.setattr(data, "torch", SimpleNamespace(**as_on_gpu))
    monkeypatch.setattr(data, "on_stream", lambda _: nullcontext())
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    fed = data.DevicePrefetchLoader(ahead, torch.arange(10), 2)  # type: ignore[arg-type]
    assert [batch.tolist() for batch in fed] == [[n, n + 1] for n in range(0, 10, 2)]
    assert events.index("used") == min(ahead + 1, 5), "so many are under way beside it"


@pytest.mark.parametrize(
    ("batch", "samples"),
    [(torch.zeros(5, 2), 5), ((torch.zeros(4, 1), torch.zeros(4)), 4), (torch.tensor(1.0), 1),
     ({"id": "x", "x": torch.zeros(3)}, 3), ([["a", "b"], torch.zeros(2)], 2), ("text", 0),
     (None, 0)],
)  # fmt: skip
def test_samples_are_counted_from_the_batch(batch: object, samples: int) -> None:
    assert count_samples(batch) == samples


@pytest.mark.parametrize(
    ("outputs", "loss"),
    [*((one, LOSS) for one in (LOSS, {"loss": LOSS, "x": 1}, LOSS.reshape(1, 1))),
     *((one, None) for one in (None, {}, {"loss": "text"}, torch.ones(3), torch.ones(0),
                               {"loss": torch.ones(2, 2)}, torch.tensor(1j)))],
)  # fmt: skip
def test_one_real_number_is_a_loss_and_nothing_else_ends_a_run(outputs: Any, loss: Any) -> None:
    assert loss_of(outputs) == loss


# The audit of shards looks on: whatever a user's data is, the fit does not fail for it.
SAMPLES = 10


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.zeros(SAMPLES, 2))

    def __len__(self) -> int:
        return SAMPLES


class ByName(TensorDataset):
    """Whose samples have names and no place."""

    def __getitem__(self, name: str) -> Any:
        return self.tensors[0][int(name.removeprefix("sample "))]


NAMES: Any = [[f"sample {first}", f"sample {first + 1}"] for first in range(0, SAMPLES, 2)]


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
    assert len(_Listening([[0, 1], [2, 3], [4]])) == 3, "a loader has as many batches as before"


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(Stream(), batch_size=2), "from Stream, an IterableDataset"),
        (torch.zeros(5, 2, 2), "from Tensor without a batch sampler"),
        (DataLoader(ByName(torch.zeros(SAMPLES)), batch_sampler=NAMES),
         "what the batch sampler drew is no record: ValueError: invalid literal"),
        (DataLoader(LengthFails(torch.zeros(SAMPLES)), batch_sampler=[[0, 1]] * 5),
         "the training data could not be looked at: KeyError: 'no index file'"),
    ],
    ids=["stream", "no loader", "names", "no length"],
)  # fmt: skip
def test_data_that_cannot_be_audited_is_trained_on_and_the_reason_kept(
    tmp_path: Path, loader: object, said: str
) -> None:
    folder = CellFolder(tmp_path)
    assert said in audited(folder, loader).missing["shard_audit"]
    assert not folder.shard_path(0).exists()

"""What a recorder asks of the optimizers and samplers of others, which may be anything."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, TensorDataset

from scalewise.script.recorder import MOST_AUDITED, drawn_shard, share_of, steps_before


def stepped(kind: type[torch.optim.Optimizer], steps: int) -> torch.optim.Optimizer:
    model = torch.nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("state", "before"),
    [({"step": 5.0}, 4), *((one, 0) for one in ({"step": "third"}, {"step": 0},
                                                {"step": torch.ones(2)}, 3))],
)  # fmt: skip
def test_an_optimizer_that_counts_its_steps_tells_of_those_before(state: Any, before: int) -> None:
    optimizer: Any = SimpleNamespace(state={"weight": state})
    assert steps_before(optimizer) == before
    assert steps_before(stepped(torch.optim.Adam, 5)) == 4
    assert steps_before(stepped(torch.optim.Adam, 1)) == steps_before(stepped(torch.optim.SGD, 5))


def test_a_sampler_tells_for_which_rank_it_draws_and_of_how_many() -> None:
    data = TensorDataset(torch.ones(8))
    shared: DistributedSampler[Any] = DistributedSampler(data, num_replicas=4, rank=1)
    assert share_of(BatchSampler(shared, 2, drop_last=False)) == (1, 4)
    assert share_of(BatchSampler(RandomSampler(data), 2, drop_last=False)) is None
    assert share_of(SimpleNamespace(num_processes=2, process_index=0)) == (0, 2)
    assert share_of(None) is None


def test_what_torchs_sampler_gave_is_listed_without_changing_what_it_gives_next() -> None:
    data = TensorDataset(torch.ones(10))
    own: DistributedSampler[Any] = DistributedSampler(data, num_replicas=4, rank=1)
    first = [*own]
    own.set_epoch(3)
    shard = drawn_shard(BatchSampler(own, 2, drop_last=False), 1, 2)
    assert shard is not None and [*shard.indices] == first[:2] != [*own][:2]
    assert (shard.rank, shard.dataset_size, shard.epoch_complete, own.epoch) == (1, 10, False, 3)
    whole = drawn_shard(own, 1, 3)
    assert whole is not None and whole.epoch_complete and [*whole.indices] == first
    # Those that draw by chance, or from too much, are not listed.
    many: DistributedSampler[Any] = DistributedSampler(range(MOST_AUDITED + 1), 2, 0)  # type: ignore[arg-type]
    assert drawn_shard(RandomSampler(range(4)), 0, 4) is None
    assert drawn_shard(many, 0, 4) is None
    assert drawn_shard(None, 0, 4) is None

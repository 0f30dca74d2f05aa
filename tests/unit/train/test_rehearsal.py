"""The process group of a rehearsal: what it hands back, how long it takes, what it refuses."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from lightning_fabric.utilities.distributed import _InfiniteBarrier
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from scalewise.config import ConfigError, Link
from scalewise.train.rehearsal import RehearsedGroup, join_alone

RANKS = 4
MS = 20.0
LINK = Link("slow", 2, ((1, MS), (1 << 40, MS)), "made up")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_InfiniteBarrier, "__enter__", _InfiniteBarrier.__enter__)  # and back
    join_alone(RANKS, LINK, torch.device("cpu"))
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_one_rank_is_there_and_gets_back_what_it_gave() -> None:
    assert (dist.get_rank(), dist.get_world_size()) == (0, RANKS)
    own = torch.arange(4.0)
    for collective in (dist.all_reduce, lambda t: dist.broadcast(t, src=0)):
        collective(own)
        assert own.tolist() == [0, 1, 2, 3]
    everybody = [torch.zeros(4) for _ in range(RANKS)]
    dist.all_gather(everybody, own)
    assert all(one.tolist() == [0, 1, 2, 3] for one in everybody)
    values = [None] * RANKS
    dist.all_gather_object(values, "mine")
    assert values == ["mine"] * RANKS
    dist.barrier()
    with _InfiniteBarrier() as lightnings:  # as around prepare_data
        lightnings()
    found = functional.all_reduce(own, "sum", dist.group.WORLD)
    assert found.tolist() == [0, 1, 2, 3], "functional collectives find it"
    with pytest.raises(ConfigError, match="the collective al"):
        functional.all_to_all_single(own, None, None, dist.group.WORLD)


@pytest.mark.usefixtures("group")
def test_collectives_last_as_long_as_over_the_link_one_after_another() -> None:
    begin = time.perf_counter()
    works = [dist.all_reduce(torch.ones(8), async_op=True) for _ in range(3)]
    begun_s = time.perf_counter() - begin
    for work in works:
        work.wait()
    assert 3 * MS / 1e3 <= time.perf_counter() - begin < 2
    assert begun_s < 3 * MS / 1e3, "whoever asks does not wait"


@pytest.mark.parametrize(("size", "moved_bytes"), [(1 << 40, 2000.0), (1 << 20, 1200.0)])
def test_memory_moves_what_a_ring_of_all_ranks_would_move(size: int, moved_bytes: float) -> None:
    """Over a link as slow as the host's memory each byte is moved once."""
    link = replace(LINK, points=((1, MS), (size, MS)))
    group = RehearsedGroup(0, RANKS, link, torch.device("cpu"))
    group._clock = Mock()
    group.allreduce([torch.zeros(100), torch.zeros(100)])
    assert group._clock.plan.call_args.args == (MS, moved_bytes)


@pytest.mark.usefixtures("group")
def test_ddp_takes_its_own_path_and_waits_for_its_buckets() -> None:
    model = DistributedDataParallel(torch.nn.Linear(8, 8), bucket_cap_mb=1)
    begin = time.perf_counter()
    model(torch.ones(2, 8)).sum().backward()
    assert time.perf_counter() - begin >= MS / 1e3
    assert model.module.weight.grad is not None
    # DDP divides by all ranks, whose sum is this one's.
    assert model.module.weight.grad[0, 0].item() == 2 / RANKS


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:.*(all_gather|reduce_scatter)_single:FutureWarning")
def test_parts_are_of_the_one_rank_whatever_a_torch_calls_the_collective() -> None:
    whole, part = torch.arange(2.0 * RANKS), torch.zeros(2)
    dist.reduce_scatter_tensor(part, whole)
    assert part.tolist() == [0, 1]
    dist.all_gather_into_tensor(whole, part)
    assert whole.tolist() == [0, 1] * RANKS
    dist.reduce_scatter(part, [torch.full((2,), 7.0 + rank) for rank in range(RANKS)])
    assert part.tolist() == [7, 7]
    whole = torch.tensor([1.0, 2.0, *[torch.nan] * (2 * RANKS - 2)])
    dist.all_gather_into_tensor(whole, whole[:2])
    assert whole.tolist() == [1, 2] * RANKS, "into the whole that it lies in, as FSDP does it"


class Seen(torch.nn.Linear):
    """Keeps the weight that its last forward saw."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen = self.weight.detach().clone()
        return super().forward(batch)


@pytest.mark.usefixtures("group")
def test_fsdp_takes_its_path_and_sees_only_written_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows in parts of three, the last one of padding; new memory is full of NaN."""
    asked = []
    monkeypatch.setattr(RehearsedGroup, "_plan", lambda group, *one: asked.append(one) or 0.0)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    model = torch.nn.Sequential(Seen(6, 10), torch.nn.Linear(10, 2, bias=False))
    for part in (model[0], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            own = model[0].weight.to_local().clone()
            model(torch.ones(3, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.use_deterministic_algorithms(False)
    assert own.shape == (3, 6)
    assert torch.equal(model[0].seen, own.repeat(RANKS, 1)[:10])
    assert all(one.to_local().isfinite().all() for one in model.parameters())
    first, last = 4 * 12 * (6 + 1), 4 * 4 * 10
    step = [("all_gather", last), ("all_gather", first), ("all_gather", first)]
    step += [("reduce_scatter", last), ("reduce_scatter", first)]
    assert sorted(asked) == sorted(2 * step)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("al", lambda own: dist.all_to_all_single(own, own.clone())),
        ("send", lambda own: dist.send(own, 1)), ("recv", lambda own: dist.recv(own, 1)),
        ("reduce", lambda own: dist.reduce(own, 0)),
        ("gather", lambda own: dist.gather(own, [own] * RANKS)),
        ("scatter", lambda own: dist.scatter(own, [own] * RANKS)),
    ],
)  # fmt: skip
def test_the_unemulated_is_refused(name: str, call: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(ConfigError, match=f"the collective {name}"):
        call(torch.zeros(RANKS))

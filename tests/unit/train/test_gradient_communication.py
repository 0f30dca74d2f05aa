"""Reductions of gradients are heard and counted, or named as what cannot be seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from scalewise.train.recording import GradientHook
from scalewise.train.recording.gradient_communication import (
    BucketWatch,
    GradientTraffic,
    LastGradient,
    hidden_reductions,
)

HALF = GradientHook(allreduce_hook, None, lambda bucket: bucket.buffer().nbytes // 2)
"""A hook of a strategy's, which says that it sends half of what there is."""


class Watched:
    """A wrapped model of one bucket, and what was told of it."""

    def __init__(self, watches: bool = True, **strategy: Any) -> None:
        self.model = DistributedDataParallel(nn.Linear(4, 1))
        self.traffic = GradientTraffic()
        self.told = 0
        watch = BucketWatch(self._ready, self.traffic, watches)
        device = torch.device("cpu")
        self.last = watch.watch(self.model, SimpleNamespace(root_device=device, **strategy))

    def _ready(self) -> None:
        self.told += 1

    def backward(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    yield
    dist.destroy_process_group()


def test_a_strategys_own_hook_is_counted_by_what_it_sends(group: None) -> None:
    watched = Watched(gradient_hook=HALF)
    for _ in range(3):
        watched.backward()
    record = watched.traffic.record(3)
    assert watched.last is None and watched.told == 3
    assert record is not None
    assert (record.rounds_per_step, record.payload_bytes_per_step) == (1.0, 10.0)


def test_without_anatomy_a_strategys_own_hook_still_acts_and_nobody_is_told(group: None) -> None:
    acted: list[int] = []

    def hook(state: Any, bucket: Any) -> Any:
        acted.append(bucket.index())
        return allreduce_hook(state, bucket)

    hook.__annotations__.clear()
    watched = Watched(watches=False, gradient_hook=GradientHook(hook, None, lambda bucket: 0))
    watched.backward()
    assert acted == [0] and watched.told == 0
    assert Watched(watches=False).last is None


def test_where_nobody_brings_a_hook_the_last_gradient_tells(group: None) -> None:
    watched = Watched(gradient_hook=None)
    watched.backward()
    assert watched.last is not None and watched.told > 0


class Opaque:
    """A strategy of somebody else's."""


def trainer(strategy: Any, learns: bool = True, world_size: int = 2) -> Any:
    module = nn.Linear(2, 1).requires_grad_(learns)
    return SimpleNamespace(strategy=strategy, world_size=world_size, lightning_module=module)


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        (trainer(Opaque(), world_size=1), {}),
        (trainer(SimpleNamespace(communication=None)), {}),
        (trainer(SimpleNamespace(hidden={"phases": "inside"})), {"phases": "inside"}),
        (
            trainer(Opaque()),
            {"exposed_comm_ms": "Opaque reduces gradients where no hook can see it"},
        ),
        (
            trainer(Opaque(), learns=False),
            {"exposed_comm_ms": "nothing has gradients, so none are reduced"},
        ),
    ],
)
def test_what_cannot_be_seen_says_why(found: Any, reasons: dict[str, str]) -> None:
    assert hidden_reductions(found) == reasons


def test_the_mark_comes_once_a_pass_after_every_gradient(group: None) -> None:
    network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    model = DistributedDataParallel(network)
    traffic, marks = GradientTraffic(), []

    def mark() -> None:
        marks.append(sum(p.grad is not None for p in network.parameters()))

    last = LastGradient(model, mark, traffic)
    for step in range(5):
        marks.clear()
        model(torch.ones(4, 8)).sum().backward()
        last.after_backward()
        # The last call of a pass tells; from the third pass on it is the only one.
        assert marks[-1] == 6
        assert len(marks) == (6 if step < 2 else 1)
        model.zero_grad(set_to_none=True)
    size = sum(p.numel() for p in network.parameters()) * 4
    assert (traffic.bucket_bytes, traffic.buckets) == (size, 1)
    record = traffic.record(5)
    assert record is not None
    assert (record.rounds_per_step, record.payload_bytes_per_step) == (1.0, size)


def test_a_pass_that_reduces_nothing_is_neither_marked_nor_counted(group: None) -> None:
    model = DistributedDataParallel(nn.Linear(4, 1))
    traffic, marks = GradientTraffic(), [0]
    last = LastGradient(model, lambda: marks.__setitem__(0, marks[0] + 1), traffic)
    for _ in range(3):
        with model.no_sync():
            model(torch.ones(2, 4)).sum().backward()
        last.after_backward()
        assert marks == [0]
        model(torch.ones(2, 4)).sum().backward()
        last.after_backward()
        assert marks[0] > 0
        marks[0] = 0
    record = traffic.record(3)
    assert record is not None and record.rounds_per_step == 1.0


def test_the_buckets_are_those_that_last(group: None) -> None:
    """DDP begins with one bucket for everything, and cuts it once it has seen the order."""
    network = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    model = DistributedDataParallel(network, bucket_cap_mb=1.5)
    traffic = GradientTraffic()
    last = LastGradient(model, lambda: None, traffic)
    for _ in range(5):
        model(torch.ones(1, 512)).sum().backward()
        last.after_backward()
    size = sum(p.numel() for p in network.parameters()) * 4
    assert (traffic.bucket_bytes, traffic.buckets) == (size, 2)
    record = traffic.record(5)
    assert record is not None
    assert (record.rounds_per_step, record.payload_bytes_per_step) == (1.0, size)

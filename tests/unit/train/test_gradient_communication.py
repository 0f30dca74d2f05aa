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
from scalewise.train.recording.gradient_communication import GradientWatch, hidden_reductions

HALF = GradientHook(allreduce_hook, None, lambda bucket: bucket.buffer().nbytes // 2)
"""A hook of a strategy's, which says that it sends half of what there is."""


class Watched:
    """A wrapped model, and how many gradients were there whenever it was told of the last."""

    def __init__(self, *layers: nn.Module, hook: GradientHook | None = None, **ddp: Any) -> None:
        self.network = nn.Sequential(*layers)
        self.model = DistributedDataParallel(self.network, **ddp)
        self.inputs = next(self.network.parameters()).shape[1]
        self.told: list[int] = []
        self.watch = GradientWatch(self._ready)
        self.watch.watch(self.model, hook)

    def _ready(self) -> None:
        self.told.append(sum(p.grad is not None for p in self.network.parameters()))

    def backward(self) -> None:
        self.told.clear()
        self.model(torch.ones(2, self.inputs)).sum().backward()
        self.watch.after_backward()
        self.model.zero_grad(set_to_none=True)

    def sent(self, steps: int) -> tuple[float, float]:
        record = self.watch.record(steps)
        assert record is not None
        return record.rounds_per_step, record.payload_bytes_per_step

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self.network.parameters()) * 4


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    yield
    dist.destroy_process_group()


def test_a_strategys_own_hook_is_counted_by_what_it_sends(group: None) -> None:
    watched = Watched(nn.Linear(4, 1), hook=HALF)
    for _ in range(3):
        watched.backward()
        assert len(watched.told) == 1
    assert watched.sent(3) == (1.0, 10.0)
    assert watched.watch.bucket_bytes == 20


def test_the_mark_comes_once_a_pass_after_every_gradient(group: None) -> None:
    watched = Watched(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    for step in range(5):
        watched.backward()
        # The last call of a pass tells; from the third pass on it is the only one.
        assert watched.told[-1] == 6
        assert len(watched.told) == (6 if step < 2 else 1)
    assert (watched.watch.bucket_bytes, watched.watch.buckets) == (watched.size, 1)
    assert watched.sent(5) == (1.0, watched.size)


def test_a_pass_that_reduces_nothing_is_neither_marked_nor_counted(group: None) -> None:
    watched = Watched(nn.Linear(4, 1))
    for _ in range(3):
        with watched.model.no_sync():
            watched.backward()
        assert not watched.told
        watched.backward()
        assert watched.told
    assert watched.sent(3)[0] == 1.0


def test_the_buckets_are_those_that_last(group: None) -> None:
    """DDP begins with one bucket for everything, and cuts it once it has seen the order."""
    watched = Watched(*(nn.Linear(512, 512) for _ in range(4)), bucket_cap_mb=1.5)
    for _ in range(5):
        watched.backward()
    assert (watched.watch.bucket_bytes, watched.watch.buckets) == (watched.size, 2)
    assert watched.sent(5) == (1.0, watched.size)


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


@pytest.mark.parametrize("hook", [None, HALF])
def test_gradients_that_pass_ddp_by_are_counted_as_nothing_sent(
    group: None, hook: GradientHook | None
) -> None:
    watched = Watched(nn.Linear(4, 3), hook=hook)
    learning = [*watched.network.parameters()]
    torch.autograd.grad(watched.model(torch.ones(2, 4)).sum(), learning)
    watched.watch.after_backward()
    assert watched.sent(1) == (0, 0)


def test_a_pass_whose_end_nobody_tells_of_has_sent_something(group: None) -> None:
    """Manual optimization may call ``loss.backward()`` itself."""
    watched = Watched(nn.Linear(4, 3))
    watched.model(torch.ones(2, 4)).sum().backward()
    assert watched.watch.record(1) is None

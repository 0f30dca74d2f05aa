"""Whoever reduces the gradients is listened to, counted, or named as what cannot be seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from scalewise.train.recording import GradientHook
from scalewise.train.recording.gradient_communication import (
    BucketWatch,
    GradientTraffic,
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


def test_the_hook_that_the_user_chose_is_wrapped_before_the_model_is(group: None) -> None:
    traffic, told = GradientTraffic(), []
    strategy = DDPStrategy(ddp_comm_hook=allreduce_hook)
    BucketWatch(lambda: told.append(1), traffic).wrap_user_hook(strategy)
    model = DistributedDataParallel(nn.Linear(4, 1))
    model.register_comm_hook(None, strategy._ddp_comm_hook)
    model(torch.ones(2, 4)).sum().backward()
    assert told == [1] and traffic.bucket_bytes == 20


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

"""Reductions of gradients are heard and counted, or named as what cannot be seen."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from scalewise.config import DdpConfig, ProfileConfig
from scalewise.records import CellFolder
from scalewise.train.recording import GradientHook, profiler
from scalewise.train.recording.gradient_communication import GradientWatch, hidden_reductions
from scalewise.train.recording.profiler import (
    ProfiledSteps,
    TimedOperation,
    covered_ns,
    host_operations,
    kernels,
    shared_ns,
    summarise_window,
)
from scalewise.train.strategies.data_parallel import compressing_hook

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
    for steps in (3, 1):
        watched.watch.begin()
        for _ in range(steps):
            watched.backward()
            assert len(watched.told) == 1
        assert watched.sent(steps) == (1.0, 10.0)
    assert watched.watch.bucket_bytes == 20


@pytest.mark.parametrize(
    ("width", "ddp", "buckets"),
    # DDP begins with one bucket for everything, and cuts it once it has seen the order.
    [(8, {}, 1), (512, {"bucket_cap_mb": 1.5}, 2)],
)
def test_the_mark_comes_once_a_pass_after_every_gradient_and_the_buckets_that_last_are_counted(
    group: None, width: int, ddp: dict[str, Any], buckets: int
) -> None:
    watched = Watched(*(nn.Linear(width, width) for _ in range(3)), **ddp)
    for step in range(5):
        watched.backward()
        # The last call of a pass tells; from the third pass on it is the only one.
        assert (watched.told[-1], len(watched.told)) == (6, 6 if step < 2 else 1)
    assert (watched.watch.bucket_bytes, watched.watch.buckets) == (watched.size, buckets)
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
    assert watched.watch.record(0) is None, "no step was timed"


@pytest.mark.parametrize(
    ("strategy", "world_size", "learns", "said"),
    [({}, 1, True, None), ({"communication": None}, 2, True, None),
     ({"hidden": {"exposed_comm_ms": "inside"}}, 2, True, "inside"),
     ({}, 2, True, "SimpleNamespace reduces gradients"), ({}, 2, False, "nothing has gradients")],
)  # fmt: skip
def test_what_cannot_be_seen_says_why(
    strategy: dict[str, Any], world_size: int, learns: bool, said: str | None
) -> None:
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(**strategy), world_size=world_size,
        lightning_module=nn.Linear(2, 1).requires_grad_(learns),
    )  # fmt: skip
    found = hidden_reductions(trainer)
    assert found["exposed_comm_ms"].startswith(said) if said else found == {}


@pytest.mark.parametrize("hook", [None, HALF])
def test_gradients_past_ddp_count_as_nothing_sent(group: None, hook: GradientHook | None) -> None:
    watched = Watched(nn.Linear(4, 3), hook=hook)
    torch.autograd.grad(watched.model(torch.ones(2, 4)).sum(), [*watched.network.parameters()])
    watched.watch.after_backward()
    assert watched.sent(1) == (0, 0)
    if hook is None:  # manual optimization may call ``loss.backward()`` itself: who knows
        watched.model(torch.ones(2, 4)).sum().backward()
        assert watched.watch.record(1) is None


# Communication from a profiler's events: by name, merged, overlapped with computation.
CUDA, CPU = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
MS = 1_000_000


def event(
    name: str, begin: int, length: int, where: Any = CUDA, thread: int = 1, drawn: bool = False
) -> Any:
    """The part of kineto's event that is read; ``drawn`` ones are ranges."""
    told = {
        "name": name, "start_ns": begin, "duration_ns": length, "device_type": where,
        "is_user_annotation": drawn, "start_thread_id": thread,
    }  # fmt: skip
    return SimpleNamespace(**{key: lambda value=value: value for key, value in told.items()})


def test_blocks_of_six_steps_reduce_in_turn_and_the_first_of_each_settles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "DistributedDataParallel", SimpleNamespace)
    watch: Any = ProfiledSteps(CellFolder(tmp_path), 10, ProfileConfig(window=True, steps=2))
    model, told = SimpleNamespace(), []
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(model=model), max_steps=70)
    for done in range(12, 75):
        watch._take_turns(trainer, done)
        told.append(model.require_backward_grad_sync)
    assert told == ([False] * 6 + [True] * 6) * 5 + [True] * 3
    assert watch._unreduced == [12 + 12 * block + i for block in range(5) for i in range(1, 6)]
    assert watch._reduced == [6 + one for one in watch._unreduced][:-2], "no step after the last"


def test_interval_arithmetic_agrees_with_counting_every_nanosecond() -> None:
    none = np.empty((0, 2), dtype=np.int64)
    assert covered_ns(none) == shared_ns(none, np.array([[0, 5]])) == 0
    random = np.random.default_rng(0)
    for _ in range(50):
        sides = []
        for _ in range(2):
            begins = random.integers(0, 200, size=random.integers(1, 12))
            sides.append(np.stack((begins, begins + random.integers(0, 30, len(begins))), axis=1))
        there = [{ns for a, b in side for ns in range(a, b)} for side in sides]
        assert covered_ns(sides[0]) == len(there[0])
        assert shared_ns(*sides) == len(there[0] & there[1])


def test_nccl_kernels_on_two_streams_are_communication_counted_once() -> None:
    events = [
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 4 * MS),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2 * MS, 4 * MS),
        event("sm90_gemm", 1 * MS, 2 * MS),
        event("Memcpy HtoD", 9 * MS, 1 * MS),
        # Ranges are drawn on the device as well, over the gaps between kernels: they are no work.
        event("nccl:all_reduce", 0, 20 * MS, drawn=True),
        event("step", 0, 20 * MS),
        event("step", 0, 20 * MS, where=CPU, drawn=True),
        event("aten::mm", 0, 20 * MS, where=CPU),
    ]
    found = summarise_window(0, 2, "device", kernels(events))
    assert (found.communication_ms, found.overlapped_ms) == (3.0, 1.0)
    assert (found.computation_ms, found.span_ms) == (1.5, 5.0)
    (talk,) = [o for o in found.operations if o.communication]
    assert (talk.calls, talk.ms_per_step) == (2, pytest.approx(4.0))


def test_on_a_cpu_collectives_are_ranges_and_only_the_training_thread_computes() -> None:
    events = [
        event("gloo:all_reduce", 0, 10 * MS, CPU, drawn=True, thread=3),
        event("c10d::allreduce_", 0, 1 * MS, CPU), event("aten::mm", 2 * MS, 3 * MS, CPU),
        event("aten::add", 12 * MS, 1 * MS, CPU), event("aten::copy_", 0, 9 * MS, CPU, thread=3),
    ]  # fmt: skip
    found = summarise_window(0, 1, "host", host_operations(events))
    assert (found.communication_ms, found.overlapped_ms, found.computation_ms) == (10.0, 3.0, 4.0)


def test_collectives_are_kept_one_by_one_and_none_is_missing_and_not_zero() -> None:
    spans = [
        TimedOperation("ncclAllReduce", 20 * MS, 23 * MS, communication=True),
        TimedOperation("gemm", 0, 30 * MS, communication=False),
        TimedOperation("ncclAllReduce", 5 * MS, 12 * MS, communication=True),
    ]
    assert summarise_window(0, 1, "device", spans).collectives_ms == (7.0, 3.0)
    assert summarise_window(0, 2, "device", spans[::2]).span_ms == 9.0, "from 5 to 23 ms"
    found = summarise_window(0, 1, "device", spans[1:2])
    assert found.communication_ms is None and found.overlapped_ms is None
    assert "communication_ms" in found.missing
    with pytest.raises(ValueError, match="steps: found 0"):
        summarise_window(0, 0, "device", [])


def test_each_compression_has_a_hook_of_its_own_that_counts_what_it_sends() -> None:
    bucket: Any = SimpleNamespace(buffer=lambda: torch.zeros(100))
    hooks = {
        name: compressing_hook(DdpConfig("ddp", "ddp", compression=name))
        for name in ("none", "fp16", "bf16", "powersgd")
    }
    assert hooks.pop("none") is None
    assert len({one.hook for one in hooks.values()}) == 3
    assert [hooks[name].payload_bytes(bucket) for name in ("fp16", "bf16")] == [200, 200]
    powersgd = hooks["powersgd"]
    sent = []
    for powersgd.state.total_numel_after_compression in (0, 30, 30):  # the first is sent whole
        sent.append(powersgd.payload_bytes(bucket))
    assert sent == [400, 120, 400]


@pytest.mark.parametrize(
    ("warmup", "ran", "events"),
    # Of the third and the last the data end before the window does.
    [(0, 5, ["open", "close 3"]), (2, 7, ["open 2", "close 5"]), (2, 4, ["open 2", "close 4"]),
     (2, 2, ["open 2"])],
)  # fmt: skip
def test_the_profiler_is_open_for_the_steps_of_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmup: int, ran: int, events: list[str]
) -> None:
    told: list[str] = []
    step = ""
    window = ProfiledSteps(CellFolder(tmp_path), warmup, ProfileConfig(window=True, steps=3))

    def opened(_: Any) -> None:
        told.append(f"open{step}")
        window._profiler = cast(Any, "open")

    def closed(_: Any) -> None:
        told.append(f"close{step}")
        window._profiler, window._found = None, cast(Any, "found")

    monkeypatch.setattr(window, "_open", opened)
    monkeypatch.setattr(window, "_close", closed)
    trainer: Any = SimpleNamespace(accumulate_grad_batches=2)
    for done in range(ran + 1):
        step = f" {done}" if done else ""
        window.on_step(trainer, done)
    monkeypatch.setattr(profiler, "save_profile", lambda *_: None)
    monkeypatch.setattr(profiler, "replace", lambda found, **_: found)
    window.end(trainer)
    assert told == events

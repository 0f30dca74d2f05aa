"""Puts a fault into a rank that is about to train, and takes it out again.

    PYTHONPATH=benchmarks python train.py +fault._target_=faults.plant.PlantedFault \
        +fault.kind=slow_rank +fault.rank=1 +fault.ms=5
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from faults import FaultConfig
from scalewise.config import ConfigError
from scalewise.records import DeviceInfo
from scalewise.train import RankContext
from scalewise.train.data import GlobalBatchSampler
from scalewise.train.recording import BatchSizes

_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"
"""Ends by itself when its rank is gone."""


_IN_STEPS = ("slow_rank", "stall", "common_stall", "second_context")


class PlantedFault(pl.Callback):
    """Plants a fault while the model is fitted; takes the arguments of :class:`FaultConfig`."""

    def __init__(self, **arguments: Any) -> None:
        self.fault = FaultConfig(**arguments)
        self._planted = contextlib.ExitStack()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        kind = "cuda" if trainer.strategy.root_device.type == "cuda" else "cpu"
        rank = RankContext(
            trainer.global_rank, trainer.local_rank, trainer.world_size, DeviceInfo(kind, kind)
        )
        source = trainer.fit_loop._data_source.instance
        self._planted.enter_context(planted(self.fault, rank, pl_module, source))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._planted.close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._planted.close()


def skewed(fair: GlobalBatchSampler, heavy: int, excess: float) -> GlobalBatchSampler:
    """Global batches of the same samples, of which one rank takes more than its share.

    Args:
        fair: the sampler that shares them evenly.
        heavy: the rank that takes more.
        excess: how much more, as a share of a fair part; the others take what is left.
    """
    total, ranks = fair.sizes.total, len(fair.sizes)
    others = [r for r in range(ranks) if r != heavy]
    most = min(total - len(others), round(fair.samples_per_step * (1 + excess)))
    shares = [most] * ranks
    for i, rank in enumerate(others):
        shares[rank] = (total - most + i) // len(others)
    return GlobalBatchSampler(fair.size, BatchSizes(shares), fair.shard, fair.seed)


@contextlib.contextmanager
def planted(
    fault: FaultConfig, rank: RankContext, module: pl.LightningModule, loader: object
) -> Iterator[None]:
    """Train inside this context and the fault is there.

    Raises ConfigError for a fault of the loader where the loader is not ours, and for one of GPUs
    on a CPU.
    """
    if fault.kind == "second_context" and rank.device.kind != "cuda":
        raise ConfigError(
            f"fault: found {fault.kind!r} on a CPU, which has no contexts; allowed: on GPUs"
        )
    with contextlib.ExitStack() as stack:
        if fault.kind in _IN_STEPS and fault.strikes(rank.rank):
            stack.enter_context(_struck(module, _blow(fault, rank), _moments(fault)))
        elif fault.kind in ("slow_loader", "skewed_shards", "no_sampler"):
            _spoil_loader(fault, rank, loader)
        elif fault.kind == "oversubscribe" and fault.strikes(rank.rank):
            for _ in range(fault.processes):
                stack.enter_context(_busy())
        yield


@contextlib.contextmanager
def _struck(
    module: pl.LightningModule, blow: Callable[[], None], moments: Iterator[bool]
) -> Iterator[None]:
    """Call ``blow`` at the begin of each ``training_step`` whose moment is true."""
    inner = module.training_step

    @functools.wraps(inner)
    def struck(*args: Any, **kwargs: Any) -> Any:
        if next(moments):
            blow()
        return inner(*args, **kwargs)

    module.training_step = struck  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.training_step


def _moments(fault: FaultConfig) -> Iterator[bool]:
    """Whether the fault strikes at the begin of the first step, the second, and so on.

    Ranks end their first step together, so what strikes once strikes all of them at one time.
    """
    if fault.kind not in ("second_context", "common_stall"):
        every = fault.every_n_steps if fault.kind == "stall" else 1
        yield from (step % every == 0 for step in itertools.count(1))
    yield False
    begin = time.monotonic()
    while time.monotonic() - begin < fault.at_s:
        yield False
    yield True
    yield from itertools.repeat(False)


def _blow(fault: FaultConfig, rank: RankContext) -> Callable[[], None]:
    if fault.kind != "second_context":
        return make_pause(rank.device.kind, fault.ms)
    side, number = torch.cuda.Stream(), torch.zeros((), device="cuda")

    def read() -> None:
        # Device 0 is current in a new thread: leaving the stream opens a context there.
        with torch.cuda.stream(side):
            float(number)

    return lambda: threading.Thread(target=read).start()


def make_pause(device_kind: str, ms: float) -> Callable[[], None]:
    """Something that keeps the device from its work for ``ms``; on a GPU the host runs on."""
    if device_kind != "cuda":
        return lambda: time.sleep(ms / 1e3)
    cycles = round(ms * _cycles_per_ms())
    return lambda: torch.cuda._sleep(cycles)


def _cycles_per_ms() -> float:
    probe = 50_000_000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(probe)  # the first launch loads the kernel
    begin.record()
    torch.cuda._sleep(probe)
    end.record()
    end.synchronize()
    return float(probe / begin.elapsed_time(end))


def _spoil_loader(fault: FaultConfig, rank: RankContext, loader: object) -> None:
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, DataLoader) or not isinstance(sampler, GlobalBatchSampler):
        raise ConfigError(
            f"fault: found {fault.kind!r} with a LightningDataModule; allowed: a dataset whose "
            "loader scalewise builds"
        )
    if fault.kind == "slow_loader":
        if fault.strikes(rank.rank):
            loader.collate_fn = _slowed(loader.collate_fn, fault.ms)
        return
    if fault.kind == "no_sampler":
        spoiled = GlobalBatchSampler(
            sampler.size, BatchSizes([sampler.samples_per_step]), 0, sampler.seed
        )
    elif rank.world_size > 1:
        spoiled = skewed(sampler, max(fault.rank, 0), fault.excess)
    else:
        return
    # DataLoader refuses a new sampler after construction.
    object.__setattr__(loader, "batch_sampler", spoiled)


def _slowed(collate: Callable[[Any], Any], ms: float) -> Callable[[Any], Any]:
    def slow(samples: Any) -> Any:
        time.sleep(ms / 1e3)
        return collate(samples)

    return slow


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """A process that computes on the cores of this one."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY, str(os.getpid())])
    try:
        yield
    finally:
        process.kill()
        process.wait()

"""One line in a training script: the same records as under ``scalewise run``, however it starts."""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from scalewise.config import ConfigError, require
from scalewise.host import ENV_SCRIPT, place_id, say
from scalewise.records import CellFolder, DeviceInfo, RankSummary, build, load_or_none, to_plain
from scalewise.script.entry import active, watch, watching
from scalewise.script.place import Place, Task
from scalewise.script.recorder import ScriptRecorder, first_parameter
from scalewise.train import (
    FitRecords,
    default_store,
    describe_model,
    describe_optimizers,
    live_device,
    new_sweep_folder,
    own_folder,
    seed_set,
)

_MEET_S = 120.0
"""For all ranks to come to the line that begins or ends the records."""
_meetings = itertools.count()


def monitor(
    *trained: Any, folder: Path | str | None = None, warmup_steps: int = 10
) -> ScriptMonitor:
    """Records what a script trains: as a block around its loop, or of a Trainer of transformers'.

        with scalewise.monitor(model, optimizer) as m:
            for batch in m(loader):
                ...
                m.log("accuracy", accuracy)

        scalewise.monitor(trainer)   # of transformers; then trainer.train()

    Every rank has to come here, once its process group is made and its model is wrapped; so do
    models and optimizers that Accelerate prepared. ``scalewise report FOLDER`` reads the records.
    Runs into the same ``folder`` add to it: equal ones are repeats, and one device against several
    gets a verdict. Under ``scalewise run``, which records anyway, it adds what is logged.

    Args:
        trained: models and their optimizers, or one Trainer.
        folder: where the records go; a new folder below ``multirun/`` by default.
        warmup_steps: first steps, excluded from every timing.

    Raises:
        ConfigError: for what cannot be recorded, naming what can.
    """
    require("warmup_steps", warmup_steps, warmup_steps >= 0, "0 or more")
    made = ScriptMonitor([one for one in trained if isinstance(one, Optimizer)],
                         [one for one in trained if isinstance(one, nn.Module)],
                         None if folder is None else Path(folder), warmup_steps)  # fmt: skip
    others = [one for one in trained if not isinstance(one, Optimizer | nn.Module)]
    transformers = sys.modules.get("transformers")
    if transformers is not None and others and isinstance(others[0], transformers.Trainer):
        from scalewise.script.hugging_face import attach

        attach(others[0], made)
    elif others or not made.optimizers:
        found = type(others[0]).__name__ if others else "no optimizer"
        raise ConfigError(
            f"scalewise.monitor: found {found}; allowed: models and optimizers of torch, or a "
            "Trainer of transformers; a Trainer of Lightning takes callbacks=[scalewise.Monitor()]"
        )
    return made


class _Guest(ScriptRecorder):
    """A recorder that never ends the script: what it cannot record is a reason, given later."""

    failure: BaseException | None = None
    starts_after = 0
    undo: Callable[[], None]

    def _give_up(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.fail(error)

    def _close(self) -> None:
        super()._close()
        self._heartbeat.close()

    def _leave(self) -> None:
        self.undo()


class ScriptMonitor:
    """What :func:`monitor` gives."""

    def __init__(
        self, optimizers: list[Any], models: list[nn.Module], folder: Path | None, warmup_steps: int
    ) -> None:
        self.optimizers, self._models = optimizers, models
        self._folder, self._warmup_steps = folder, warmup_steps
        self._fit: _Fit | None = None
        self._entered = False

    def __enter__(self) -> ScriptMonitor:
        self._entered = True
        if self.optimizers:
            self.begin(self.optimizers, self._models)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._fit is not None:
            self._fit.end(error)
            self._fit = None

    def __call__(self, loader: Iterable[Any]) -> Batches:
        """``loader``, for whose batches the script is seen to wait, whatever it is."""
        return Batches(loader)

    def log(self, name: str, value: float | torch.Tensor) -> None:
        """Record a number of the present step. A tensor is read late, so that nothing waits."""
        if watching:
            watching[-1].log(name, value)
        elif not self._entered:
            warnings.warn("m.log: found no `with scalewise.monitor(...) as m`", stacklevel=2)

    def begin(self, optimizers: list[Any], models: list[nn.Module]) -> None:
        """Record from now on, unless this process is recorded already."""
        if ENV_SCRIPT not in os.environ and active() is None:
            self._fit = _Fit(optimizers, models, self._folder, self._warmup_steps)


class Batches:
    """A loader as it is, but for the moments at which its batches are waited for."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type] # as of a loader that has none

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._loader)
        # A DataLoader's is watched already.
        return iterator if isinstance(iterator, _BaseDataLoaderIter) else _fetched(iterator)


def _fetched(iterator: Iterator[Any]) -> Iterator[Any]:
    next_batch = functools.partial(next, iterator)
    while True:
        recorder = active()
        try:
            batch = next_batch() if recorder is None else recorder.fetch(next_batch)
        except StopIteration:
            return
        yield batch


class _Fit:
    """One recorded training of this rank, from when it is made to :meth:`end`."""

    def __init__(
        self, optimizers: list[Any], models: list[nn.Module], folder: Path | None, warmup_steps: int
    ) -> None:
        self._rank, self._world_size = _rank_and_world_size()
        device, host = live_device(first_parameter(optimizers[0]).device), place_id()
        name, sweep = "", folder or new_sweep_folder()
        if self._rank == 0:
            name = own_folder(sweep, "monitored")
        mine = [str(sweep.resolve()), name, to_plain(device), os.getpid(), host]
        ranks = _meet(mine, self._rank, self._world_size)
        self._folder = CellFolder(Path(ranks[0][0]) / ranks[0][1])
        devices = [build(DeviceInfo, one[2]) for one in ranks]
        here = [rank for rank, one in enumerate(ranks) if one[4] == host]
        place = Place(
            str(self._folder.path), self._rank, here.index(self._rank), self._world_size,
            len({one[4] for one in ranks}), str(Path.cwd()), len(device.cores), False,
        )  # fmt: skip
        self._recorder = _Guest(place, Task("scalewise.monitor", warmup_steps), device)
        self._recorder.begin(optimizers[0])
        self._config = self._describe(optimizers, models, warmup_steps)
        self._records = FitRecords(self._folder, self._rank)
        if self._rank == 0:
            self._records.begin(devices)
            self._records.repeat_of(self._config, self._world_size)
            self._records.tell_host(here, devices)
        if self._rank == here[0]:
            self._records.sample(here, devices, [one[3] for one in ranks])
        self._recorder.undo = watch(self._recorder).close
        self._recorder.steps.clock.begin()

    def _describe(
        self, optimizers: list[Any], models: list[nn.Module], warmup_steps: int
    ) -> dict[str, Any]:
        """What has to be equal of two trainings that repeat each other, in scalewise's words."""
        found = self._recorder.models.found
        kinds = {type(part).__name__ for model in found for part in model.modules()}
        sharded = any(kind.startswith(("FSDP", "FullySharded")) for kind in kinds)
        alone = "single" if self._world_size == 1 else "own"
        # Also of one rank: that is not what one device does without.
        strategy = "fsdp" if sharded else "ddp" if "DistributedDataParallel" in kinds else alone
        described = [describe_model(unwrapped(model)) for model in models or found]
        names = "+".join(one["name"] for one in described)
        return {
            "model": described[0] if len(described) == 1 else {"name": names, "parts": described},
            "dataset": {"name": "own"},
            "strategy": {"name": strategy},
            "hardware": {"name": "auto"},
            # Accelerate wraps those of torch.
            "optimizer": describe_optimizers([getattr(o, "optimizer", o) for o in optimizers]),
            "precision": {"name": "own"},
            "execution": {"name": "eager"},
            "batch_size": None,
            "max_steps": None,
            "max_epochs": None,
            "warmup_steps": warmup_steps,
            **seed_set(),
            "tracking": {"name": "monitor", "trackers": []},
        }

    def end(self, error: BaseException | None) -> None:
        """Write what is left, and the result of all ranks unless an ``error`` ended one."""
        self._recorder.undo()
        self._records.stop_sampling()
        if isinstance(error, SystemExit) and not error.code:
            error = None
        try:
            if error is None:
                self._recorder.finish()
            error = error or self._recorder.failure
            if error is None and self._rank == 0:
                self._finish()
        except OSError as failure:  # or a rank that was waited for in vain
            error = failure
        if error is not None:
            self._recorder.fail(error)
            message = self._records.fail(error, self._recorder.steps.steps)
            if message is not None:
                say(message)
        self._records.end()

    def _finish(self) -> None:
        ranks = self._every_summary()
        # Told by what was fed: whoever gives a loader need not say it.
        self._config["batch_size"] = ranks[0].step_samples
        self._records.repeat_of(self._config, self._world_size)
        self._records.finish(ranks, self._config["strategy"]["name"])
        say(self._records.result_in_brief(ranks[0].steps_completed, self._config["warmup_steps"]))

    def _every_summary(self) -> tuple[RankSummary, ...]:
        until = time.monotonic() + _MEET_S
        while time.monotonic() < until and not any(self._folder.attempts()):
            ranks = [load_or_none(self._folder.load_rank, r) for r in range(self._world_size)]
            known = tuple(one for one in ranks if one is not None)
            if len(known) == self._world_size:
                return known
            time.sleep(0.05)
        raise TimeoutError(f"not every rank had ended after {_MEET_S:g} s")


_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module within what torch wraps it in."""
    if type(model).__name__ in _WRAPPERS:
        return unwrapped(model.module)  # type: ignore[arg-type]
    return unwrapped(model._orig_mod) if hasattr(model, "_orig_mod") else model  # type: ignore[arg-type]


def _rank_and_world_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        raise ConfigError(
            f"scalewise.monitor: found no process group, and WORLD_SIZE={ranks}; allowed: a line "
            "after init_process_group, once the model is wrapped"
        )
    return 0, 1


def _meet(mine: Any, rank: int, world_size: int) -> list[Any]:
    """What every rank brings, by rank. No collective: those need a device, and hang in silence."""
    if world_size == 1:
        return [mine]
    store, meeting = default_store(), next(_meetings)
    keys = [f"scalewise/monitor/{meeting}/{other}" for other in range(world_size)]
    store.set(keys[rank], json.dumps(mine))
    try:
        store.wait(keys, timedelta(seconds=_MEET_S))
    except RuntimeError as error:  # torch's own, in all versions
        raise ConfigError(
            f"scalewise.monitor: rank {rank} waited {_MEET_S:g} s for the others; allowed: the "
            "same line on every rank"
        ) from error
    return [json.loads(store.get(key)) for key in keys]

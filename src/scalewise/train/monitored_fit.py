"""The records of a monitored fit as a whole: its plan, its sign of life, and how it ended.

Nobody supervises a script of the user's own: it has to say itself what ended it. Where it cannot
(SIGKILL, ``os._exit``, a host that goes down), its sign of life grows old, and readers see it."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from pytorch_lightning.utilities.exceptions import SIGTERMException

from scalewise.config import ending_of
from scalewise.host import Colocation
from scalewise.records import (
    Cause,
    CellFolder,
    CellResult,
    DeviceInfo,
    Ending,
    PlannedCell,
    RankSummary,
    RunningAttempt,
    SweepFolder,
    SweepPlan,
    batch_sizes_of,
    data_shards_of,
    sum_over_shards,
)
from scalewise.train.recording import BackgroundDrain

_BEAT_S = 1.0
_LAST_LINES = 20


class FitRecords:
    """Records that rank 0 writes for all ranks; :meth:`break_off` alone is for any of them.

    The run's ``folder`` lies inside that of the sweep which the runs of a script form.
    """

    def __init__(self, folder: CellFolder, rank: int) -> None:
        self._folder = folder
        self._sweep = SweepFolder(folder.path.parent)
        self._rank = rank
        self._started_at, self._since = time.time(), time.monotonic()
        self._planned: PlannedCell | None = None
        self._beats: BackgroundDrain | None = None
        self._colocation: Colocation | None = None
        self._unknown: tuple[str, ...] = ()
        """Why it is not known who shares the host, where that is so."""

    def begin(self, devices: Sequence[DeviceInfo]) -> None:
        """Plan the run, and give a sign of life every second from now on.

        What the fit is made of is known later: until :meth:`repeat_of` it repeats nothing.
        """
        name = self._folder.name
        planned = PlannedCell(name, name, name, (), 0, len(devices))
        self._put_into_plan(lambda _: planned)
        self._folder.save_running(RunningAttempt(1, self._started_at, tuple(devices)))
        try:
            self._colocation = Colocation(str(self._sweep.path), name)
        except OSError as error:  # no reason to end a fit
            self._unknown = (f"not known: {error.strerror}",)
        self._beats = BackgroundDrain([lambda *_: self._beat()], _BEAT_S)

    def _beat(self) -> None:
        self._folder.beat()
        if self._colocation is not None:
            self._colocation.look()

    def _co_tenants(self) -> tuple[str, ...]:
        """Other fits and cells of this user on this host: several launchers may start one script.

        Processes of others on its GPUs are in the device series.
        """
        if self._colocation is None:
            return self._unknown
        self._colocation.look()
        return self._colocation.neighbours

    def repeat_of(self, config_id: str) -> None:
        """Plan it as one more run of the configuration ``config_id``."""
        planned = self._planned
        assert planned is not None

        def repeated(plan: SweepPlan) -> PlannedCell:
            repeat = sum(cell.config_id == config_id for cell in plan.cells)
            return dataclasses.replace(planned, config_id=config_id, repeat=repeat)

        self._put_into_plan(repeated)

    def finish(self, ranks: tuple[RankSummary, ...], strategy: str) -> None:
        """Save the result: the fit ended as it should."""
        assert self._planned is not None
        per_device, together = self._batch_sizes(ranks)
        self._folder.save_result(
            CellResult(
                cell_id=self._planned.cell_id,
                config_id=self._planned.config_id,
                name=self._planned.name,
                repeat=self._planned.repeat,
                attempt=1,
                started_at=self._started_at,
                finished_at=time.time(),
                elapsed_s=time.monotonic() - self._since,
                world_size=len(ranks),
                strategy=strategy,
                # Lightning's batch is per process, whatever the number of processes.
                scaling="weak",
                global_batch_size=together,
                per_device_batch_size=per_device,
                co_tenants=self._co_tenants(),
                ranks=ranks,
            )
        )
        self.end()

    def _batch_sizes(self, ranks: tuple[RankSummary, ...]) -> tuple[int, int]:
        """Samples of a step, of one rank and of all.

        Of the largest step: where the data is no multiple of the batch, the last step of an epoch
        is smaller, and a mean over the steps would differ between fits that ask for the same.
        """
        found = batch_sizes_of(ranks)
        if found is not None:
            return found
        mean = math.ceil(ranks[0].samples_fed / max(1, ranks[0].steps_completed))
        return mean, sum_over_shards([mean] * len(ranks), data_shards_of(ranks))

    def end(self) -> None:
        """No more signs of life: it has a result, or a record of why not."""
        if self._beats is not None:
            self._beats.stop()
            self._folder.clear_running()
            self._beats = None
        if self._colocation is not None:
            self._colocation.leave()
            self._colocation = None

    def _put_into_plan(self, plan_it: Callable[[SweepPlan], PlannedCell]) -> None:
        """In place of what was known of this run before; others may do so at the same time."""
        with (self._sweep.path / "plan.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            plan = (
                self._sweep.load_plan()
                if self._sweep.plan_path.exists()
                else SweepPlan(time.time(), tuple(sys.argv), 0, ())
            )
            planned = plan_it(plan)
            others = tuple(cell for cell in plan.cells if cell.name != planned.name)
            self._sweep.save_plan(dataclasses.replace(plan, cells=(*others, planned)))
        self._planned = planned

    def break_off(self, error: BaseException, steps: int) -> str | None:
        """Record that ``error`` ended the fit after ``steps`` steps; returns that as a line.

        None if another rank was first: what one dies of is the cause, the others lose a peer.
        """
        if any(self._folder.attempts()):
            return None
        ending = _ended_fit(error, self._rank)
        recorded = self._folder.save_attempt(
            dataclasses.replace(
                ending,
                message=f"rank {self._rank}: {ending.message} (after {steps} steps)",
                last_lines=ending.last_lines[-_LAST_LINES:],
                started_at=self._started_at,
                elapsed_s=time.monotonic() - self._since,
            )
        )
        return recorded.message


def _ended_fit(error: BaseException, rank: int) -> Ending:
    """How ``error`` ends a fit that the user's own script runs."""
    ending = ending_of(error, rank)
    known: tuple[Cause, str] | None = None
    if isinstance(error, SIGTERMException):  # Lightning's, a SystemExit
        known = "signal", "ended by SIGTERM"
    elif isinstance(error, KeyboardInterrupt):
        known = "interrupted", "interrupted by Ctrl-C (SIGINT)"
    if known is not None:
        cause, message = known
        return dataclasses.replace(
            ending, outcome="interrupted", cause=cause, message=message, raised_at=None
        )
    if isinstance(error, SystemExit):
        status = 0 if error.code is None else error.code
        message = f"the script left with exit status {status} amid the fit"
        code = status if isinstance(status, int) else None
        return dataclasses.replace(ending, cause="exit", message=message, exit_code=code)
    return ending


_STRATEGIES: Mapping[type, str] = {
    SingleDeviceStrategy: "single",
    DDPStrategy: "ddp",
    FSDPStrategy: "fsdp",
}
_PRECISIONS: Mapping[str, str] = {"32-true": "fp32", "16-mixed": "fp16-mixed"}
"""Lightning's names that differ from scalewise's; the others are the same, or are only its own."""
_LIBRARIES = frozenset({"torch", "pytorch_lightning", "lightning", "lightning_fabric", "builtins"})


def describe_fit(
    trainer: pl.Trainer, module: pl.LightningModule, warmup_steps: int, trackers: Sequence[str]
) -> dict[str, Any]:
    """The configuration of this fit in scalewise's words, once data and optimizers are set up.

    Two monitored runs are comparable (``scalewise compare``), and repeats of each other, where all
    of it agrees. The rest of the script, the number of devices among it, is not part of it: the
    records tell what ran.
    """
    settings = trainer.optimizers[0].param_groups[0] if trainer.optimizers else {}
    loader = trainer.train_dataloader
    dataset = getattr(loader, "dataset", loader)
    batch_size = getattr(loader, "batch_size", None)
    return {
        "model": {
            "name": type(module).__name__,
            "class": _full_name(type(module)),
            "source_sha256": _source_sha256(module),
            "parameters": sum(p.numel() for p in module.parameters()),
        },
        "dataset": {
            "name": type(dataset).__name__,
            "class": _full_name(type(dataset)),
            "samples": len(dataset) if isinstance(dataset, Sized) else None,
            "workers": getattr(loader, "num_workers", None),
        },
        "strategy": {"name": strategy_name(trainer)},
        "hardware": {"name": "auto"},
        "optimizer": {
            "name": "+".join(type(o).__name__ for o in trainer.optimizers) or "none",
            # The settings of the first group of the first one.
            **{k: v for k, v in settings.items() if isinstance(v, bool | int | float | str)},
        },
        "precision": {"name": _precision_name(trainer)},
        "execution": {"name": "eager"},
        # Per process; None where the loader has a batch sampler of its own.
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        # Lightning's -1 is no limit, which scalewise's configurations write as null.
        "max_steps": None if trainer.max_steps == -1 else trainer.max_steps,
        "max_epochs": None if trainer.max_epochs == -1 else trainer.max_epochs,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_norm": trainer.gradient_clip_val,
        "warmup_steps": warmup_steps,
        "tracking": {"name": "monitor", "trackers": list(trackers)},
    }


def strategy_name(trainer: pl.Trainer) -> str:
    """As scalewise names it where it is Lightning's own, else the name of its class.

    A class of the user's own keeps its name, also where it derives from one of Lightning's.
    """
    cls = type(trainer.strategy)
    return _STRATEGIES.get(cls, cls.__name__)


def _precision_name(trainer: pl.Trainer) -> str:
    """As scalewise names it: Lightning's ``32-true`` is tf32 where fp32 products may use it."""
    name = str(trainer.precision)
    if name == "32-true" and trainer.strategy.root_device.type == "cuda" and _tf32_is_on():
        return "tf32"
    return _PRECISIONS.get(name, name)


def _tf32_is_on() -> bool:
    """Whether matrix products may use tf32. Reading torch's older switch raises after the newer."""
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return bool(torch.backends.cuda.matmul.allow_tf32) if newer is None else newer == "tf32"


def config_id(config: Mapping[str, Any], world_size: int) -> str:
    """The same for two fits if and only if they repeat each other, trackers aside."""
    plain = {k: v for k, v in config.items() if k != "tracking"} | {"world_size": world_size}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


def _source_sha256(module: pl.LightningModule) -> str | None:
    """Hash of the user's own classes, from the module down to its layers.

    None where a source cannot be read (typed into an interpreter).
    """
    own = {
        base
        for part in module.modules()
        for base in type(part).__mro__
        if base.__module__.partition(".")[0] not in _LIBRARIES
    }
    try:
        sources = [inspect.getsource(cls) for cls in sorted(own, key=_full_name)]
    except (OSError, TypeError):
        return None
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"

"""The records of a training that a script of the user's own runs, and how it ended.

Nobody supervises it: it has to say itself what ended it. Where it cannot (SIGKILL, ``os._exit``, a
host that goes down), its sign of life grows old, and readers see it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import inspect
import itertools
import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scalewise.config import ending_of
from scalewise.gpu import DeviceSampler, NvmlUnavailable, open_nvml
from scalewise.host import Colocation, from_here, processor_name, scalewise_version, usable_cores
from scalewise.records import (
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
)
from scalewise.train.provenance import collect
from scalewise.train.recording import BackgroundDrain

_BEAT_S = 1.0
_LAST_LINES = 20


class FitRecords:
    """Records that rank 0 writes for all ranks; any may fail, and one a host samples its devices.

    The run's ``folder`` lies inside that of the sweep which the runs of a script form.
    """

    _planned: PlannedCell
    """There from :meth:`begin` on."""

    def __init__(self, folder: CellFolder, rank: int) -> None:
        self._folder = folder
        self._sweep = SweepFolder(folder.path.parent)
        self._rank = rank
        self._started_at, self._since = time.time(), time.monotonic()
        self._beats: BackgroundDrain | None = None
        self._sampler: DeviceSampler | None = None
        self._colocation: Colocation | None = None
        self._unknown: tuple[str, ...] = ()
        """Why it is not known who shares the host, where that is so."""

    def begin(self, devices: Sequence[DeviceInfo]) -> None:
        """Plan the run, and give a sign of life every second from now on.

        What the fit is made of is known later: until :meth:`repeat_of` it repeats nothing.
        """
        name = self._folder.name
        self._put_into_plan(lambda _: PlannedCell(name, name, name, (), 0, len(devices)))
        self._folder.save_running(RunningAttempt(1, self._started_at, tuple(devices)))
        try:
            self._colocation = Colocation(str(self._sweep.path), name)
        except OSError as error:  # no reason to end a fit
            self._unknown = (f"not known: {error.strerror}",)
        self._beats = BackgroundDrain([lambda *_: self._beat()], _BEAT_S)

    def tell_host(self, here: Sequence[int], devices: Sequence[DeviceInfo]) -> None:
        """Save what it depends on beside its configuration, of the ranks ``here`` alone.

        The user's own code is in the configuration, by the classes that the fit is made of: the
        line of his script that asks for another device must not make two runs incomparable.
        """
        own = tuple(devices[rank] for rank in here)
        driver, links = None, {}
        with contextlib.suppress(NvmlUnavailable), open_nvml() as nvml:
            uuids = {device.uuid for device in own}
            driver = nvml.driver_version()
            links = nvml.link_matrix([gpu for gpu in nvml.devices() if gpu.uuid in uuids])
        self._folder.save_provenance(collect(own, driver, links, scalewise_version()))

    def sample(
        self,
        here: Sequence[int],
        devices: Sequence[DeviceInfo],
        pids: Sequence[int],
        interval_s: float = 1.0,
    ) -> None:
        """Sample those of the ranks ``here``: others of the ``devices`` are on other hosts."""
        gpus = {uuid: rank for rank in here if (uuid := devices[rank].uuid) is not None}
        self._sampler = DeviceSampler(
            self._folder, gpus, lambda: {rank: pids[rank] for rank in here}, interval_s
        )

    def stop_sampling(self) -> None:
        if self._sampler is not None:
            self._sampler.close()

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

    def repeat_of(self, config: Mapping[str, Any], world_size: int) -> None:
        """Save its configuration, and plan it as one more run of that."""
        planned, own_id = self._planned, config_id(config, world_size)

        def repeated(plan: SweepPlan) -> PlannedCell:
            repeat = sum(cell.config_id == own_id for cell in plan.cells)
            return dataclasses.replace(planned, config_id=own_id, repeat=repeat)

        self._put_into_plan(repeated)
        self._folder.save_config(config)

    def finish(self, ranks: tuple[RankSummary, ...], strategy: str) -> None:
        # Of the usual step, which the last of an epoch is not.
        per_device, together = batch_sizes_of(ranks) or (None, None)
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

    def fail(self, error: BaseException, steps: int) -> str | None:
        """Record that ``error`` ended the fit after ``steps`` steps; says that in a line.

        None if another rank was first: what one dies of is the cause, the others lose a peer. No
        failure of ours hides the ``error``.
        """
        self.stop_sampling()
        message = None
        try:
            if not any(self._folder.attempts()):
                ending = _ended_fit(error, self._rank)
                told = dataclasses.replace(
                    ending,
                    message=f"rank {self._rank}: {ending.message} (after {steps} steps)",
                    last_lines=ending.last_lines[-_LAST_LINES:],
                    started_at=self._started_at,
                    elapsed_s=time.monotonic() - self._since,
                )
                message = self._folder.save_attempt(told).message  # without secrets
            self.end()
        except OSError as failure:
            message = f"the reason could not be recorded ({failure})"
        report = f"scalewise report {from_here(self._sweep.path)}"
        return message and f"scalewise: no result: {message}. What was recorded: {report}"

    def result_in_brief(self, steps: int, warmup_steps: int) -> str:
        timed, report = max(0, steps - warmup_steps), from_here(self._sweep.path)
        return f"scalewise: {timed} of {steps} steps were timed: scalewise report {report}"


def _ended_fit(error: BaseException, rank: int) -> Ending:
    ending = ending_of(error, rank)
    stopped = dataclasses.replace(ending, outcome="interrupted", raised_at=None)
    if type(error).__name__ == "SIGTERMException":  # Lightning's, a SystemExit
        return dataclasses.replace(stopped, cause="signal", message="ended by SIGTERM")
    if isinstance(error, KeyboardInterrupt):
        why = "interrupted by Ctrl-C (SIGINT)"
        return dataclasses.replace(stopped, cause="interrupted", message=why)
    if isinstance(error, SystemExit):
        status = 0 if error.code is None else error.code
        message = f"the script left with exit status {status} amid the fit"
        code = status if isinstance(status, int) else None
        return dataclasses.replace(ending, cause="exit", message=message, exit_code=code)
    return ending


_LIBRARIES = frozenset({"torch", "pytorch_lightning", "lightning", "lightning_fabric", "builtins"})


def describe_model(module: nn.Module) -> dict[str, Any]:
    """What tells two models apart: class, parameters, and the sources of the user's own classes."""
    cls = type(module)
    if cls.__bases__[0].__name__ == "FSDPModule":  # which torch puts before the user's own class
        cls = cls.__bases__[1]
    return {
        "name": cls.__name__,
        "class": full_name(cls),
        "source_sha256": _source_sha256(module),
        "parameters": sum(p.numel() for p in module.parameters()),
    }


def describe_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """Their classes, and the settings of the first group of the first one."""
    settings = optimizers[0].param_groups[0] if optimizers else {}
    plain = {k: v for k, v in settings.items() if isinstance(v, bool | int | float | str)}
    return {
        "name": "+".join(type(o).__name__ for o in optimizers) or "none",
        # A scheduler's first value may be 0.00011999999999999988.
        **{k: float(f"{v:.12g}") if isinstance(v, float) else v for k, v in plain.items()},
    }


def seed_set() -> dict[str, int]:
    """``seed``, where the script has set torch's: one that nobody set has 64 bits."""
    seed = torch.initial_seed()
    return {"seed": seed} if seed < 1 << 32 else {}


def config_id(config: Mapping[str, Any], world_size: int) -> str:
    """The same for two fits if and only if they repeat each other, seeds and trackers aside."""
    plain = {k: v for k, v in config.items() if k not in ("seed", "tracking")}
    plain |= {"world_size": world_size}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


def _source_sha256(module: nn.Module) -> str | None:
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
        sources = [inspect.getsource(cls) for cls in sorted(own, key=full_name)]
    except (OSError, TypeError):
        return None
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()


def full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def new_sweep_folder() -> Path:
    return Path(f"multirun/monitor-{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(2)}")


def own_folder(folder: Path, name: str) -> str:
    """Make ``name`` in ``folder``, or with a number where another run has it; returns its name."""
    folder.mkdir(parents=True, exist_ok=True)
    found, numbers = name, itertools.count(2)
    while True:
        with contextlib.suppress(FileExistsError):
            (folder / found).mkdir()  # whoever makes it owns it, also among runs started together
            return found
        found = f"{name}-{next(numbers)}"


def live_device(device: torch.device) -> DeviceInfo:
    """The device this process computes on, with the GPU's UUID where it has one."""
    cores = usable_cores()
    if device.type != "cuda":
        return DeviceInfo("cpu", processor_name(), cores=cores)
    properties = torch.cuda.get_device_properties(device)
    uuid = f"GPU-{properties.uuid}"
    index = None
    with contextlib.suppress(NvmlUnavailable), open_nvml() as nvml:
        index = next((d.index for d in nvml.devices() if d.uuid == uuid), None)
    return DeviceInfo("cuda", properties.name, uuid, index, cores, properties.total_memory / 2**20)

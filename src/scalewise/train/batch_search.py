"""The largest batch that trains without running out of memory, the same on every rank.

Ranks try a size on their own: no gradient is reduced in a trial, so a rank that runs out of memory
leaves nobody waiting in an all-reduce. What came of it they tell each other through host memory,
and all go on with the same next size. Under DDP a rank puts aside what the reduction will take.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import default_collate

from scalewise.config import CellConfig, ConfigError, instantiate
from scalewise.host import memory_available_mib
from scalewise.records import (
    BatchSearchRecord,
    BatchTrial,
    CellFolder,
    HeartbeatWriter,
    RankSummary,
    save_record,
)
from scalewise.train.build import build_module
from scalewise.train.execution import Execution, ExperimentModule, apply_precision
from scalewise.train.failure import failure_kind
from scalewise.train.rank import RankContext, Team, settle_device
from scalewise.train.recording import untrained_summary

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CLEAR_PEAK = "5"
"""Sets ``VmHWM`` back to what is resident now: see proc(5)."""
TRIAL_STEPS = 3
"""The first makes the optimizer's state, so that the second is the one that needs most."""
RESOLUTION = 16
"""The search ends when the largest that fits is known to one part in so many."""


@dataclass(frozen=True)
class OwnTrial:
    """The outcome of a size on one rank."""

    fits: bool
    peak_allocated_mib: float | None = None
    step_time_ms: float | None = None
    peak_rss_mib: float | None = None


@dataclass(frozen=True)
class Found:
    """The end of a search."""

    largest: int
    limited_by_memory: bool
    trials: tuple[BatchTrial, ...]


def search_batch(
    cell: CellConfig,
    plain: Mapping[str, Any],
    folder: CellFolder,
    rank: RankContext,
    host_cores: int,
) -> RankSummary:
    """Run the cell of ``batch_size=auto``: search with the other ranks, and record the answer.

    Each rank tries sizes on its own device with the cell's model, data and optimizer; the first
    leaves ``find_batch.json`` in ``folder``. Nothing is kept of what is trained here.
    ``host_cores`` are those of the whole host: a CPU device has its share of the memory, too.
    Raises ConfigError for what cannot be searched, or has no size that fits.
    """
    pulse = HeartbeatWriter(folder.heartbeat_path(rank.rank))
    try:
        settle_device(rank, cell.hardware.memory_cap_gib, cell.execution.device_check)
        team = Team(rank.rank, rank.world_size, cell.sweep.collective_timeout_s)
        replica = Replica(cell, rank)
        memory = _memory(cell, rank, replica.device, host_cores)
        most = _most(cell, replica.samples, rank.world_size)
        pulse.begin(None)
        tried = itertools.count(1)
        guarded_step = guarded(replica.step, memory)

        def attempt(size: int) -> OwnTrial:
            own = guarded_step(size)
            pulse.beat(next(tried), size)  # trials for steps: the search goes on
            return own

        found = search(attempt, team, cell.batch_search.first, most)
        # A share of the host's memory is as small as that of the rank that has least.
        limit = -team.largest([-(memory.limit_mib or float("inf"))])[0]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    record = _record(cell, plain, found, rank, most, None if limit == float("inf") else limit)
    if rank.is_first:
        save_record(folder.path, record)
    summary = untrained_summary(
        rank,
        {"per_device_batch_size": float(record.per_device_batch_size)},
        "workload=find_batch: batch sizes were tried, nothing was trained",
    )
    folder.save_rank(summary)
    pulse.close()
    return summary


def _most(cell: CellConfig, samples: int, world_size: int) -> int:
    """The largest size that leaves every device of an optimizer step its samples."""
    most = samples // (world_size * cell.accumulate_grad_batches)
    if most < 1:
        raise ConfigError(
            f"batch_size: found auto, but the training set of dataset={cell.dataset.name} has "
            f"{samples} samples for {world_size} devices and accumulate_grad_batches="
            f"{cell.accumulate_grad_batches}; allowed: a sample or more for each"
        )
    return min(cell.batch_search.max, most)


def _memory(
    cell: CellConfig, rank: RankContext, device: torch.device, host_cores: int
) -> GpuMemory | HostMemory:
    if device.type == "cuda":
        cap_gib = cell.hardware.memory_cap_gib
        total = rank.device.memory_total_mib
        return GpuMemory(device, total if cap_gib is None else 1024 * cap_gib)
    free = memory_available_mib()
    share = len(rank.device.cores) / max(1, host_cores) if rank.device.cores else 1.0
    return HostMemory(None if free is None else free * min(1.0, share))


def _record(
    cell: CellConfig,
    plain: Mapping[str, Any],
    found: Found,
    rank: RankContext,
    most: int,
    limit_mib: float | None,
) -> BatchSearchRecord:
    # Beyond what was tried nothing is known to be short, so nothing has to be kept free.
    margin = cell.batch_search.margin if found.limited_by_memory else 0.0
    per_device = max(1, int(found.largest * (1 - margin)))
    by_setting = most == cell.batch_search.max
    return BatchSearchRecord(
        per_device_batch_size=per_device,
        global_batch_size=per_device * rank.world_size,
        largest_that_fits=found.largest,
        limited_by=("memory" if found.limited_by_memory else "max_batch" if by_setting else "data"),
        margin=margin,
        world_size=rank.world_size,
        device=rank.device.name,
        trials=found.trials,
        config=plain,
        limit_mib=limit_mib,
    )


def search(attempt: Callable[[int], OwnTrial], team: Team, first: int, most: int) -> Found:
    """Double from ``first`` until a rank runs out of memory, then halve the gap.

    Never tries more than ``most``. Raises ValueError if not even one sample fits.
    """
    trials: list[BatchTrial] = []

    def fits(size: int) -> bool:
        trials.append(_together(size, attempt(size), team))
        return trials[-1].outcome == "fits"

    low, high, size = 0, most + 1, min(first, most)
    # While nothing has failed, ``high`` is beyond what may be tried.
    while low < most and (high > most or high - low > max(1, low // RESOLUTION)):
        if fits(size):
            low = size
        else:
            high = size
        size = min(2 * low, most) if high > most else (low + high) // 2
    if low == 0:
        raise ValueError("batch_size: not even one sample fits in the memory of every device")
    return Found(low, high <= most, tuple(trials))


def _together(size: int, own: OwnTrial, team: Team) -> BatchTrial:
    """The outcome of ``size`` on all ranks. Every rank gets the same answer."""
    failed = [0.0] * team.size
    failed[team.rank] = float(not own.fits)
    figures = (own.peak_allocated_mib, own.step_time_ms, own.peak_rss_mib)
    worst = team.largest([*failed, *(-1.0 if value is None else value for value in figures)])
    out = tuple(rank for rank in range(team.size) if worst[rank])
    told = [None if out or value < 0 else value for value in worst[team.size :]]
    return BatchTrial(size, "oom" if out else "fits", out, *told)


def guarded(
    step: Callable[[int], None], memory: GpuMemory | HostMemory
) -> Callable[[int], OwnTrial]:
    """An attempt that runs ``step(size)`` a few times and reports "out of memory" as a result.

    Whatever else goes wrong is raised.
    """

    def attempt(size: int) -> OwnTrial:
        memory.release()
        try:
            for _ in range(TRIAL_STEPS - 1):
                step(size)
            began = time.perf_counter()
            step(size)
            memory.settle()
            ms = (time.perf_counter() - began) * 1e3
        except (RuntimeError, MemoryError) as error:
            if failure_kind(error) != "oom":
                raise
            # The traceback holds the tensors of the step that failed.
            error.__traceback__ = None
            memory.release()
            return OwnTrial(fits=False)
        allocated, resident = memory.peaks()
        return OwnTrial(True, allocated, ms, resident)

    return attempt


class GpuMemory:
    """The memory of the current GPU: its allocator refuses what is too much.

    Args:
        limit_mib: the GPU's memory, or the cap on it.
    """

    def __init__(self, device: torch.device, limit_mib: float | None) -> None:
        self._device = device
        self.limit_mib = limit_mib

    def release(self) -> None:
        """Give back what the last trial held, and count the peak anew."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def settle(self) -> None:
        """Wait for whatever the trial started."""
        torch.cuda.synchronize(self._device)

    def peaks(self) -> tuple[float | None, float | None]:
        """Since the last release: allocated on a GPU, resident on a CPU host, in MiB."""
        return torch.cuda.max_memory_allocated(self._device) / 2**20, None


class HostMemory:
    """The memory of this process on a CPU host, where the kernel kills instead of refusing.

    So the process gets a limit of its own (``RLIMIT_DATA``, what it maps privately), beyond which
    an allocation fails as it does on a GPU. It stays for the life of the process.

    Args:
        limit_mib: of the whole process; None for no limit.
    """

    def __init__(self, limit_mib: float | None) -> None:
        mapped, resident = _status_mib("VmData"), _status_mib("VmRSS")
        if mapped is None or resident is None:
            self.limit_mib = None
            return
        # What is mapped and never touched costs nothing: only what is left is counted.
        unused = mapped - resident
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft != resource.RLIM_INFINITY:  # somebody's `ulimit -d` holds as well
            allowed = soft / 2**20 - unused
            limit_mib = allowed if limit_mib is None else min(limit_mib, allowed)
        self.limit_mib = limit_mib
        if limit_mib is not None:
            bound = int((max(limit_mib, resident) + unused) * 2**20)
            resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))

    def release(self) -> None:
        gc.collect()
        with contextlib.suppress(OSError):  # then no peak is told
            _CLEAR.write_text(_CLEAR_PEAK)

    def settle(self) -> None:
        """Nothing runs on."""

    def peaks(self) -> tuple[float | None, float | None]:
        return None, _status_mib("VmHWM")


def _status_mib(name: str) -> float | None:
    """A line of the process's status; None where the kernel does not tell."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None


class Replica:
    """The cell's model on this rank's device, trained on batches of any size, with nobody."""

    def __init__(self, cell: CellConfig, rank: RankContext) -> None:
        pl.seed_everything(cell.seed, workers=True, verbose=False)
        apply_precision(cell.precision)
        module = build_module(cell, rank)
        if not isinstance(module, ExperimentModule):
            raise ConfigError(
                f"model: found {type(module).__name__}, a LightningModule of its own, with "
                "batch_size=auto; allowed: an nn.Module with loss(output, target), or a number. "
                "Lightning's Tuner.scale_batch_size is for yours, on one device"
            )
        Execution(cell, rank).change(module)
        dataset = instantiate("dataset", cell.dataset)
        self._data = getattr(dataset, "train", dataset)
        self.samples = len(self._data)
        on_gpu = rank.device.kind == "cuda"
        self.device = torch.device("cuda", rank.local_rank) if on_gpu else torch.device("cpu")
        self._module = module.to(self.device).train()
        self._optimizer = module.configure_optimizers()
        self._clip = cell.gradient_clip_norm
        self._autocast = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(
            cell.precision.lightning
        )
        if rank.world_size > 1:
            views = bool(getattr(cell.strategy, "gradient_as_bucket_view", False))
            # DDP will hold a copy of all gradients beside a replica, unless they are views of it.
            # With views its first step still holds both, which is where memory peaks.
            held = list(module.parameters())[: 1 if views else None]
            self._reserved = [torch.empty_like(p) for p in held if p.requires_grad]

    def step(self, size: int) -> None:
        """Forward, backward and optimizer on the first ``size`` samples."""
        x, target = self._batch(size)
        with torch.autocast(self.device.type, self._autocast, self._autocast is not None):
            loss = self._module.objective(x.to(self.device), target.to(self.device))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._module.parameters(), self._clip)
        self._optimizer.step()

    def _batch(self, size: int) -> Any:
        indices = list(itertools.islice(range(self.samples), size))
        whole = getattr(self._data, "__getitems__", None)
        batch = whole(indices) if whole else [self._data[i] for i in indices]
        return default_collate(batch) if isinstance(batch, list) else batch

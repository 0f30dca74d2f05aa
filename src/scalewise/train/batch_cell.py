"""The search for the largest batch as a cell of a sweep: ``batch_size=auto``.

Each rank tries sizes on its own device with the cell's model, data and optimizer; the first leaves
``find_batch.json`` in the cell's folder. Nothing is kept of what is trained here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import default_collate

from scalewise.config import CellConfig, ConfigError, instantiate
from scalewise.host import memory_available_mib
from scalewise.measure.doctor_team import Team
from scalewise.measure.untrained import untrained_summary
from scalewise.optimizers.pruning import Pruner
from scalewise.records import CellFolder, RankSummary
from scalewise.records.batch_search import BatchSearchRecord, save_batch_search
from scalewise.records.heartbeat import HeartbeatWriter
from scalewise.train.batch_search import Found, OwnTrial, guarded, reduction_buffer, search
from scalewise.train.build import build_module
from scalewise.train.device import settle_device
from scalewise.train.execution.apply import Execution
from scalewise.train.module import ExperimentModule
from scalewise.train.precision import apply_precision
from scalewise.train.rank import RankContext
from scalewise.train.trial_memory import GpuMemory, HostMemory, TrialMemory


def search_batch(
    cell: CellConfig,
    plain: Mapping[str, Any],
    folder: CellFolder,
    rank: RankContext,
    host_cores: int,
) -> RankSummary:
    """Search with the other ranks, and leave this one's records in ``folder``.

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
        attempt = _beating(guarded(replica.step, memory), pulse)
        found = search(attempt, team, cell.batch_search.first, most)
        # A share of the host's memory is as small as that of the rank that has least.
        limit = -team.largest([-(memory.limit_mib or float("inf"))])[0]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    record = _record(cell, plain, found, rank, most, None if limit == float("inf") else limit)
    if rank.is_first:
        save_batch_search(folder.path, record)
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
) -> TrialMemory:
    if device.type == "cuda":
        cap_gib = cell.hardware.memory_cap_gib
        total = rank.device.memory_total_mib
        return GpuMemory(device, total if cap_gib is None else 1024 * cap_gib)
    free = memory_available_mib()
    share = len(rank.device.cores) / max(1, host_cores) if rank.device.cores else 1.0
    return HostMemory(None if free is None else free * min(1.0, share))


def _beating(
    attempt: Callable[[int], OwnTrial], pulse: HeartbeatWriter
) -> Callable[[int], OwnTrial]:
    """Show after each trial that the search goes on: trials for steps."""
    tried = itertools.count(1)

    def beating(size: int) -> OwnTrial:
        own = attempt(size)
        pulse.beat(next(tried), size)
        return own

    return beating


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
        if cell.pruning.kind != "none":
            # Masks and scores from the first step on, as they will be there at the end.
            at_once = dataclasses.replace(cell.pruning, begin_step=1)
            Pruner(at_once, module.named_parameters(), self._optimizer)
        self._clip = cell.gradient_clip_norm
        self._autocast = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(
            cell.precision.lightning
        )
        if rank.world_size > 1:
            views = bool(getattr(cell.strategy, "gradient_as_bucket_view", False))
            self._reserved = reduction_buffer(list(module.parameters()), views)

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

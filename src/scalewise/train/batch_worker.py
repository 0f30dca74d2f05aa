"""One rank of a search for the largest batch: ``python -m scalewise.train.batch_worker JOB``."""

from __future__ import annotations

import itertools
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import default_collate

from scalewise.config import CellConfig, ConfigError, build_cell, instantiate
from scalewise.measure.doctor_team import Team
from scalewise.records import DeviceInfo
from scalewise.records.batch_search import BatchSearchRecord
from scalewise.records.files import save_json
from scalewise.train.batch_search import Found, guarded, reduction_buffer, search
from scalewise.train.build import build_module
from scalewise.train.device import settle_device
from scalewise.train.execution.apply import Execution
from scalewise.train.module import ExperimentModule
from scalewise.train.precision import apply_precision
from scalewise.train.rank import RankContext
from scalewise.typed import build

EXIT_CONFIG_ERROR = 2


@dataclass(frozen=True)
class SearchJob:
    """What the ranks are told, as JSON."""

    config: dict[str, Any]
    devices: tuple[DeviceInfo, ...]
    first: int
    most: int
    margin: float
    result: str
    """Where rank 0 leaves the record."""


def main() -> int:
    """Search with the other ranks; rank 0 writes what was found."""
    job = build(SearchJob, json.loads(Path(sys.argv[1]).read_text()))
    rank = int(os.environ["RANK"])
    device = job.devices[rank]
    if device.cores:
        os.sched_setaffinity(0, device.cores)
    if device.kind == "cpu":
        torch.set_num_threads(max(1, len(device.cores)))
    place = RankContext(rank, int(os.environ["LOCAL_RANK"]), len(job.devices), device)
    try:
        _run(job, place)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_CONFIG_ERROR
    return 0


def _run(job: SearchJob, rank: RankContext) -> None:
    cell = build_cell(job.config)
    try:
        settle_device(rank, cell.hardware.memory_cap_gib, cell.execution.device_check)
        team = Team(rank.rank, rank.world_size)
        replica = Replica(cell, rank)
        most = min(job.most, replica.samples)
        found = search(guarded(replica.step, replica.device), team, job.first, most)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if rank.is_first:
        save_json(Path(job.result), _record(job, found, most))


def _record(job: SearchJob, found: Found, most: int) -> BatchSearchRecord:
    # Beyond what was tried nothing is known to be short, so nothing has to be kept free.
    margin = job.margin if found.limited_by_memory else 0.0
    per_device = max(1, int(found.largest * (1 - margin)))
    limited = "memory" if found.limited_by_memory else "max_batch" if most == job.most else "data"
    return BatchSearchRecord(
        per_device,
        per_device * len(job.devices),
        found.largest,
        limited,  # type: ignore[arg-type]
        margin,
        len(job.devices),
        job.devices[0].name,
        found.trials,
        job.config,
    )


class Replica:
    """The cell's model on this rank's device, trained on batches of any size, with nobody."""

    def __init__(self, cell: CellConfig, rank: RankContext) -> None:
        pl.seed_everything(cell.seed, workers=True, verbose=False)
        apply_precision(cell.precision)
        module = build_module(cell, rank)
        if not isinstance(module, ExperimentModule):
            raise ConfigError(
                f"model: found {type(module).__name__}, a LightningModule of its own; allowed: an "
                "nn.Module with loss(output, target). Lightning's Tuner.scale_batch_size is for "
                "yours, on one device"
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


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: tearing down a group whose peers are gone can hang.
    os._exit(status)

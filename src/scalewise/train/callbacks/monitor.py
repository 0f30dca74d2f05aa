"""Full records of a training script of one's own: one callback, no configuration."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_warn

from scalewise.gpu.nvml import GpuDevice, Nvml, NvmlUnavailable, open_nvml
from scalewise.gpu.sampler import DeviceSampler
from scalewise.host import processor_name, usable_cores
from scalewise.records import (
    CellFolder,
    CellResult,
    DeviceInfo,
    PlannedCell,
    RankSummary,
    SweepFolder,
    SweepPlan,
)
from scalewise.train.callbacks.recorder import CellRecorder
from scalewise.train.provenance import collect

TrackerName = Literal["trackio", "wandb"]
_MIRROR_TIMEOUT_S = 90.0


class Monitor(CellRecorder):
    """Records a ``Trainer.fit`` of any LightningModule, on any strategy, as scalewise cells are.

        trainer = Trainer(callbacks=[scalewise.Monitor()])

    The records form a sweep of one cell, so that ``scalewise report FOLDER`` reads them. Put it
    first among the callbacks: what the others take then counts as ``other``.

    Args:
        folder: where the records go; a new folder below ``multirun/`` by default.
        warmup_steps: first steps, excluded from every timing.
        log_every_n_steps: how often the loss is read.
        devices: sample the GPUs or, without any, the ranks' processes.
        interval_s: seconds between two samples.
        tracking: the trackers that mirror the records; none by default.
        name: what the run is called in the report and in the trackers.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        warmup_steps: int = 10,
        log_every_n_steps: int = 10,
        devices: bool = True,
        interval_s: float = 1.0,
        tracking: Sequence[TrackerName] = (),
        name: str = "monitored",
    ) -> None:
        if warmup_steps < 0 or log_every_n_steps < 1:
            raise ValueError(
                f"Monitor: found warmup_steps={warmup_steps}, log_every_n_steps="
                f"{log_every_n_steps}; allowed: 0 or more, and 1 or more"
            )
        super().__init__(
            CellFolder(Path()), DeviceInfo("cpu", "unknown"), warmup_steps, log_every_n_steps
        )
        self._sweep_folder = None if folder is None else Path(folder)
        self._sample_devices = devices
        self._interval_s = interval_s
        self._trackers = tuple(tracking)
        self._name = name
        self._sampler: DeviceSampler | None = None
        self._mirror: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    @property
    def sweep_folder(self) -> Path:
        """Where the records are. Raises RuntimeError before training has begun."""
        if self._sweep_folder is None:
            raise RuntimeError("Monitor.sweep_folder is known once training has begun")
        return self._sweep_folder

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        chosen = self._sweep_folder or Path(
            f"multirun/monitor-{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(2)}"
        )
        # Every rank has an idea of its own; rank 0's counts.
        self._sweep_folder = Path(trainer.strategy.broadcast(str(chosen.resolve())))
        self._started_at = time.time()
        self._bind_folder(CellFolder(self._sweep_folder / self._name))
        self.device = live_device(trainer.strategy.root_device)
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        devices = gathered(self.device, trainer.world_size)
        pids = gathered(os.getpid(), trainer.world_size)
        if trainer.is_global_zero:
            self._describe(trainer, pl_module, devices)
            self._start_mirror()
        if trainer.local_rank == 0 and self._sample_devices:
            self._sampler = DeviceSampler(
                self.folder,
                {d.uuid: rank for rank, d in enumerate(devices) if d.uuid is not None},
                lambda: dict(enumerate(pids)),
                self._interval_s,
            )
            self._sampler.start()
        super().on_train_start(trainer, pl_module)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        self.close(trainer, pl_module)
        trainer.strategy.barrier("scalewise-monitor")
        if trainer.is_global_zero:
            self._save_result(trainer)
            self._finish_mirror()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        if self._mirror is not None and self._mirror.stdin is not None:
            self._mirror.stdin.close()

    def _bind_folder(self, folder: CellFolder) -> None:
        for part in (self, self.steps, self.metrics, self.shards):
            part.folder = folder

    def _describe(
        self,
        trainer: pl.Trainer,
        module: pl.LightningModule,
        devices: tuple[DeviceInfo, ...],
    ) -> None:
        """Plan, configuration and provenance: what the sweep writes for its own cells."""
        planned = PlannedCell(
            self._name, self._name, self._name, (), repeat=0, devices=trainer.world_size
        )
        SweepFolder(self.sweep_folder).save_plan(
            SweepPlan(time.time(), tuple(sys.argv), 0, (planned,))
        )
        self.folder.save_config(
            {
                "model": {"name": type(module).__name__},
                "dataset": {"name": _dataset_name(trainer)},
                "strategy": {"name": type(trainer.strategy).__name__},
                "hardware": {"name": "auto"},
                "optimizer": {"name": _optimizer_name(trainer)},
                "precision": {"name": str(trainer.precision)},
                "execution": {"name": "eager"},
                "max_steps": trainer.max_steps,
                "max_epochs": trainer.max_epochs,
                "warmup_steps": self.steps.warmup_steps,
                "tracking": {"name": "monitor", "trackers": list(self._trackers)},
            }
        )
        try:
            with open_nvml() as nvml:
                driver, topology = nvml.driver_version(), _links(nvml, devices)
        except NvmlUnavailable:
            driver, topology = None, {}
        self.folder.save_provenance(collect(devices, driver, topology))

    def _save_result(self, trainer: pl.Trainer) -> None:
        ranks: tuple[RankSummary, ...] = tuple(
            self.folder.load_rank(rank) for rank in range(trainer.world_size)
        )
        steps = max(1, ranks[0].steps_completed)
        per_device = round(ranks[0].samples_fed / steps)
        self.folder.save_result(
            CellResult(
                cell_id=self._name,
                config_id=self._name,
                name=self._name,
                repeat=0,
                attempt=1,
                started_at=self._started_at,
                finished_at=time.time(),
                world_size=trainer.world_size,
                strategy=type(trainer.strategy).__name__,
                # Lightning's batch is per process, whatever the number of processes.
                scaling="weak",
                global_batch_size=per_device * trainer.world_size,
                per_device_batch_size=per_device,
                objective=None,
                co_tenants=(),
                ranks=ranks,
            )
        )

    def _start_mirror(self) -> None:
        if self._trackers:
            self._mirror = subprocess.Popen(
                # -P: a queue.py where the user stands must not replace the library's.
                [sys.executable, "-P", "-m", "scalewise.tracking.mirror", str(self.sweep_folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _finish_mirror(self) -> None:
        if self._mirror is None or self._mirror.stdin is None:
            return
        try:
            self._mirror.communicate(b"finish\n", timeout=_MIRROR_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._mirror.kill()
            self._mirror.wait()
            rank_zero_warn(f"not everything of {self.sweep_folder} reached the trackers in time")


def live_device(device: torch.device) -> DeviceInfo:
    """The device this process computes on, with the GPU's UUID where it has one."""
    cores = usable_cores()
    if device.type != "cuda":
        return DeviceInfo("cpu", processor_name(), cores=cores)
    properties = torch.cuda.get_device_properties(device)
    uuid = f"GPU-{properties.uuid}"
    total_mib = properties.total_memory / 2**20
    try:
        with open_nvml() as nvml:
            index = next((d.index for d in nvml.all_devices() if d.uuid == uuid), None)
    except NvmlUnavailable:
        index = None
    return DeviceInfo("cuda", properties.name, uuid, index, cores, total_mib)


def gathered(value: Any, world_size: int) -> tuple[Any, ...]:
    """``value`` of every rank, in the order of ranks."""
    if world_size == 1:
        return (value,)
    values: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(values, value)
    return tuple(values)


def _links(nvml: Nvml, devices: Sequence[DeviceInfo]) -> dict[str, str]:
    uuids = {d.uuid for d in devices}
    gpus: list[GpuDevice] = [gpu for gpu in nvml.all_devices() if gpu.uuid in uuids]
    return nvml.link_matrix(gpus)


def _dataset_name(trainer: pl.Trainer) -> str:
    dataset = getattr(trainer.train_dataloader, "dataset", None)
    return (
        type(dataset).__name__ if dataset is not None else type(trainer.train_dataloader).__name__
    )


def _optimizer_name(trainer: pl.Trainer) -> str:
    return "+".join(type(o).__name__ for o in trainer.optimizers) or "none"

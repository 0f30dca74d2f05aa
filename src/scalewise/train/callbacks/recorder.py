"""All records of one rank of a cell."""

from __future__ import annotations

import math
import os
import resource
from typing import Any

import pytorch_lightning as pl
import torch

from scalewise.measure.run_queue import RunQueue
from scalewise.records import CellFolder, DeviceInfo, HeartbeatWriter, RankSummary
from scalewise.train.callbacks.background import BackgroundDrain
from scalewise.train.callbacks.metrics import MetricsRecorder
from scalewise.train.callbacks.shards import ShardAudit
from scalewise.train.callbacks.steps import StepTimer


class CellRecorder(pl.Callback):
    """Step times, metrics, shards, heartbeat and summary of this rank, as one callback.

    Hooks are passed on to its parts in their order, so that the step clock comes first. Call
    :meth:`close` when everything that belongs to the cell has run.

    Args:
        folder: the cell's folder, the same for all ranks.
        device: what this rank runs on.
        warmup_steps: first steps, excluded from every timing.
        log_every_n_steps: how often the loss is read.
    """

    def __init__(
        self,
        folder: CellFolder,
        device: DeviceInfo,
        warmup_steps: int = 0,
        log_every_n_steps: int = 10,
    ) -> None:
        self.folder = folder
        self.device = device
        self.steps = StepTimer(folder, warmup_steps)
        self.metrics = MetricsRecorder(folder, self.steps, log_every_n_steps)
        self.shards = ShardAudit(folder, self.steps)
        self._run_queue = RunQueue()
        self._run_queue_ms: float | None = None
        self._heartbeat: HeartbeatWriter | None = None
        self._background: BackgroundDrain | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.steps.setup(trainer, pl_module, stage)
        self.shards.setup(trainer, pl_module, stage)
        if self._heartbeat is None:
            self._heartbeat = HeartbeatWriter(self.folder.heartbeat_path(trainer.global_rank))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.metrics.on_train_start(trainer, pl_module)
        self.steps.on_train_start(trainer, pl_module)
        self._background = BackgroundDrain([self.steps.drain, self.metrics.drain])
        assert self._heartbeat is not None
        self._heartbeat.begin(planned_steps(trainer))
        self._run_queue.begin(0)

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        self.steps.on_before_backward(trainer, pl_module, loss)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.steps.on_after_backward(trainer, pl_module)

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.steps.on_before_optimizer_step(trainer, pl_module, optimizer)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert self._heartbeat is not None and self._background is not None
        self.steps.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self.metrics.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self._heartbeat.beat(self.steps.steps, self.steps.samples)
        self._background.check()
        if self.steps.steps == self.steps.warmup_steps:
            self._run_queue.begin(self.steps.steps)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.shards.on_train_epoch_end(trainer, pl_module)
        self.metrics.on_train_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._run_queue_ms = self._run_queue.ms_per_step(self.steps.steps)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.metrics.on_validation_end(trainer, pl_module)
        self.steps.on_validation_end(trainer, pl_module)
        if self._heartbeat is not None:
            self._heartbeat.beat(self.steps.steps, self.steps.samples)

    def on_validation_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        # Scoring is progress too: without a beat a long validation would look like a hang.
        if self._heartbeat is not None:
            self._heartbeat.beat(self.steps.steps, self.steps.samples)

    def close(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> RankSummary:
        """Write what is left and the summary of this rank, and return it."""
        if self._background is not None:
            self._background.stop()
        self.metrics.drain(wait=True)
        self.steps.close()
        self.metrics.close()
        self.shards.save(trainer.global_rank)
        summary = self._summarise(trainer, pl_module)
        self.folder.save_rank(summary)
        if self._heartbeat is not None:
            self._heartbeat.close()
        return summary

    def _summarise(self, trainer: pl.Trainer, module: pl.LightningModule) -> RankSummary:
        on_gpu = self.device.kind == "cuda"
        statistics = torch.cuda.memory_stats() if on_gpu else {}
        # ru_maxrss is in KiB on Linux.
        peak_rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        parameters = list(module.parameters())
        return RankSummary(
            rank=trainer.global_rank,
            local_rank=trainer.local_rank,
            pid=os.getpid(),
            device=self.device,
            parameters_total=sum(p.numel() for p in parameters),
            parameters_trainable=sum(p.numel() for p in parameters if p.requires_grad),
            steps_completed=self.steps.steps,
            samples_fed=self.steps.samples,
            epochs_completed=trainer.fit_loop.epoch_progress.current.completed,
            gradient_bytes=self.steps.gradient_bytes,
            gradient_buckets=self.steps.gradient_buckets,
            flops_per_sample=_declared_flops(module),
            peak_allocated_mib=torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
            peak_reserved_mib=torch.cuda.max_memory_reserved() / 2**20 if on_gpu else None,
            allocation_retries=int(statistics.get("num_alloc_retries", 0)) if on_gpu else None,
            peak_rss_mib=peak_rss_kib / 1024,
            metrics=dict(self.metrics.final),
            step_rows=self.steps.rows,
            metric_rows=self.metrics.rows,
            missing=self._missing(),
            run_queue_ms_per_step=self._run_queue_ms,
        )

    def _missing(self) -> dict[str, str]:
        missing = {**self.steps.missing, **self.shards.missing}
        if self._run_queue.missing is not None:
            missing["run_queue_ms_per_step"] = self._run_queue.missing
        return missing


def planned_steps(trainer: pl.Trainer) -> int | None:
    """Optimizer steps this fit means to take; None where nothing bounds it."""
    total = trainer.estimated_stepping_batches
    return int(total) if math.isfinite(total) and total >= 0 else None


def _declared_flops(module: pl.LightningModule) -> float | None:
    for candidate in (module, getattr(module, "network", None)):
        declared = getattr(candidate, "flops_per_sample", None)
        if callable(declared):
            value = declared()
            return None if value is None else float(value)
    return None

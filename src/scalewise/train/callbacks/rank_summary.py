"""What a rank says of itself when its fit has ended, from the live objects and its records."""

from __future__ import annotations

import os
import resource

import pytorch_lightning as pl
import torch

from scalewise.operations.contract import Operation
from scalewise.records import DeviceInfo, RankSummary
from scalewise.train.callbacks.footprint import optimizer_state_bytes
from scalewise.train.callbacks.metrics import MetricsRecorder
from scalewise.train.callbacks.planned_steps import loader_batch_size
from scalewise.train.callbacks.pruning import pruned_share, pruning_state_bytes
from scalewise.train.callbacks.shards import ShardRecorder
from scalewise.train.callbacks.steps import StepTimer
from scalewise.train.float8 import fp8_record


def summarise(
    trainer: pl.Trainer,
    module: pl.LightningModule,
    device: DeviceInfo,
    steps: StepTimer,
    metrics: MetricsRecorder,
    shards: ShardRecorder,
) -> RankSummary:
    """Everything that these know; to be called after the last step and the last metric."""
    on_gpu = device.kind == "cuda"
    statistics = torch.cuda.memory_stats() if on_gpu else {}
    # ru_maxrss is in KiB on Linux.
    peak_rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parameters = list(module.parameters())
    return RankSummary(
        rank=trainer.global_rank,
        local_rank=trainer.local_rank,
        pid=os.getpid(),
        device=device,
        parameters_total=sum(p.numel() for p in parameters),
        parameters_trainable=sum(p.numel() for p in parameters if p.requires_grad),
        steps_completed=steps.steps,
        samples_fed=steps.samples,
        largest_step_samples=steps.largest_samples,
        epochs_completed=trainer.fit_loop.epoch_progress.current.completed,
        gradient_bytes=steps.traffic.bucket_bytes,
        gradient_buckets=steps.traffic.buckets,
        flops_per_sample=_declared_flops(module),
        peak_allocated_mib=torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
        peak_reserved_mib=torch.cuda.max_memory_reserved() / 2**20 if on_gpu else None,
        allocation_retries=int(statistics.get("num_alloc_retries", 0)) if on_gpu else None,
        peak_rss_mib=peak_rss_kib / 1024,
        metrics={**metrics.final, **_counted(module)},
        resumed_at_step=steps.first_step or None,
        steps_without_loss=steps.steps_without_loss,
        loader_batch_size=loader_batch_size(trainer),
        batch_shape=steps.batch_shape,
        step_rows=steps.rows,
        metric_rows=metrics.rows,
        missing={**steps.missing, **shards.missing},
        data_shard=shards.data_shard,
        pipeline=getattr(trainer.strategy, "pipeline_record", None),
        communication=steps.communication(trainer.strategy),
        probed_samples_per_s=getattr(trainer.strategy, "probed_samples_per_s", None),
        optimizer_state_bytes=optimizer_state_bytes(trainer.optimizers),
        pruned_share=pruned_share(trainer.optimizers),
        pruning_state_bytes=pruning_state_bytes(trainer.optimizers),
        fp8=fp8_record(module),
    )


def _counted(module: pl.LightningModule) -> dict[str, float]:
    """What a forward-only operation counted while it ran."""
    network = getattr(module, "network", None)
    return network.counts() if isinstance(network, Operation) else {}


def _declared_flops(module: pl.LightningModule) -> float | None:
    for candidate in (module, getattr(module, "network", None)):
        declared = getattr(candidate, "flops_per_sample", None)
        if callable(declared):
            value = declared()
            return None if value is None else float(value)
    return None

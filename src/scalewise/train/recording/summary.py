"""Summary of a rank whose fit has ended, from the live objects and its records."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scalewise.host import CoreUseMeter, RunQueue
from scalewise.operations import Operation
from scalewise.records import DeviceInfo, RankSummary
from scalewise.train.recording.step_timer import StepTimer

if TYPE_CHECKING:
    import pytorch_lightning as pl

    from scalewise.train.recording.metrics import MetricsRecorder


def optimizer_state_bytes(optimizers: Sequence[torch.optim.Optimizer]) -> int | None:
    """Bytes of every tensor in the optimizers' state that this rank holds.

    Counted on the live optimizers, after the last step. A tensor sharded over ranks counts with
    this rank's part. None where there is no optimizer.
    """
    if not optimizers:
        return None
    held = {
        id(value): value.to_local() if hasattr(value, "to_local") else value
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    }
    return sum(value.numel() * value.element_size() for value in held.values())


def class_names(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """``SGD``, or ``SGD+Adam`` of several; ``none`` where nothing optimizes."""
    classes = [type(optimizer) for optimizer in optimizers]
    # Where a module returns no optimizer, Lightning puts a mock of its own in the place.
    own = [cls.__name__ for cls in classes if not cls.__module__.startswith("pytorch_lightning.")]
    return "+".join(own) or "none"


_FINGERPRINT_CHUNK = 2**18


def parameter_fingerprint(
    parameters: Iterable[Tensor], device: torch.device
) -> tuple[float, float] | None:
    """Norm of the trainable parameters, and their projection on a fixed pseudo-random vector.

    In fp64, a chunk at a time: no copy of the model is made. Waits for the device once. The sum of
    the parameters would not do: softmax keeps that of the last layer, whatever it learns. None
    without any, where one is not finite, and where this rank holds parts of the model.
    """
    learning = [p.detach() for p in parameters if p.requires_grad]
    if not learning or any(p.is_meta or hasattr(p, "to_local") for p in learning):
        return None
    # On the CPU: another model of GPU may draw other numbers.
    seeded = torch.Generator().manual_seed(0)
    vector = torch.randn(_FINGERPRINT_CHUNK, generator=seeded, dtype=torch.float64).to(device)
    squares, projected = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
    for parameter in learning:
        for chunk in torch.split(parameter.reshape(-1), _FINGERPRINT_CHUNK):
            exact = chunk.to(device, torch.float64)
            squares += exact @ exact
            projected += exact @ vector[: len(exact)]
    norm, projection = torch.stack([squares.sqrt(), projected]).tolist()
    return (norm, projection) if math.isfinite(norm) else None


def holds_replica(trainer: pl.Trainer) -> bool:
    """Whether every rank has to end with the same parameters: under DDP, or after local SGD.

    Not where the user's strategy averages models now and then: the last steps may lie behind it.
    """
    from pytorch_lightning.strategies import DDPStrategy

    strategy = trainer.strategy
    return (
        trainer.world_size > 1
        and isinstance(strategy, DDPStrategy)
        and getattr(strategy, "ends_alike", True)
        and getattr(strategy, "_model_averager", None) is None
    )


def loader_batch_size(trainer: pl.Trainer) -> int | None:
    """Samples of a step's batch as this rank's loader says itself, which may hand over several.

    None where it does not say (a list of loaders, a loader without batching, a batch sampler of
    the user's own, whose ``batch_size`` may be the most it gives), and where an epoch has one
    batch, which may be a smaller one.
    """
    loader = trainer.train_dataloader
    sampler: Any = getattr(loader, "batch_sampler", None)
    told = getattr(sampler, "samples_per_step", getattr(loader, "batch_size", None))
    return told if isinstance(told, int) and trainer.num_training_batches > 1 else None


def summarise(
    rank: int, local_rank: int, device: DeviceInfo, steps: StepTimer, logged: MetricsRecorder,
    parameters: Collection[Tensor], optimizers: Sequence[torch.optim.Optimizer], **more: Any,
) -> RankSummary:  # fmt: skip
    """What these tell of a rank after its last step and metric; ``more`` are further fields."""
    return RankSummary(
        rank=rank,
        local_rank=local_rank,
        pid=os.getpid(),
        device=device,
        parameters_total=sum(p.numel() for p in parameters),
        parameters_trainable=sum(p.numel() for p in parameters if p.requires_grad),
        steps_completed=steps.steps,
        samples_fed=steps.samples,
        largest_step_samples=steps.step_samples[0],
        usual_step_samples=steps.step_samples[1],
        gradient_bytes=steps.gradients.bucket_bytes,
        gradient_buckets=steps.gradients.buckets,
        **_gpu_memory(device),
        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,  # KiB on Linux
        batch_shape=steps.batch_shape,
        step_rows=steps.rows,
        metric_rows=logged.rows,
        optimizer_state_bytes=optimizer_state_bytes(optimizers),
        **more,
    )


def host_figures(cores: CoreUseMeter, queue: RunQueue, steps: StepTimer) -> dict[str, Any]:
    """What the meters tell after the last step, by field of the summary; else why they do not."""
    delay_ms, other_threads_ms = queue.ms_per_step(steps.steps)
    core_use = cores.end()
    for name, why in (("run_queue_ms_per_step", queue.missing), ("core_use", cores.missing)):
        if why is not None:
            steps.missing[name] = why
    return {
        "core_use": core_use,
        "run_queue_ms_per_step": delay_ms,
        "other_threads_cpu_ms_per_step": other_threads_ms,
    }


def _gpu_memory(device: DeviceInfo) -> dict[str, Any]:
    """What torch's allocator says of this rank's GPU, by field of the summary; None on a CPU."""
    if device.kind != "cuda":
        return dict.fromkeys(("peak_allocated_mib", "peak_reserved_mib", "allocation_retries"))
    return {
        "peak_allocated_mib": torch.cuda.max_memory_allocated() / 2**20,
        "peak_reserved_mib": torch.cuda.max_memory_reserved() / 2**20,
        "allocation_retries": int(torch.cuda.memory_stats().get("num_alloc_retries", 0)),
    }


def counted(module: pl.LightningModule) -> dict[str, float]:
    """Counts that a forward-only operation kept while it ran."""
    network = getattr(module, "network", None)
    return network.counts() if isinstance(network, Operation) else {}


def declared_flops(module: pl.LightningModule) -> float | None:
    for candidate in (module, getattr(module, "network", None)):
        declared = getattr(candidate, "flops_per_sample", None)
        if callable(declared):
            value = declared()
            return None if value is None else float(value)
    return None

"""Strategies whose ranks hold the whole model.

DDP on the stream that training runs on sends gradients whole, compressed, or weighted. Replicas
without DDP around them send nothing while gradients are computed.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from scalewise.config import (
    CellConfig,
    DdpConfig,
    HeterogeneousConfig,
    LocalSgdConfig,
    ProcessGroupConfig,
)
from scalewise.records import CommunicationRecord
from scalewise.train.rank import RankContext
from scalewise.train.recording import BatchSizes, GradientHook
from scalewise.train.torch_internals import GradBucket, copy_all


@dataclass(frozen=True)
class Setting:
    rank: RankContext
    module: pl.LightningModule
    """As it was built, before any device has it."""
    cell: CellConfig


def group_arguments(config: ProcessGroupConfig, setting: Setting) -> dict[str, Any]:
    """Lightning's arguments for the process group: backend and ``sweep.collective_timeout_s``.

    Raises ValueError for NCCL without GPUs.
    """
    return {
        "process_group_backend": config.backend_for(setting.rank.device.kind),
        "timeout": timedelta(seconds=setting.cell.sweep.collective_timeout_s),
    }


class OwnStreamDDP(DDPStrategy):
    """Lightning's DDP strategy, built on the stream that training runs on.

    Lightning wraps the module on a side stream; torch then warns that gradients are accumulated
    on another stream than they are produced on, and synchronises the two in every backward.
    """

    def __init__(self, config: DdpConfig, setting: Setting) -> None:
        # Batch statistics differ from rank to rank; any other buffer is a constant, alike on all.
        statistics = any(isinstance(part, _BatchNorm) for part in setting.module.modules())
        # torch 2.12 renamed the argument.
        named = inspect.signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in named else "broadcast_buffers"
        buffers: dict[str, Any] = {name: statistics}
        super().__init__(
            **group_arguments(config, setting),
            bucket_cap_mb=config.bucket_cap_mb,
            static_graph=config.static_graph,
            gradient_as_bucket_view=config.gradient_as_bucket_view,
            find_unused_parameters=config.find_unused_parameters,
            **buffers,
        )
        self.gradient_hook = compressing_hook(config)
        """How gradients are sent; the step timer registers it, because DDP takes one hook."""
        self._syncs_every_batch = not config.no_sync
        self._reduced_once = False

    def configure_ddp(self) -> None:
        assert self.model is not None
        # What has no gradients needs no reduction, and torch refuses to wrap it.
        if any(parameter.requires_grad for parameter in self.model.parameters()):
            super().configure_ddp()

    def _setup_model(self, model: Module) -> DistributedDataParallel:
        device_ids = self.determine_ddp_device_ids()
        return DistributedDataParallel(module=model, device_ids=device_ids, **self._ddp_kwargs)

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        # A static graph is learnt in the first backward, which has to reduce: averaging the
        # first batch's gradients at once leaves the average of all of them the same.
        learns = not self._reduced_once and self._ddp_kwargs["static_graph"]
        self._reduced_once = True
        if self._syncs_every_batch or learns:
            yield
        else:
            with super().block_backward_sync():
                yield


def compressing_hook(config: DdpConfig) -> GradientHook | None:
    """The hook that sends gradients in fewer bytes; None where they are sent as they are.

    ``fp16`` and ``bf16`` round each gradient before the all-reduce, which also sums in that format.
    ``powersgd`` sends a matrix of gradients as two thin ones of rank ``powersgd_rank`` and adds
    what was lost to the next step's gradients (Vogels et al. 2019, arXiv:1905.13727).
    """
    if config.compression == "none":
        return None
    if config.compression == "powersgd":
        return _powersgd(config.powersgd_rank, config.powersgd_start_step)
    hook = default_hooks.fp16_compress_hook
    if config.compression == "bf16":
        hook = default_hooks.bf16_compress_hook
    return GradientHook(hook, None, lambda bucket: 2 * bucket.buffer().numel())


def _powersgd(rank: int, start_step: int) -> GradientHook:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
        PowerSGDState,
        powerSGD_hook,
    )

    state = PowerSGDState(
        process_group=None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=start_step,
        # 0 is torch's default and divides by zero for a gradient that is zero in every entry.
        orthogonalization_epsilon=1e-8,
    )
    sent = 0

    def payload_bytes(bucket: GradBucket) -> int:
        nonlocal sent
        before, sent = sent, state.total_numel_after_compression
        buffer = bucket.buffer()
        # The first steps are all-reduced whole, and torch counts them as nothing.
        return int(sent - before if sent > before else buffer.numel()) * buffer.element_size()

    return GradientHook(powerSGD_hook, state, payload_bytes)


class HeterogeneousDDP(OwnStreamDDP):
    """DDP whose gradients are weighted by the shares of the batch."""

    def __init__(self, config: HeterogeneousConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        sizes = BatchSizes(setting.cell.shard_batch_sizes(setting.rank.world_size))
        self.gradient_hook = weighted_hook(sizes, setting.rank.rank)


def weighted_hook(sizes: BatchSizes, rank: int) -> GradientHook:
    """Adds up gradients weighted by the ranks' shares of the batch."""

    def reduce(state: BatchSizes, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = torch.distributed.all_reduce(bucket.buffer().mul_(state.share(rank)), async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(
            lambda done: done.value()[0]
        )
        return future

    return GradientHook(reduce, sizes, lambda bucket: bucket.buffer().nbytes)


class UnwrappedReplicas(DDPStrategy):
    """The bare module on each rank; the ranks send nothing to one another while they train."""

    ends_alike = False
    """Whether every rank has the same parameters after training."""

    def __init__(self, config: ProcessGroupConfig, setting: Setting) -> None:
        super().__init__(**group_arguments(config, setting))

    def configure_ddp(self) -> None:
        """Wrap nothing."""

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        yield  # there is no reduction in a backward that could be put off

    def communication(self, timed_steps: int) -> CommunicationRecord | None:
        """Payloads of the last ``timed_steps`` optimizer steps; None where nothing was sent."""
        return None


class _Averaging(NamedTuple):
    step: int
    payload_bytes: int
    begin: Any
    """Seconds of the host's clock, or an event of a GPU, not waited for before training is over."""
    end: Any

    def milliseconds(self) -> float:
        if isinstance(self.begin, float):
            return float(self.end - self.begin) * 1e3
        self.end.synchronize()
        return float(self.begin.elapsed_time(self.end))


def _moment(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class LocalSgd(UnwrappedReplicas):
    """Parameters (and floating-point buffers) are averaged every ``period`` optimizer steps.

    What is scored is the mean of the replicas: during training each of them goes on from its
    own parameters afterwards, at the end all keep the mean.
    """

    ends_alike = True

    def __init__(self, config: LocalSgdConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.period = config.period
        self._steps = 0
        self._averagings: list[_Averaging] = []
        self._own: list[Tensor] | None = None

    def configure_ddp(self) -> None:
        # Alike at the start, as DDP makes them.
        for tensor in _averaged(self.lightning_module):
            torch.distributed.broadcast(tensor, src=0)

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        super().setup_optimizers(trainer)
        # The last of several steps last, and with it the step is over.
        self.optimizers[-1].register_step_post_hook(self._after_step)

    def _after_step(self, *_: Any) -> None:
        self._steps += 1
        if self._steps % self.period == 0:
            begin = _moment(self.root_device)
            payload = average(_averaged(self.lightning_module), self.world_size)
            end = _moment(self.root_device)
            self._averagings.append(_Averaging(self._steps, payload, begin, end))

    def on_validation_start(self) -> None:
        tensors = _averaged(self.lightning_module)
        self._own = [tensor.clone() for tensor in tensors]
        average(tensors, self.world_size)

    def on_validation_end(self) -> None:
        if self._own is not None:
            copy_all(_averaged(self.lightning_module), self._own)
            self._own = None

    def on_train_end(self) -> None:
        average(_averaged(self.lightning_module), self.world_size)

    def communication(self, timed_steps: int) -> CommunicationRecord | None:
        timed = [a for a in self._averagings if a.step > self._steps - timed_steps]
        if not timed:
            return None
        return CommunicationRecord(
            what="parameters",
            rounds_per_step=len(timed) / timed_steps,
            payload_bytes_per_step=sum(a.payload_bytes for a in timed) / timed_steps,
            ms_per_step=sum(a.milliseconds() for a in timed) / timed_steps,
        )


def average(tensors: Sequence[Tensor], world_size: int) -> int:
    """Replace each tensor by its mean over the ranks, in one all-reduce for each dtype.

    Returns the bytes handed to the collectives.
    """
    payload = 0
    with torch.no_grad():
        by_dtype = sorted(tensors, key=lambda t: str(t.dtype))
        for _, of_dtype in itertools.groupby(by_dtype, key=lambda t: t.dtype):
            alike = list(of_dtype)
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            torch.distributed.all_reduce(flat)
            flat.div_(world_size)
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            copy_all(alike, [part.view_as(t) for part, t in zip(parts, alike, strict=True)])
            payload += flat.nbytes
    return payload


def _averaged(module: Any) -> list[Tensor]:
    """Tensors that are averaged over the ranks: trained parameters, and statistics of batches."""
    parameters = [p.detach() for p in module.parameters() if p.requires_grad]
    return parameters + [b for b in module.buffers() if b.is_floating_point()]

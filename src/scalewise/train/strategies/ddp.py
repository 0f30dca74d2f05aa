"""Gradients sent in fewer bytes than they are computed in: torch's own communication hooks."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from scalewise.config import (
    Compression,
    DdpConfig,
    HeterogeneousConfig,
    ProcessGroupConfig,
    whole_samples,
)

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from pytorch_lightning.strategies import DDPStrategy
    from torch._C._distributed_c10d import GradBucket

    from scalewise.train.recording import BatchSizes, GradientHook
    from scalewise.train.strategies.registry import Setting


def compressing_hook(
    compression: Compression, powersgd_rank: int, powersgd_start_step: int
) -> GradientHook | None:
    """The hook that sends gradients so; None where they are sent as they are.

    ``fp16`` and ``bf16`` round each gradient before the all-reduce, which also sums in that format.
    ``powersgd`` sends a matrix of gradients as two thin ones of rank ``powersgd_rank`` and adds
    what was lost to the next step's gradients (Vogels et al. 2019, arXiv:1905.13727).
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    from scalewise.train.recording import GradientHook

    if compression == "none":
        return None
    if compression == "powersgd":
        return _powersgd(powersgd_rank, powersgd_start_step)
    hook = default_hooks.fp16_compress_hook
    if compression == "bf16":
        hook = default_hooks.bf16_compress_hook
    return GradientHook(hook, None, lambda bucket: 2 * bucket.buffer().numel())


def _powersgd(rank: int, start_step: int) -> GradientHook:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
        PowerSGDState,
        powerSGD_hook,
    )

    from scalewise.train.recording import GradientHook

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
        elements = sent - before if sent > before else buffer.numel()
        return int(elements) * buffer.element_size()

    return GradientHook(powerSGD_hook, state, payload_bytes)


def group_arguments(config: ProcessGroupConfig, setting: Setting) -> dict[str, Any]:
    """What Lightning makes the process group with: backend and ``sweep.collective_timeout_s``.

    Raises ValueError for NCCL without GPUs.
    """
    return {
        "process_group_backend": config.backend_for(setting.device_kind),
        "timeout": timedelta(seconds=setting.cell.sweep.collective_timeout_s),
    }


def build_ddp(config: DdpConfig, setting: Setting) -> DDPStrategy:
    """Lightning's DDP on the stream that training runs on."""
    strategy = own_stream_ddp()(**ddp_arguments(config, setting))
    strategy.gradient_hook = compressing_hook(
        config.compression, config.powersgd_rank, config.powersgd_start_step
    )
    strategy.syncs_every_batch = not config.no_sync
    built: DDPStrategy = strategy
    return built


def ddp_arguments(config: DdpConfig, setting: Setting) -> dict[str, Any]:
    """What Lightning's strategy and torch's ``DistributedDataParallel`` are built with.

    Buffers are sent around before each forward only where there are batch statistics: any
    other buffer is a constant, alike on all ranks.
    """
    return {
        **group_arguments(config, setting),
        "bucket_cap_mb": config.bucket_cap_mb,
        "static_graph": config.static_graph,
        "gradient_as_bucket_view": config.gradient_as_bucket_view,
        "find_unused_parameters": config.find_unused_parameters,
        _buffers_argument(): has_batch_norm(setting.module),
    }


def has_batch_norm(module: pl.LightningModule) -> bool:
    """Whether the module keeps batch statistics, which differ from rank to rank."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(part, _BatchNorm) for part in module.modules())


def _buffers_argument() -> str:
    """What this torch calls "send buffers before each forward": 2.12 renamed it."""
    from torch.nn.parallel import DistributedDataParallel

    known = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"


@functools.cache
def own_stream_ddp() -> type[Any]:
    """Lightning's DDP strategy, built on the stream that training runs on.

    Lightning wraps the module on a side stream; torch then warns that gradients are accumulated
    on another stream than they are produced on, and synchronises the two in every backward.
    """
    from pytorch_lightning.strategies import DDPStrategy
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel

    class OwnStreamDDP(DDPStrategy):
        gradient_hook: GradientHook | None = None
        """How gradients are sent; the step clock registers it, because DDP takes one hook."""
        syncs_every_batch = False
        """Reduce gradients in batches after which no optimizer steps, too."""
        probed_samples_per_s: float | None = None
        """How fast this device was found to be, where batches are shared out by that."""
        _reduced_once = False

        def configure_ddp(self) -> None:
            assert self.model is not None
            # What has no gradients needs no reduction, and torch refuses to wrap it.
            if any(parameter.requires_grad for parameter in self.model.parameters()):
                super().configure_ddp()

        before_wrapping: Callable[[], None] | None = None
        """Called once, when the module is on its device and DDP does not listen to it yet."""

        def _setup_model(self, model: Module) -> DistributedDataParallel:
            if self.before_wrapping is not None:
                self.before_wrapping()
            device_ids = self.determine_ddp_device_ids()
            return DistributedDataParallel(module=model, device_ids=device_ids, **self._ddp_kwargs)

        @contextlib.contextmanager
        def block_backward_sync(self) -> Iterator[None]:
            # A static graph is learnt in the first backward, which has to reduce: averaging the
            # first batch's gradients at once leaves the average of all of them the same.
            learns = not self._reduced_once and self._ddp_kwargs["static_graph"]
            self._reduced_once = True
            if self.syncs_every_batch or learns:
                yield
            else:
                with super().block_backward_sync():
                    yield

    return OwnStreamDDP


_PROBE_WARMUP = 3


_PROBE_STEPS = 10


def build_heterogeneous(config: HeterogeneousConfig, setting: Setting) -> DDPStrategy:
    """DDP whose gradients are weighted by the shares, measured first where they are ``auto``."""
    strategy: Any = own_stream_ddp()(**ddp_arguments(config, setting))
    strategy.gradient_hook = weighted_hook(setting.batch_sizes, setting.rank)
    strategy.syncs_every_batch = not config.no_sync
    if config.shares == "auto":
        strategy.before_wrapping = lambda: settle_shares(strategy, setting)
    built: DDPStrategy = strategy
    return built


def weighted_hook(sizes: BatchSizes, rank: int) -> Any:
    """Adds up gradients weighted by the ranks' shares of the batch."""
    import torch

    from scalewise.train.recording import GradientHook

    def reduce(state: BatchSizes, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().mul_(state.share(rank))
        work = torch.distributed.all_reduce(buffer, async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(
            lambda done: done.value()[0]
        )
        return future

    return GradientHook(reduce, sizes, lambda bucket: bucket.buffer().nbytes)


def settle_shares(strategy: Any, setting: Setting) -> None:
    """Measure every device on its own, and share out the batch in proportion."""
    import torch

    own = probe_samples_per_s(strategy, setting)
    strategy.probed_samples_per_s = own
    speeds = torch.zeros(setting.world_size, dtype=torch.float64, device=strategy.root_device)
    speeds[setting.rank] = own
    torch.distributed.all_reduce(speeds)
    sizes = setting.batch_sizes
    sizes.settle(whole_samples(sizes.total, speeds.tolist()))


def probe_samples_per_s(strategy: Any, setting: Setting) -> float:
    """Samples/s of forward and backward on this device alone, on an equal share of a batch.

    Nothing of the module changes: gradients are dropped, buffers and random numbers restored.
    """
    import torch

    module, device = setting.module, strategy.root_device
    batch = strategy.batch_to_device(setting.sample_batch(setting.batch_sizes[setting.rank]))
    kept = [buffer.clone() for buffer in module.buffers()]
    devices = [device] if device.type == "cuda" else []

    def run(steps: int) -> float:
        begin = time.perf_counter()
        for step in range(steps):
            with strategy.precision_plugin.forward_context():
                output: Any = module.training_step(batch, step)
            (output["loss"] if isinstance(output, Mapping) else output).backward()
            module.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    with torch.random.fork_rng(devices):
        run(_PROBE_WARMUP)
        seconds = run(_PROBE_STEPS)
    if kept:
        torch._foreach_copy_(list(module.buffers()), kept)
    return _PROBE_STEPS * setting.batch_sizes[setting.rank] / seconds

"""Data parallelism over unlike devices: each gets a share of every batch as large as it is fast.

A device's gradient is the mean over its own samples. Weighted by its share of the batch before
they are added up, the gradients of all devices are the mean over all samples: what one device
would compute.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from scalewise.train.strategies.ddp import DdpConfig, ddp_arguments, own_stream_ddp

if TYPE_CHECKING:
    import torch
    from pytorch_lightning.strategies import DDPStrategy
    from torch._C._distributed_c10d import GradBucket

    from scalewise.train.batch_sizes import BatchSizes
    from scalewise.train.strategies.base import Setting

_SUM_TOLERANCE = 1e-3
_PROBE_WARMUP = 3
_PROBE_STEPS = 10


@dataclass(frozen=True)
class HeterogeneousConfig(DdpConfig):
    """``strategy=heterogeneous``, with all settings of DDP but those that compress gradients."""

    KIND: ClassVar[str] = "heterogeneous"
    UNEVEN: ClassVar[bool] = True
    EXECUTIONS: ClassVar[tuple[str, ...] | None] = ("eager", "compile")

    shares: Literal["auto"] | tuple[float, ...] = "auto"
    """Share of each batch, one a rank, adding up to 1; ``auto``: measured before training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compression != "none":
            raise ValueError(
                f"compression: found {self.compression} with strategy={self.name}, which sends "
                "weighted gradients; allowed: none"
            )
        if self.shares == "auto":
            return
        if min(self.shares, default=0.0) <= 0 or abs(sum(self.shares) - 1) > _SUM_TOLERANCE:
            raise ValueError(
                f"shares: found {list(self.shares)}; allowed: one above 0 for each device, "
                "adding up to 1, or auto"
            )
        if self.devices not in ("auto", len(self.shares)):
            raise ValueError(
                f"shares: found {len(self.shares)} with devices={self.devices}; allowed: one for "
                "each device, or auto"
            )

    def check_world(self, world_size: int) -> None:
        super().check_world(world_size)
        if self.shares != "auto" and len(self.shares) != world_size:
            raise ValueError(
                f"strategy.shares: found {len(self.shares)} on {world_size} devices; allowed: one "
                "for each device, or auto"
            )

    def share_out(self, batch_size: int, world_size: int) -> tuple[int, ...]:
        """Equal shares where they are still to be measured."""
        shares = (1.0,) * world_size if self.shares == "auto" else self.shares
        return whole_samples(batch_size, shares)


def whole_samples(batch_size: int, weights: Sequence[float]) -> tuple[int, ...]:
    """``batch_size`` in proportion to ``weights``, by largest remainder, one for each at least.

    Raises ValueError for fewer samples than weights.
    """
    if batch_size < len(weights):
        raise ValueError(
            f"batch_size: found {batch_size} on {len(weights)} devices; allowed: "
            f"{len(weights)} or more, one sample for each"
        )
    exact = [batch_size * weight / sum(weights) for weight in weights]
    sizes = [max(1, int(one)) for one in exact]
    # Who got least of what it should have comes first; who got most gives back first.
    while sum(sizes) < batch_size:
        sizes[max(range(len(sizes)), key=lambda i: exact[i] - sizes[i])] += 1
    while sum(sizes) > batch_size:
        large = [i for i in range(len(sizes)) if sizes[i] > 1]
        sizes[min(large, key=lambda i: exact[i] - sizes[i])] -= 1
    return tuple(sizes)


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

    from scalewise.train.callbacks.traffic import GradientHook

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

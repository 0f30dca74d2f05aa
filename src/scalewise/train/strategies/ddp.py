"""Distributed data parallel: a replica on each device, gradients averaged every step."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from scalewise.train.strategies.compression import (
    FEWEST_POWERSGD_STEPS,
    Compression,
    compressing_hook,
)
from scalewise.train.strategies.process_group import ProcessGroupConfig, group_arguments

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from pytorch_lightning.strategies import DDPStrategy

    from scalewise.config import CellConfig
    from scalewise.train.callbacks.traffic import GradientHook
    from scalewise.train.strategies.base import Setting


@dataclass(frozen=True)
class DdpConfig(ProcessGroupConfig):
    """``strategy=ddp``."""

    KIND: ClassVar[str] = "ddp"

    bucket_cap_mb: PositiveInt = 25
    """Size at which DDP starts to reduce gathered gradients, in MiB."""
    static_graph: bool = False
    """Promise that every step uses the same parameters in the same order."""
    gradient_as_bucket_view: bool = True
    """Let gradients be views into the buckets, which saves one copy of them."""
    find_unused_parameters: bool = False
    """Search the graph for parameters without gradient before each reduction."""

    no_sync: bool = True
    """With ``accumulate_grad_batches``: reduce gradients in a step's last batch only."""
    compression: Compression = "none"
    """How gradients are sent: none | fp16 | bf16 | powersgd."""
    powersgd_rank: PositiveInt = 1
    """Rank of the matrices that ``compression=powersgd`` sends in place of gradients."""
    powersgd_start_step: Annotated[int, Field(ge=FEWEST_POWERSGD_STEPS)] = 10
    """Reductions that are sent whole before ``compression=powersgd`` begins: DDP rebuilds its
    buckets in the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.static_graph and self.find_unused_parameters:
            raise ValueError(
                "find_unused_parameters: found true with static_graph=true, which finds them once "
                "for all steps; allowed: false"
            )

    def check(self, cell: CellConfig) -> None:
        super().check(cell)
        if self.compression != "none" and cell.execution.kind == "cudagraph":
            raise ValueError(
                f"strategy.compression: found {self.compression} with execution="
                f"{cell.execution.name}; allowed: none (or execution=eager)"
            )


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

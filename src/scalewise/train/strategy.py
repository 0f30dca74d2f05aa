"""How the devices of a cell work together."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pytorch_lightning.strategies import DDPStrategy, Strategy
    from torch.nn import Module


@dataclass(frozen=True)
class StrategyConfig:
    """The config group ``strategy``."""

    name: str
    kind: Literal["single", "ddp"]
    devices: int | Literal["auto"] = "auto"
    """Processes, one a device; ``auto`` is all of the host, and needs two."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """``auto``: NCCL on GPUs, gloo on CPUs."""
    bucket_cap_mb: int = 25
    """Size at which DDP starts to reduce gathered gradients, in MiB."""
    static_graph: bool = False
    """Promise that every step uses the same parameters in the same order."""
    gradient_as_bucket_view: bool = True
    """Let gradients be views into the buckets, which saves one copy of them."""
    find_unused_parameters: bool = False
    """Search the graph for parameters without gradient before each reduction."""

    def __post_init__(self) -> None:
        if self.kind == "single" and self.devices != 1:
            raise ValueError(
                f"devices: found {self.devices} with strategy=single; allowed: 1, "
                "or strategy=ddp for more"
            )
        if self.kind == "ddp" and self.devices != "auto" and self.devices < 2:
            raise ValueError(
                f"devices: found {self.devices} with strategy=ddp; allowed: 2 or more, or auto "
                "(strategy=single for one)"
            )
        if self.bucket_cap_mb < 1:
            raise ValueError(f"bucket_cap_mb: found {self.bucket_cap_mb}; allowed: 1 or more")

    def backend_for(self, device_kind: Literal["cuda", "cpu"]) -> Literal["nccl", "gloo"]:
        """The process-group backend on devices of that kind.

        Raises ValueError for NCCL without GPUs.
        """
        if self.backend == "auto":
            return "nccl" if device_kind == "cuda" else "gloo"
        if self.backend == "nccl" and device_kind == "cpu":
            raise ValueError("strategy.backend: found nccl on a CPU host; allowed: gloo or auto")
        return self.backend


def build_strategy(
    config: StrategyConfig, device_kind: Literal["cuda", "cpu"], has_batch_norm: bool
) -> Strategy | str:
    """Lightning's strategy for this configuration; ``auto`` for a single device.

    Buffers are sent around before each forward only where there are batch statistics: any other
    buffer is a constant, alike on all ranks.
    """
    if config.kind == "single":
        return "auto"
    arguments: dict[str, Any] = {
        "process_group_backend": config.backend_for(device_kind),
        "bucket_cap_mb": config.bucket_cap_mb,
        "static_graph": config.static_graph,
        "gradient_as_bucket_view": config.gradient_as_bucket_view,
        "find_unused_parameters": config.find_unused_parameters,
        _buffers_argument(): has_batch_norm,
    }
    return _own_stream_ddp()(**arguments)


def _buffers_argument() -> str:
    """What this torch calls "send buffers before each forward": 2.12 renamed it."""
    from torch.nn.parallel import DistributedDataParallel

    known = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"


def _own_stream_ddp() -> type[DDPStrategy]:
    """Lightning's DDP strategy, built on the stream that training runs on.

    Lightning wraps the module on a side stream; torch then warns that gradients are accumulated
    on another stream than they are produced on, and synchronises the two in every backward.
    """
    from pytorch_lightning.strategies import DDPStrategy
    from torch.nn.parallel import DistributedDataParallel

    class OwnStreamDDP(DDPStrategy):
        def _setup_model(self, model: Module) -> DistributedDataParallel:
            device_ids = self.determine_ddp_device_ids()
            return DistributedDataParallel(module=model, device_ids=device_ids, **self._ddp_kwargs)

    return OwnStreamDDP

"""Fully sharded data parallel (FSDP2): parameters, gradients and optimizer state in parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from scalewise.train.strategies.divided import DividedConfig

if TYPE_CHECKING:
    from pytorch_lightning.strategies import Strategy

    from scalewise.config import CellConfig
    from scalewise.train.strategies.base import Setting


@dataclass(frozen=True)
class FsdpConfig(DividedConfig):
    """``strategy=fsdp``: each rank feeds samples of its own, as under DDP, and gathers the
    parameters of a layer when it needs them."""

    KIND: ClassVar[str] = "fsdp"
    SCORES_TOGETHER: ClassVar[bool] = True
    UNFIT_OPTIMIZERS: ClassVar[Mapping[str, str]] = {
        "adafactor": "its row and column means are taken over a matrix that is spread over ranks",
    }

    sharding: Literal["full", "grad_op", "hybrid"] = "full"
    """``full`` frees a layer's gathered parameters after its forward and gathers them again for
    backward (ZeRO-3). ``grad_op`` keeps them from forward to backward (ZeRO-2): less
    communication, more memory. ``hybrid`` shards within groups of ``shard_size`` devices and
    replicates over the groups (HSDP): put the groups where the links are fast."""
    shard_size: Annotated[int, Field(ge=2)] | None = None
    """Devices of one group; needed by ``hybrid``, and by nothing else."""
    units: Literal["layers", "whole"] = "layers"
    """What is gathered at a time: each element of the model's module lists, or all at once."""
    gather_dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format in which parameters travel and forward and backward see them. ``auto``: bf16
    with precision=bf16-mixed, fp32 else. The optimizer always works on fp32 parts."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Number format in which gradients are summed over the devices."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in the host's memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.sharding == "hybrid") != (self.shard_size is not None):
            needed = "2 or more devices a group" if self.sharding == "hybrid" else "null"
            raise ValueError(
                f"shard_size: found {'null' if self.shard_size is None else self.shard_size} with "
                f"sharding={self.sharding}; allowed: {needed}"
            )

    def check(self, cell: CellConfig) -> None:
        """See :meth:`StrategyConfig.check`."""
        super().check(cell)
        if self.gather_dtype == "bf16" and cell.precision.lightning != "bf16-mixed":
            raise ValueError(
                f"strategy.gather_dtype: found bf16 with precision={cell.precision.name}; "
                "allowed: auto or fp32, or precision=bf16-mixed"
            )

    def check_world(self, world_size: int) -> None:
        """Groups must come out even, and there must be two of them to be called hybrid."""
        super().check_world(world_size)
        if self.shard_size is not None and (
            world_size % self.shard_size or world_size == self.shard_size
        ):
            raise ValueError(
                f"strategy.shard_size: found {self.shard_size} on {world_size} devices; allowed: "
                "a divisor of the number of devices below it (sharding=full for one group)"
            )

    def _check_model(self, target: str) -> None:
        if target.startswith("scalewise.models.recurrent."):
            raise ValueError(
                f"model: found {target.rpartition('.')[2]} with strategy={self.name}; allowed: a "
                "model without torch's LSTM or GRU, whose fused kernels keep the unsharded weights"
            )


def build_fsdp(config: FsdpConfig, setting: Setting) -> Strategy:
    """Lightning's process group and our sharding.

    Raises ValueError for a model or a host that cannot do it.
    """
    from scalewise.train.parallel.fsdp import FsdpStrategy

    if config.cpu_offload and setting.device_kind == "cpu":
        raise ValueError("strategy.cpu_offload: found true on a CPU host; allowed: false")
    return FsdpStrategy(config, setting)

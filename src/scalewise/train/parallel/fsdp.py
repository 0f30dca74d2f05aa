"""FSDP2 inside Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torchmetrics import Metric

from scalewise.train.parallel.divided import ALL_TOGETHER, DividedStrategy, move_rest, network_of

if TYPE_CHECKING:
    from scalewise.train.strategies.base import Setting
    from scalewise.train.strategies.fsdp import FsdpConfig


class FsdpStrategy(DividedStrategy):
    """Every layer's parameters cut along their first dimension over the ranks.

    Cut from the host's memory, layer by layer: no device ever holds the whole model.
    """

    hidden: ClassVar[Mapping[str, str]] = {
        "exposed_comm_ms": (
            "FSDP gathers parameters and reduces gradients inside forward and backward"
        ),
        "arrival": ALL_TOGETHER,
    }

    def __init__(self, config: FsdpConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        _refuse_unfit(network_of(setting.module))
        self._config = config
        self._world_size = setting.world_size
        self._half = setting.cell.precision.lightning == "bf16-mixed"
        if config.cpu_offload:
            # The norm of gradients that lie in the host's memory is reduced there.
            self._process_group_backend = "cpu:gloo,cuda:nccl"

    def divide(self, module: pl.LightningModule) -> None:
        network = network_of(module)
        arguments = self._arguments()
        if self._config.units == "layers":
            for unit in sharding_units(network):
                fully_shard(unit, **arguments)
        fully_shard(network, **arguments)
        if network is module:
            for name in ("training_step", "validation_step"):
                register_fsdp_forward_method(module, name)
            for part in module.modules():
                if isinstance(part, Metric):
                    part.to(self.root_device)
        else:
            move_rest(module, network, self.root_device)

    def _arguments(self) -> dict[str, Any]:
        config = self._config
        half = config.gather_dtype == "bf16" or (config.gather_dtype == "auto" and self._half)
        offload = CPUOffloadPolicy(pin_memory=True) if config.cpu_offload else OffloadPolicy()
        return {
            "mesh": self._mesh(),
            "reshard_after_forward": config.sharding != "grad_op",
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=torch.bfloat16 if half else None,
                reduce_dtype=torch.bfloat16 if config.reduce_dtype == "bf16" else torch.float32,
            ),
            "offload_policy": offload,
        }

    def _mesh(self) -> DeviceMesh:
        kind, size = self.root_device.type, self._config.shard_size
        if size is None:
            return init_device_mesh(kind, (self._world_size,), mesh_dim_names=("shard",))
        shape = (self._world_size // size, size)
        return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))


def sharding_units(network: nn.Module) -> list[nn.Module]:
    """The elements of the outermost module lists and sequences that have parameters."""
    found: list[nn.Module] = []
    for child in network.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            found += [one for one in child if next(one.parameters(), None) is not None]
        else:
            found += sharding_units(child)
    return found


def _refuse_unfit(network: nn.Module) -> None:
    recurrent = [name for name, part in network.named_modules() if isinstance(part, nn.RNNBase)]
    if recurrent:
        raise ValueError(
            f"model: found torch's {type(network.get_submodule(recurrent[0])).__name__} "
            f"({recurrent[0]}) with strategy=fsdp; allowed: a model without it: its fused kernel "
            "keeps the unsharded weights"
        )

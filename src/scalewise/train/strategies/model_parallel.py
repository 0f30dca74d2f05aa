"""Models that no rank holds whole, inside Lightning: what they share, and FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torchmetrics import Metric

from scalewise.config import DividedConfig, FsdpConfig
from scalewise.train.strategies.data_parallel import Setting, group_arguments
from scalewise.train.torch_internals import limit_waiting


class DividedStrategy(DDPStrategy):
    """Lightning's DDP strategy without DDP: the model is divided instead of wrapped.

    Ranks, process group, barriers and the reduction of logged values are Lightning's.
    """

    ends_alike = False
    hidden: ClassVar[Mapping[str, str]] = {}
    """Figures that the records cannot hold under this strategy, each with a reason."""

    def __init__(self, config: DividedConfig, setting: Setting) -> None:
        super().__init__(**group_arguments(config, setting))
        self._is_divided = False
        shards = config.data_shards(setting.rank.world_size)
        shard = config.data_shard(setting.rank.rank, setting.rank.world_size)
        self._sampler = {"num_replicas": shards, "rank": shard}

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """For a user's LightningDataModule: ranks of one replica draw the same samples."""
        return self._sampler

    def divide(self, module: pl.LightningModule) -> None:
        """Leave this rank its part of ``module``, on its device."""
        raise NotImplementedError

    def setup(self, trainer: pl.Trainer) -> None:
        assert self.accelerator is not None
        module = self.lightning_module
        assert module is not None
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(module)
        if not self._is_divided:
            self.divide(module)
            # Groups and meshes made there have torch's time-outs.
            assert self._timeout is not None
            limit_waiting(self._timeout)
            self._is_divided = True
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def teardown(self) -> None:
        """Keep everything where it is: validation follows, and a part is no use on the CPU."""
        assert self.cluster_environment is not None and self.accelerator is not None
        self.cluster_environment.teardown()
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()


def network_of(module: pl.LightningModule) -> nn.Module:
    """The network below our own LightningModule; a user's LightningModule as it is."""
    network = getattr(module, "network", None)
    return network if isinstance(network, nn.Module) else module


def move_rest(module: pl.LightningModule, network: nn.Module, device: torch.device) -> None:
    """Move what lies beside the network (metrics) to the device."""
    for child in module.children():
        if child is not network:
            child.to(device)


class FsdpStrategy(DividedStrategy):
    """Every layer's parameters cut along their first dimension over the ranks (FSDP2).

    Cut from the host's memory, layer by layer: no device ever holds the whole model. Raises
    ValueError for a model or a host that cannot do it.
    """

    hidden: ClassVar[Mapping[str, str]] = {
        "exposed_comm_ms": (
            "FSDP gathers parameters and reduces gradients inside forward and backward"
        ),
        "arrival": (
            "the ranks wait for one another inside forward and backward, so all arrive together"
        ),
    }

    def __init__(self, config: FsdpConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        _refuse_unfit(network_of(setting.module))
        self._config = config
        self._world_size = setting.rank.world_size
        self._half = setting.cell.precision.lightning == "bf16-mixed"

    def divide(self, module: pl.LightningModule) -> None:
        network, half = network_of(module), torch.bfloat16
        arguments: dict[str, Any] = {
            "mesh": init_device_mesh(self.root_device.type, (self._world_size,)),
            "reshard_after_forward": self._config.sharding != "grad_op",
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=half if self._half else None,
                reduce_dtype=half if self._config.reduce_dtype == "bf16" else torch.float32,
            ),
        }
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

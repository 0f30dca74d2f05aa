"""Lightning's process group around a model that no rank holds whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import nn
from torch.distributed import distributed_c10d

from scalewise.train.lean import LeanSteps
from scalewise.train.strategies.process_group import group_arguments

if TYPE_CHECKING:
    from scalewise.train.strategies.base import Setting
    from scalewise.train.strategies.divided import DividedConfig


ALL_TOGETHER = "the ranks wait for one another inside forward and backward, so all arrive together"
"""Why arrivals say nothing about the balance of the ranks."""


class DividedStrategy(DDPStrategy):
    """Lightning's DDP strategy without DDP: the model is divided instead of wrapped.

    Ranks, process group, barriers and the reduction of logged values are Lightning's.
    """

    steps_class: ClassVar[type[LeanSteps]] = LeanSteps
    """What ``train.lean`` runs a step with."""
    hidden: ClassVar[Mapping[str, str]] = {}
    """What the records cannot hold under this strategy, and why."""

    def __init__(self, config: DividedConfig, setting: Setting) -> None:
        super().__init__(**group_arguments(config, setting))
        self._is_divided = False
        shards = config.data_shards(setting.world_size)
        shard = config.data_shard(setting.rank, setting.world_size)
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
            self._limit_waiting()
            self._is_divided = True
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def _limit_waiting(self) -> None:
        """Groups and meshes made by :meth:`divide` have torch's time-outs: give them ours."""
        assert self._timeout is not None
        for group in list(distributed_c10d._world.pg_map):
            distributed_c10d._set_pg_timeout(self._timeout, group)

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

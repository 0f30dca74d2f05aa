"""Tensor parallelism inside Lightning: torch's DTensor, cut where the model says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from scalewise.models.contract import SplitsMatrices
from scalewise.models.tensor_cuts import TensorCuts
from scalewise.train.lean import LeanSteps
from scalewise.train.parallel.divided import ALL_TOGETHER, DividedStrategy, network_of
from scalewise.train.parallel.replicas import Replicas

if TYPE_CHECKING:
    from scalewise.train.strategies.base import Setting
    from scalewise.train.strategies.tensor import TensorConfig


class TensorSteps(LeanSteps):
    """Steps whose gradients are averaged over replicas and clipped over the parts of one."""

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        strategy, module = self._strategy(), self.trainer.lightning_module
        strategy.replicas.average_gradients(module.parameters())

    def clip(self, module: pl.LightningModule) -> None:
        if self.trainer.gradient_clip_val is None:
            return
        cut = [p for p in module.parameters() if _is_cut(p)]
        alike = [p for p in module.parameters() if not _is_cut(p)]
        limit = float(self.trainer.gradient_clip_val)
        self._strategy().replicas.clip(limit, own=cut, alike=alike)

    def _strategy(self) -> TensorStrategy:
        strategy = self.trainer.strategy
        assert isinstance(strategy, TensorStrategy)
        return strategy


class TensorStrategy(DividedStrategy):
    """The linear layers of each block cut over the ranks of a replica; norms on every rank."""

    steps_class = TensorSteps
    hidden: ClassVar[Mapping[str, str]] = {
        "exposed_comm_ms": "activations are summed inside forward and backward, twice a block each",
        "arrival": ALL_TOGETHER,
    }
    replicas: Replicas

    def __init__(self, config: TensorConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._size = config.ranks_a_replica(setting.world_size)
        self._cuts = _cuts_of(network_of(setting.module), self._size, config.shard_vocabulary)
        self._shard_vocabulary = config.shard_vocabulary
        self._while_fitting = ExitStack()

    def divide(self, module: pl.LightningModule) -> None:
        self.replicas = Replicas.of_size(self._size)
        mesh = init_device_mesh(
            self.root_device.type,
            (self.replicas.count, self._size),
            mesh_dim_names=("replica", "tensor"),
        )
        network = network_of(module)
        module.to(self.root_device)
        _cut(network, mesh["tensor"], self._cuts, self._shard_vocabulary)
        if self._shard_vocabulary and self._cuts.vocabulary is not None:
            network.register_forward_hook(_gather_when_scoring)

    def on_train_start(self) -> None:
        super().on_train_start()
        # Takes the loss over parts of the vocabulary, in forward and in backward.
        self._while_fitting.enter_context(loss_parallel())

    def on_train_end(self) -> None:
        self._while_fitting.close()
        super().on_train_end()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        return loss.to_local() if isinstance(loss, DTensor) else loss


def _cut(network: nn.Module, mesh: DeviceMesh, cuts: TensorCuts, shard_vocabulary: bool) -> None:
    for name in cuts.fused_qkv:
        _deal_out_heads(network.get_submodule(name), mesh.size())
    plan: dict[str, ParallelStyle] = {}
    plan |= {name: ColwiseParallel() for name in (*cuts.fused_qkv, *cuts.outputs)}
    plan |= {name: RowwiseParallel() for name in cuts.inputs}
    if shard_vocabulary and cuts.vocabulary is not None and cuts.before_vocabulary is not None:
        plan[cuts.vocabulary] = RowwiseParallel(input_layouts=Replicate())
        plan[cuts.before_vocabulary] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False
        )
    parallelize_module(network, mesh, plan)


@torch.no_grad()
def _deal_out_heads(qkv: nn.Module, parts: int) -> None:
    """Order the rows so that equal slices hold queries, keys and values of the same heads."""
    for parameter in qkv.parameters():
        rows = parameter.reshape(3, parts, -1, *parameter.shape[1:])
        parameter.copy_(rows.transpose(0, 1).flatten(0, 2).clone())


def _gather_when_scoring(network: nn.Module, inputs: Any, output: Any) -> Any:
    """Whole logits outside training: metrics look for the best of all words."""
    if not network.training and isinstance(output, DTensor):
        return output.full_tensor()
    return output


def _is_cut(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, DTensor) and any(
        isinstance(placement, Shard) for placement in parameter.placements
    )


def _cuts_of(network: nn.Module, degree: int, shard_vocabulary: bool) -> TensorCuts:
    if not isinstance(network, SplitsMatrices):
        raise ValueError(
            f"model: found {type(network).__name__} with strategy=tensor; allowed: an nn.Module "
            "that says where its matrices may be cut (a method tensor_cuts()), or strategy=fsdp"
        )
    cuts = network.tensor_cuts()
    if cuts.heads % degree:
        raise ValueError(
            f"strategy.degree: found {degree} for {cuts.heads} attention heads; allowed: a divisor"
        )
    words = (
        getattr(network.get_submodule(cuts.vocabulary), "num_embeddings", 0)
        if (shard_vocabulary and cuts.vocabulary is not None)
        else 0
    )
    if words % degree:
        raise ValueError(
            f"strategy.degree: found {degree} for a vocabulary of {words}; allowed: a divisor, or "
            "strategy.shard_vocabulary=false"
        )
    return cuts

"""Models that no rank holds whole, inside Lightning: FSDP2, and tensor parallelism on DTensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torchmetrics import Metric

from scalewise.config import DividedConfig, FsdpConfig, TensorConfig
from scalewise.models import SplitsMatrices, TensorCuts
from scalewise.train.execution import LeanSteps
from scalewise.train.strategies.ddp import Setting, group_arguments
from scalewise.train.strategies.replicas import average
from scalewise.train.torch_internals import limit_waiting, multiply_all, norms_of_all

ALL_TOGETHER = "the ranks wait for one another inside forward and backward, so all arrive together"
"""Why arrivals say nothing about the balance of the ranks."""


class DividedStrategy(DDPStrategy):
    """Lightning's DDP strategy without DDP: the model is divided instead of wrapped.

    Ranks, process group, barriers and the reduction of logged values are Lightning's.
    """

    steps_class: ClassVar[type[LeanSteps]] = LeanSteps
    """The class that runs a step, see ``fast_loop.trim``."""
    hidden: ClassVar[Mapping[str, str]] = {}
    """Figures that the records cannot hold under this strategy, each with a reason."""

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
        "arrival": ALL_TOGETHER,
    }

    def __init__(self, config: FsdpConfig, setting: Setting) -> None:
        if config.cpu_offload and setting.device_kind == "cpu":
            raise ValueError("strategy.cpu_offload: found true on a CPU host; allowed: false")
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


@dataclass(frozen=True)
class Replicas:
    """Neighbouring ranks hold a replica; ranks at the same place of theirs hold the same part."""

    ranks: list[int]
    """Global ranks of this rank's replica, in order of their place."""
    place: int
    """This rank's among them."""
    count: int
    inside: distributed.ProcessGroup
    """The ranks of this replica."""
    across: distributed.ProcessGroup
    """The ranks that hold the same part, one of each replica."""

    @classmethod
    def of_size(cls, size: int) -> Replicas:
        """Replicas of ``size`` ranks each. Every rank has to call this."""
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        blocks = [[*range(b, b + size)] for b in range(0, world_size, size)]
        alike = [[*range(place, world_size, size)] for place in range(size)]
        inside, across = _own_group(blocks), _own_group(alike)
        assert inside is not None and across is not None
        return cls(blocks[rank // size], rank % size, len(blocks), inside, across)

    def subgroup(self, places: Sequence[int]) -> distributed.ProcessGroup | None:
        """Ranks at these places of this replica; None where this rank is at none of them.

        Every rank has to call this.
        """
        size = len(self.ranks)
        starts = range(0, size * self.count, size)
        members = [[start + place for place in places] for start in starts]
        return _own_group(members)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over the replicas, all of one format at once."""
        if self.count > 1:
            gradients = [local(p.grad) for p in parameters if p.grad is not None]
            average(gradients, self.count, self.across)

    def clip(
        self,
        max_norm: float,
        own: Sequence[nn.Parameter],
        alike: Sequence[nn.Parameter] = (),
        elsewhere: Sequence[nn.Parameter] = (),
    ) -> None:
        """Scale gradients so that the norm over the whole replica is at most ``max_norm``.

        Args:
            own: parts that no other rank of the replica has.
            alike: what every rank of the replica has, with the same gradient.
            elsewhere: what this rank has and another one counts.
        """
        squares = _squares(own)
        distributed.all_reduce(squares, group=self.inside)
        squares += _squares(alike)
        # The same small number as in torch's clip_grad_norm_, so that results agree.
        factor = (max_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        gradients = [local(p.grad) for p in (*own, *alike, *elsewhere) if p.grad is not None]
        multiply_all(gradients, factor)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _squares(parameters: Sequence[nn.Parameter]) -> Tensor:
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), device=parameters[0].device if parameters else None)
    return torch.stack(norms_of_all(gradients)).square().sum()


def _own_group(ranks: list[list[int]]) -> distributed.ProcessGroup | None:
    """The one this rank is in; every rank makes every group, in one order, as torch requires."""
    mine: distributed.ProcessGroup | None
    mine, _ = distributed.new_subgroups_by_enumeration(ranks)  # type: ignore[no-untyped-call]
    return mine


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
    """The linear layers of each block cut over the ranks of a replica; norms on every rank.

    Raises ValueError for a model that does not say where it may be cut.
    """

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

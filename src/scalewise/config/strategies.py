"""Settings of strategies that divide the model, ``strategy=auto``, and the choice by ``kind``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from scalewise.config.data_parallel import (
    DdpConfig,
    HeterogeneousConfig,
    LocalSgdConfig,
    ProcessGroupConfig,
    SingleConfig,
    StrategyConfig,
    TaskParallelConfig,
)
from scalewise.records import DataError, build, closest

if TYPE_CHECKING:
    from scalewise.config.cell import CellConfig


@dataclass(frozen=True)
class AutoConfig(StrategyConfig):
    """``strategy=auto``: ``sweep.auto`` runs the candidates shortly, then trains the better."""

    KIND: ClassVar[str] = "auto"

    candidates: Mapping[str, Any] = field(default_factory=dict)
    """Name to the settings of each strategy that may be chosen."""
    probe_steps: int = 60
    """Steps of each short run, warm-up included."""
    probe_warmup_steps: NonNegativeInt = 20
    """First steps of a short run, excluded from its timing."""
    probe_repeats: PositiveInt = 3
    """Short runs of each candidate, each freshly started."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.candidates) < 2:
            raise ValueError(
                f"candidates: found {len(self.candidates)}; allowed: two strategies or more"
            )
        if self.probe_warmup_steps >= self.probe_steps:
            raise ValueError(
                f"probe_warmup_steps: found {self.probe_warmup_steps} with probe_steps="
                f"{self.probe_steps}; allowed: 0 to {self.probe_steps - 1}"
            )
        for one in self.built().values():
            if isinstance(one, AutoConfig):
                raise ValueError("candidates: found auto among them; allowed: any other strategy")

    def plain(self) -> dict[str, dict[str, Any]]:
        """Each candidate's settings as plain data, on as many devices as were asked for."""
        settled = {}
        for name, settings in self.candidates.items():
            own = dict(settings)
            if own.get("kind") != "single" and self.devices != "auto":
                own["devices"] = self.devices
            settled[name] = own
        return settled

    def built(self) -> dict[str, StrategyConfig]:
        """Each candidate's settings, typed. Raises DataError (a ValueError) for a wrong one."""
        return {
            name: strategy_config(plain, f"strategy.candidates.{name}")
            for name, plain in self.plain().items()
        }

    def check(self, cell: CellConfig) -> None:
        """Refuse what any candidate refuses."""
        for one in self.built().values():
            one.check(cell)


_OWN_MODELS = "scalewise.models."


@dataclass(frozen=True)
class DividedConfig(ProcessGroupConfig):
    """A strategy under which no rank holds the whole model.

    Loss scaling is left out (``precision=fp16-mixed``): a rank that finds an overflow in its part
    would skip a step that the others take.
    """

    EXECUTIONS: ClassVar[tuple[str, ...] | None] = ("eager",)
    PRECISIONS: ClassVar[tuple[str, ...] | None] = ("32-true", "bf16-mixed")
    OWN_MODELS: ClassVar[tuple[str, ...] | None] = None
    """Our models that can be divided so, as ``module.Class``; None for all."""
    UNFIT_OPTIMIZERS: ClassVar[Mapping[str, str]] = {}
    """Last part of an optimizer's ``_target_``, and why it cannot work on parts of a matrix."""

    def check(self, cell: CellConfig) -> None:
        """See :meth:`StrategyConfig.check`."""
        super().check(cell)
        optimizer = cell.optimizer.target.rpartition(".")[2].lower()
        if optimizer in self.UNFIT_OPTIMIZERS:
            raise ValueError(
                f"optimizer: found {cell.optimizer.name} with strategy={self.name}; allowed: adam, "
                f"adamw, sgd and their like: {self.UNFIT_OPTIMIZERS[optimizer]}"
            )
        if cell.pruning.kind != "none":
            raise ValueError(
                f"pruning: found {cell.pruning.name} with strategy={self.name}; allowed: none, "
                "because weights are ranked over a whole matrix and no rank has one"
            )
        self._check_model(cell.model.target)

    def _check_model(self, target: str) -> None:
        """Refuse a model of ours that is known not to fit; a user's is asked where it is built."""
        if self.OWN_MODELS is None or not target.startswith(_OWN_MODELS):
            return
        name = target.removeprefix(_OWN_MODELS)
        if name not in self.OWN_MODELS:
            known = ", ".join(one.rpartition(".")[2] for one in self.OWN_MODELS)
            raise ValueError(
                f"model: found {name.rpartition('.')[2]} with strategy={self.name}; allowed: "
                f"{known}, or strategy=fsdp for any other"
            )


@dataclass(frozen=True)
class ReplicaConfig(DividedConfig):
    """Several ranks hold one replica together and see the same samples.

    More devices than that make several replicas, whose gradients are averaged.
    """

    INSTEAD_OF_ACCUMULATING: ClassVar[str] = ""
    """What does the same."""

    DEGREE: ClassVar[str]
    """The setting that says how many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        degree = getattr(self, self.DEGREE)
        if degree != "auto" and degree < 2:
            raise ValueError(
                f"{self.DEGREE}: found {degree}; allowed: 2 or more, or auto for all devices"
            )

    def ranks_a_replica(self, world_size: int) -> int:
        """Ranks that hold one model; they are neighbours, and so on one host where they fit."""
        degree: int | Literal["auto"] = getattr(self, self.DEGREE)
        return world_size if degree == "auto" else degree

    def check(self, cell: CellConfig) -> None:
        """See :meth:`StrategyConfig.check`."""
        super().check(cell)
        if cell.accumulate_grad_batches != 1:
            n = cell.accumulate_grad_batches
            raise ValueError(
                f"accumulate_grad_batches: found {n} with strategy={self.name}; allowed: 1"
                f"{self.INSTEAD_OF_ACCUMULATING}"
            )

    def check_world(self, world_size: int) -> None:
        """The replicas must come out even."""
        super().check_world(world_size)
        each = self.ranks_a_replica(world_size)
        if world_size % each:
            raise ValueError(
                f"strategy.devices: found {world_size} with {each} devices a replica "
                f"(strategy={self.name}); allowed: a multiple of {each}"
            )

    def data_shards(self, world_size: int) -> int:
        """One part of the data for each replica."""
        return world_size // self.ranks_a_replica(world_size)


@dataclass(frozen=True)
class FsdpConfig(DividedConfig):
    """``strategy=fsdp`` (FSDP2): parameters, gradients and optimizer state in parts.

    Each rank feeds samples of its own and gathers the parameters of a layer when it needs them.
    """

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


@dataclass(frozen=True)
class PipelineConfig(ReplicaConfig):
    """``strategy=pipeline`` (1F1B) and ``strategy=gpipe``: each device holds some of the layers."""

    KIND: ClassVar[str] = "pipeline"
    DEGREE: ClassVar[str] = "stages"
    OWN_MODELS: ClassVar[tuple[str, ...] | None] = (
        "gpt2.Gpt2",
        "text_classifier.TextClassifier",
        "mlp.Mlp",
        "sized.SizedMlp",
    )

    INSTEAD_OF_ACCUMULATING: ClassVar[str] = (
        ", and a batch_size and strategy.microbatches as many times as large"
    )

    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """``gpipe``: all forwards, then all backwards (Huang et al., 2019). ``1f1b``: a backward as
    soon as there can be one (Narayanan et al., 2019), which holds the activations of no more
    microbatches than there are stages. Both idle equally long."""
    stages: int | Literal["auto"] = "auto"
    """Devices that share one replica, each with one stage; ``auto``: all."""
    microbatches: PositiveInt = 8
    """Parts of a replica's batch that are under way one behind another."""

    def check_world(self, world_size: int) -> None:
        """A 1F1B schedule needs a microbatch for every stage."""
        super().check_world(world_size)
        stages = self.ranks_a_replica(world_size)
        if self.schedule == "1f1b" and self.microbatches < stages:
            raise ValueError(
                f"strategy.microbatches: found {self.microbatches} with {stages} stages and "
                f"schedule=1f1b; allowed: {stages} or more, or schedule=gpipe"
            )

    def share_out(self, batch_size: int, world_size: int) -> tuple[int, ...]:
        """See :meth:`StrategyConfig.share_out`: microbatches must be of one size."""
        shares = super().share_out(batch_size, world_size)
        if shares[0] % self.microbatches:
            raise ValueError(
                f"strategy.microbatches: found {self.microbatches} for a replica's batch of "
                f"{shares[0]}; allowed: a divisor of it"
            )
        return shares


@dataclass(frozen=True)
class TensorConfig(ReplicaConfig):
    """``strategy=tensor``: every matrix of a block is cut over the devices of a replica."""

    KIND: ClassVar[str] = "tensor"
    DEGREE: ClassVar[str] = "degree"
    OWN_MODELS: ClassVar[tuple[str, ...] | None] = (
        "gpt2.Gpt2",
        "text_classifier.TextClassifier",
    )
    UNFIT_OPTIMIZERS: ClassVar[Mapping[str, str]] = {
        "adafactor": "its row and column means are taken over a matrix that is spread over ranks",
        "muon": "it makes a whole matrix orthogonal, and no rank has one",
    }

    degree: int | Literal["auto"] = "auto"
    """Devices that share one replica; ``auto``: all."""
    shard_vocabulary: bool = True
    """Cut the embedding and the output layer too, and take the loss over parts of the vocabulary:
    no rank ever holds all logits of a token."""


_CONFIGS: tuple[type[StrategyConfig], ...] = (
    SingleConfig,
    DdpConfig,
    LocalSgdConfig,
    TaskParallelConfig,
    HeterogeneousConfig,
    AutoConfig,
    FsdpConfig,
    PipelineConfig,
    TensorConfig,
)
KINDS = {config.KIND: config for config in _CONFIGS}


def strategy_config(plain: Mapping[str, Any], at: str = "strategy") -> StrategyConfig:
    """The typed settings of the strategy that ``plain["kind"]`` names.

    Raises :class:`DataError` for an unknown kind, an unknown key, or a value out of its range.
    """
    kind = plain.get("kind")
    config = KINDS.get(kind) if isinstance(kind, str) else None
    if config is None:
        guess = closest(kind, list(KINDS)) if isinstance(kind, str) else ""
        raise DataError(f"{at}.kind: found {kind!r}{guess}; allowed: {' | '.join(KINDS)}")
    return build(config, plain, at)

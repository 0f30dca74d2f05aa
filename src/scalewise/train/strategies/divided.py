"""What strategies have in common whose devices each hold a part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from scalewise.train.strategies.process_group import ProcessGroupConfig

if TYPE_CHECKING:
    from scalewise.config import CellConfig

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

    def ranks_a_replica(self, world_size: int) -> int:
        """Ranks that hold one model; they are neighbours, and so on one host where they fit."""
        degree = self._degree()
        return world_size if degree == "auto" else degree

    def _degree(self) -> int | Literal["auto"]:
        raise NotImplementedError

    def _check_degree(self, key: str) -> None:
        degree = self._degree()
        if degree != "auto" and degree < 2:
            raise ValueError(f"{key}: found {degree}; allowed: 2 or more, or auto for all devices")

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

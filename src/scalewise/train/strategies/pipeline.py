"""Pipeline parallel: each device holds some of the layers and passes on microbatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveInt

from scalewise.train.strategies.divided import ReplicaConfig

if TYPE_CHECKING:
    from pytorch_lightning.strategies import Strategy

    from scalewise.train.strategies.base import Setting


@dataclass(frozen=True)
class PipelineConfig(ReplicaConfig):
    """``strategy=pipeline`` (1F1B) and ``strategy=gpipe``."""

    KIND: ClassVar[str] = "pipeline"
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_degree("stages")

    def _degree(self) -> int | Literal["auto"]:
        return self.stages

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


def build_pipeline(config: PipelineConfig, setting: Setting) -> Strategy:
    """Lightning's process group and torch's schedule. Raises ValueError for an unfit model."""
    from scalewise.train.parallel.pipeline import PipelineStrategy

    return PipelineStrategy(config, setting)

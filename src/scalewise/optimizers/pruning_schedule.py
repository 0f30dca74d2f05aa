"""When and how much is pruned. Free of torch: the sweep reads it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from scalewise.ranges import require

_WITH_SECOND_MOMENT = (
    "scalewise.optimizers.adaptive.adam",
    "scalewise.optimizers.adaptive.adamw",
    "scalewise.optimizers.spike_aware.spam",
)
"""Builders of our optimizers that keep one of every weight."""


def no_second_moment(optimizer: str) -> str:
    """Why ``pruning=adamw_state`` does not go with ``optimizer``, in a line."""
    return (
        f"pruning: found adamw_state with {optimizer}, which keeps no second moment "
        "of each weight; allowed: adam, adamw, adamw_amsgrad or spam, or pruning=magnitude or "
        "movement"
    )


@dataclass(frozen=True)
class PruningConfig:
    """The config group ``pruning``."""

    name: str
    kind: Literal["none", "magnitude", "movement", "adamw_state"]
    """The score by which the lowest are pruned: ``abs(w)``; minus the sum of ``w * gradient`` over
    the steps (Sanh et al., 2020); or ``w ** 2 * v``, Adam's second moment as the diagonal of the
    Fisher matrix in optimal brain damage (LeCun et al., 1990)."""
    sparsity: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of each matrix that is 0 in the end."""
    begin_step: PositiveInt = 100
    """Optimizer step of the first pruning."""
    end_step: int = 1000
    """Optimizer step at which ``sparsity`` is reached."""
    every_n_steps: PositiveInt = 50
    """Steps from one pruning to the next."""

    def __post_init__(self) -> None:
        require(
            "end_step",
            self.end_step,
            self.end_step >= self.begin_step,
            f"at least begin_step, {self.begin_step}",
        )

    def check(self, optimizer: str, name: str) -> None:
        """Raises ValueError where the score needs what ``optimizer`` does not keep.

        ``optimizer`` is the class or function that builds it. Of a user's own only a rank can
        tell.
        """
        ours = optimizer.startswith("scalewise.")
        if self.kind == "adamw_state" and ours and optimizer not in _WITH_SECOND_MOMENT:
            raise ValueError(no_second_moment(name))

    def sparsity_at(self, step: int) -> float:
        """What is to be 0 after ``step`` steps: a cubic climb (Zhu and Gupta, 2017)."""
        if step < self.begin_step:
            return 0.0
        if step >= self.end_step:
            return self.sparsity
        left = (self.end_step - step) / (self.end_step - self.begin_step + 1)
        return self.sparsity * (1 - left**3)

    def prunes_at(self, step: int) -> bool:
        """Whether weights are chosen anew after this step: every so often, and at the end."""
        if not self.begin_step <= step <= self.end_step:
            return False
        return step == self.end_step or (step - self.begin_step) % self.every_n_steps == 0


NO_PRUNING = PruningConfig("none", "none")

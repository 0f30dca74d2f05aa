"""When a cell saves what it needs to go on after an interruption. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import PositiveFloat, PositiveInt

_STRATEGIES = ("single", "ddp")
_EXECUTIONS = ("eager", "compile")


@dataclass(frozen=True)
class CheckpointConfig:
    """The key ``checkpoint``. Off unless an interval is given: saving disturbs what is timed."""

    every_n_steps: PositiveInt | None = None
    """Optimizer steps between two checkpoints."""
    every_s: PositiveFloat | None = None
    """Seconds between two, by the pace of the steps so far."""
    keep: bool = False
    """Keep the last checkpoint of a cell that is done."""
    trust: bool = False
    """Go on from a checkpoint that others could have written, whatever classes it holds."""

    def __post_init__(self) -> None:
        if self.every_n_steps is not None and self.every_s is not None:
            raise ValueError("every_s: found beside every_n_steps; allowed: one of them")

    @property
    def on(self) -> bool:
        return self.every_n_steps is not None or self.every_s is not None

    def check(self, strategy: str, execution: str) -> None:
        """Raises ValueError for a cell whose state is more than one checkpoint holds."""
        if self.on and strategy not in _STRATEGIES:
            raise ValueError(
                f"checkpoint: found an interval with strategy kind {strategy}, whose ranks hold "
                f"states of their own; allowed: {', '.join(_STRATEGIES)}"
            )
        if self.on and execution not in _EXECUTIONS:
            raise ValueError(
                f"checkpoint: found an interval with execution kind {execution}, whose captured "
                f"steps cannot start in the middle; allowed: {', '.join(_EXECUTIONS)}"
            )


NO_CHECKPOINTS = CheckpointConfig()


CLOSE_IT = "chmod go-w on it, a new sweep"
"""What helps where others could have written a checkpoint."""


def untrusted_checkpoint(why: str, instead: str) -> str:
    """What a user reads where a checkpoint is not loaded, and what he may do ``instead``."""
    return (
        f"checkpoint.trust: found false, and {why}; to load such a checkpoint can be to run code "
        f"that somebody put there; allowed: {instead}, or checkpoint.trust=true"
    )

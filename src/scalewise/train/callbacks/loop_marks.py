"""Marks that no hook of Lightning's tells: the loader, the transfer, ``training_step`` itself.

The methods that do these are wrapped on the objects of one fit; Lightning's classes stay as they
are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl

from scalewise.measure.step_clock import StepClock
from scalewise.measure.step_phases import Mark


def mark_loop(trainer: pl.Trainer, clock: StepClock) -> dict[str, str]:
    """Have ``clock`` marked around them; returns what this Lightning lacks, each with a reason."""
    loop, strategy = trainer.fit_loop.epoch_loop, trainer.strategy
    missing: dict[str, str] = {}
    for owner, name, before, after in (
        (loop, "_on_before_fetch", Mark.FETCH_BEGIN, None),
        (loop, "_on_after_fetch", None, Mark.FETCH_END),
        (strategy, "batch_to_device", None, Mark.TRANSFER_END),
        (strategy, "training_step", Mark.FORWARD_BEGIN, Mark.FORWARD_END),
    ):
        inner = getattr(owner, name, None)
        if inner is None:
            missing[name] = f"this Lightning has no {type(owner).__name__}.{name}"
            continue
        setattr(owner, name, _marking(inner, clock, before, after))
    return missing


def _marking(
    inner: Callable[..., Any], clock: StepClock, before: Mark | None, after: Mark | None
) -> Callable[..., Any]:
    def marked(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            clock.mark(before)
        result = inner(*args, **kwargs)
        if after is not None:
            clock.mark(after)
        return result

    return marked

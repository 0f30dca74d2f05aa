"""What callbacks beside the recorder do to a run: their time, an early stop, kept checkpoints."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.model_helpers import is_overridden

from scalewise.config import is_needless
from scalewise.records import EarlyStop, KeptCheckpoint, finite_or_none

STEP_HOOKS = (
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_train_batch_end",
)  # fmt: skip
"""Hooks of a callback that Lightning calls in every step."""
_BETWEEN_STEPS = ("on_validation_end", "on_train_epoch_end", "on_train_epoch_start")
"""Hooks after the recorder's own: the next step has begun by then."""


def acts_in(callback: pl.Callback, hooks: Sequence[str]) -> list[str]:
    return [hook for hook in hooks if is_overridden(hook, callback, pl.Callback)]


def leave_out(every: list[pl.Callback], own: list[pl.Callback], missing: dict[str, str]) -> None:
    """Take those of ``own`` whose work a cell does from both lists."""
    paths = {type(one): f"{type(one).__module__}.{type(one).__name__}" for one in own}
    left = [kind for kind, path in paths.items() if is_needless("callbacks", path)]
    for held in (every, own):
        held[:] = [one for one in held if type(one) not in left]
    if left:
        names = ", ".join(sorted(kind.__name__ for kind in left))
        lead = f"{missing['callback']} and" if "callback" in missing else "a cell does the work of"
        missing["callback"] = f"{lead} {names}"


class CallbackTimes:
    """Milliseconds that callbacks take of timed steps, by class."""

    def __init__(self) -> None:
        self._pending_ns, self._timed_ns = Counter[str](), Counter[str]()
        self._steps = 0
        self.on = False

    def watch(self, callbacks: Sequence[pl.Callback]) -> None:
        self.on = bool(callbacks)
        for callback in callbacks:
            for hook in acts_in(callback, (*STEP_HOOKS, *_BETWEEN_STEPS)):
                inner = getattr(callback, hook)
                setattr(callback, hook, self._timing(type(callback).__name__, inner))

    def _timing(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter_ns()
            result = inner(*args, **kwargs)
            self._pending_ns[name] += time.perf_counter_ns() - begin
            return result

        return timed

    def end_step(self, is_timed: bool) -> None:
        """A step is over: what callbacks have taken since the one before was part of it."""
        if is_timed:
            self._steps += 1
            self._timed_ns.update(self._pending_ns)
        self.restart_step()

    def restart_step(self) -> None:
        """The step begins anew: what was taken until now is in no step."""
        self._pending_ns.clear()

    @property
    def ms_per_step(self) -> dict[str, float]:
        """Mean over the timed steps; empty where no callback acted in them."""
        return {name: ns / 1e6 / self._steps for name, ns in self._timed_ns.items()}


def early_stop(trainer: pl.Trainer) -> EarlyStop | None:
    """Who ended the fit early; None where it went on to its last step or epoch.

    A Trainer of cells has who asked first in ``asked``, of others nobody knows.
    """
    loop: Any = trainer.fit_loop
    epochs, steps = trainer.max_epochs, loop.epoch_loop.max_steps
    all_steps = steps != -1 and trainer.global_step >= steps
    all_epochs = epochs not in (None, -1) and loop.epoch_progress.current.processed >= epochs
    return None if all_steps or all_epochs else getattr(trainer, "asked", None)


def kept_checkpoints(
    trainer: pl.Trainer, folder: Path, missing: dict[str, str]
) -> tuple[KeptCheckpoint, ...]:
    """The best checkpoint of each callback that keeps any; paths below ``folder`` are relative.

    ``missing`` is told of those that waited for their metrics in vain.
    """
    own, kept, in_vain = folder.resolve(), [], []
    for one in trainer.checkpoint_callbacks:  # of classes of the user's too
        by, monitor = type(one).__name__, getattr(one, "monitor", None)
        path = Path(str(getattr(one, "best_model_path", "") or ""))
        score = getattr(one, "best_model_score", None)
        if path.name:
            inside = path.relative_to(own) if path.is_relative_to(own) else path
            value = None if score is None else finite_or_none(float(score))
            kept.append(KeptCheckpoint(by, str(inside), monitor, value))
        elif monitor not in (None, *trainer.callback_metrics) and getattr(one, "save_top_k", True):
            in_vain.append(f"{by} waited for {monitor}")
    if in_vain:
        came = ", ".join(trainer.callback_metrics) or "nothing"
        missing["checkpoint"] = f"{' and '.join(in_vain)}; logged by then: {came}"
    return tuple(kept)

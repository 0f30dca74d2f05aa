"""Taking off Lightning's cost per step what our cells have no use for.

Each entry was found with a profiler on a step of 1 ms (``benchmarks/overhead.py`` measures the
sum). None changes what is computed, which hooks run, or in which order.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.profilers import Profiler

_NOTHING = contextlib.nullcontext()


class NoProfiler(Profiler):
    """Lightning opens a profiling context around each hook, about 24 a step.

    Its pass-through profiler builds a generator for each of them; this one hands out the same
    empty context every time.
    """

    def start(self, action_name: str) -> None:
        """Nothing is timed here: the step clock does that."""

    def stop(self, action_name: str) -> None:
        """See :meth:`start`."""

    def profile(self, action_name: str) -> Any:
        return _NOTHING


class CheapHookNames:
    """Mixin for a LightningModule: remembering the name of the running hook costs nothing.

    Lightning sets ``_current_fx_name`` twice around each hook, about 44 times a step, and
    ``nn.Module.__setattr__`` looks each time whether the string is a parameter, a buffer or a
    module.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)


def trim(trainer: pl.Trainer) -> None:
    """Replace per-step work of the loop whose answer is known for our own modules."""
    loop: Any = trainer.fit_loop.epoch_loop
    if trainer.world_size > 1:
        # Lightning 2.6 broadcasts a "was there a SIGTERM" flag and waits for the device before
        # every batch. Our supervisor ends all ranks of a cell together, so nothing needs it, and
        # the wait would hide how far the host can run ahead of the device.
        loop._broadcast_sigterm_tensor = lambda: None
    # Lightning inspects the signature of training_step before every step to see whether it
    # takes the batch's index. Ours does.
    loop._build_kwargs = lambda kwargs, batch, batch_idx: OrderedDict(
        batch=batch, batch_idx=batch_idx
    )

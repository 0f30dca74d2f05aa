"""Network and loss through ``torch.compile``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch

from scalewise.train.execution.config import CompileMode


class Compiled:
    """What was compiled for one module, and how long that took.

    Compiling happens in the first steps, when the shapes are known: :attr:`seconds` is the time
    of the calls that compiled, forward only; what backward takes is in the first step's row.
    """

    def __init__(self, mode: CompileMode) -> None:
        self.mode = mode
        self.seconds = 0.0

    def apply(self, module: pl.LightningModule) -> None:
        """Compile ``module``'s objective, or the whole ``training_step`` of a user's own."""
        name = "objective" if hasattr(module, "objective") else "training_step"
        compiled = torch.compile(getattr(module, name), mode=self.mode, dynamic=False)
        object.__setattr__(module, name, self._timed(compiled))

    def _timed(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            graphs, began = compiled_graphs(), time.perf_counter()
            output = compiled(*inputs)
            if compiled_graphs() != graphs:
                self.seconds += time.perf_counter() - began
            return output

        return run


def compiled_graphs() -> int:
    """Graphs that this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def graph_breaks() -> int:
    """Places where the compiler handed back to Python."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())

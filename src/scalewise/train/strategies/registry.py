"""Lightning's strategy for each kind of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytorch_lightning.strategies import Strategy

from scalewise.train.strategies.data_parallel import (
    HeterogeneousDDP,
    LocalSgd,
    OwnStreamDDP,
    Setting,
    UnwrappedReplicas,
)
from scalewise.train.strategies.model_parallel import FsdpStrategy
from scalewise.train.strategies.pipeline import PipelineStrategy

BUILDERS: dict[str, Callable[[Any, Setting], Strategy | str]] = {
    "single": lambda config, setting: "auto",
    "ddp": OwnStreamDDP,
    "local_sgd": LocalSgd,
    "task_parallel": UnwrappedReplicas,
    "heterogeneous": HeterogeneousDDP,
    "fsdp": FsdpStrategy,
    "pipeline": PipelineStrategy,
    "rehearsal": OwnStreamDDP,
    "fsdp_rehearsal": FsdpStrategy,
}
"""By ``kind``; they raise ValueError for what this host cannot do. ``single`` is Lightning's own
choice; for ``auto``, the sweep chooses one of these before a cell starts."""

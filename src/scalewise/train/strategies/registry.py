"""Lightning's strategy for each kind of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytorch_lightning.strategies import Strategy

from scalewise.config import StrategyConfig
from scalewise.train.strategies.ddp import (
    HeterogeneousDDP,
    OwnStreamDDP,
    RehearsedDDP,
    Setting,
)
from scalewise.train.strategies.model_parallel import FsdpStrategy
from scalewise.train.strategies.pipeline import PipelineStrategy
from scalewise.train.strategies.replicas import LocalSgd, UnwrappedReplicas

BUILDERS: dict[str, Callable[[Any, Setting], Strategy | str]] = {
    "single": lambda config, setting: "auto",
    "ddp": OwnStreamDDP,
    "local_sgd": LocalSgd,
    "task_parallel": UnwrappedReplicas,
    "heterogeneous": HeterogeneousDDP,
    "fsdp": FsdpStrategy,
    "pipeline": PipelineStrategy,
    "rehearsal": RehearsedDDP,
}
"""By ``kind``. ``single`` is Lightning's own choice; for ``auto``, the sweep chooses one of these
before a cell starts."""


def build_strategy(config: StrategyConfig, setting: Setting) -> Strategy | str:
    """Lightning's strategy, or its name. Raises ValueError for what this host cannot do."""
    return BUILDERS[config.kind](config, setting)

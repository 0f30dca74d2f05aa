"""Lightning's strategy for each kind of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytorch_lightning.strategies import Strategy

from scalewise.config import RehearsalConfig
from scalewise.records import RehearsalRecord
from scalewise.train.strategies.ddp import HeterogeneousDDP, OwnStreamDDP, Setting
from scalewise.train.strategies.model_parallel import FsdpStrategy
from scalewise.train.strategies.pipeline import PipelineStrategy
from scalewise.train.strategies.replicas import LocalSgd, UnwrappedReplicas


def _rehearsed(build: Callable[[Any, Setting], Any]) -> Callable[[RehearsalConfig, Setting], Any]:
    """The same of one rank among others that are not there."""

    def build_rehearsed(config: RehearsalConfig, setting: Setting) -> Any:
        strategy, link = build(config, setting), config.link
        strategy.ends_alike = False
        strategy.rehearsal_record = RehearsalRecord(config.ranks, link.name, link.source)
        return strategy

    return build_rehearsed


BUILDERS: dict[str, Callable[[Any, Setting], Strategy | str]] = {
    "single": lambda config, setting: "auto",
    "ddp": OwnStreamDDP,
    "local_sgd": LocalSgd,
    "task_parallel": UnwrappedReplicas,
    "heterogeneous": HeterogeneousDDP,
    "fsdp": FsdpStrategy,
    "pipeline": PipelineStrategy,
    "rehearsal": _rehearsed(OwnStreamDDP),
    "fsdp_rehearsal": _rehearsed(FsdpStrategy),
}
"""By ``kind``; they raise ValueError for what this host cannot do. ``single`` is Lightning's own
choice; for ``auto``, the sweep chooses one of these before a cell starts."""

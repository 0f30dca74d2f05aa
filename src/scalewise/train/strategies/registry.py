"""Which strategies there are. A new one is a module beside this file and a line below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewise.train.strategies.auto import AutoConfig
from scalewise.train.strategies.base import StrategyConfig
from scalewise.train.strategies.ddp import DdpConfig
from scalewise.train.strategies.fsdp import FsdpConfig
from scalewise.train.strategies.heterogeneous import HeterogeneousConfig
from scalewise.train.strategies.local_sgd import LocalSgdConfig
from scalewise.train.strategies.pipeline import PipelineConfig
from scalewise.train.strategies.single import SingleConfig
from scalewise.train.strategies.task_parallel import TaskParallelConfig
from scalewise.train.strategies.tensor import TensorConfig
from scalewise.validation import DataError, build, closest

CONFIGS: tuple[type[StrategyConfig], ...] = (
    SingleConfig,
    DdpConfig,
    LocalSgdConfig,
    TaskParallelConfig,
    HeterogeneousConfig,
    AutoConfig,
    FsdpConfig,
    PipelineConfig,
    TensorConfig,
)
KINDS: dict[str, type[StrategyConfig]] = {config.KIND: config for config in CONFIGS}


def strategy_config(plain: Mapping[str, Any], at: str = "strategy") -> StrategyConfig:
    """The typed settings of the strategy that ``plain["kind"]`` names.

    Raises :class:`DataError` for an unknown kind, an unknown key, or a value out of its range.
    """
    kind = plain.get("kind")
    config = KINDS.get(kind) if isinstance(kind, str) else None
    if config is None:
        guess = closest(kind, list(KINDS)) if isinstance(kind, str) else ""
        raise DataError(f"{at}.kind: found {kind!r}{guess}; allowed: {' | '.join(KINDS)}")
    return build(config, plain, at)

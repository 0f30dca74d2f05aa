"""Lightning's strategy for each kind of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scalewise.train.strategies.base import Setting, StrategyConfig
from scalewise.train.strategies.ddp import build_ddp
from scalewise.train.strategies.fsdp import build_fsdp
from scalewise.train.strategies.heterogeneous import build_heterogeneous
from scalewise.train.strategies.local_sgd import build_local_sgd
from scalewise.train.strategies.pipeline import build_pipeline
from scalewise.train.strategies.task_parallel import build_task_parallel
from scalewise.train.strategies.tensor import build_tensor

if TYPE_CHECKING:
    from pytorch_lightning.strategies import Strategy

BUILDERS: dict[str, Callable[[Any, Setting], Strategy | str]] = {
    "single": lambda config, setting: "auto",
    "ddp": build_ddp,
    "local_sgd": build_local_sgd,
    "task_parallel": build_task_parallel,
    "heterogeneous": build_heterogeneous,
    "fsdp": build_fsdp,
    "pipeline": build_pipeline,
    "tensor": build_tensor,
}
"""By ``kind``. ``single`` is Lightning's own choice; for ``auto``, the sweep chooses one of these
before a cell starts."""


def build(config: StrategyConfig, setting: Setting) -> Strategy | str:
    """Lightning's strategy, or its name. Raises ValueError for what this host cannot do."""
    builder = BUILDERS.get(config.kind)
    if builder is None:
        raise ValueError(
            f"strategy: found {config.kind} in a single cell; allowed: {' | '.join(BUILDERS)}"
        )
    return builder(config, setting)

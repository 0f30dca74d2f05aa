"""Lightning's strategy for each kind of settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalewise.config import DeviceKind, StrategyConfig
from scalewise.train.strategies.ddp import build_ddp, build_heterogeneous
from scalewise.train.strategies.model_parallel import build_fsdp, build_tensor
from scalewise.train.strategies.pipeline import build_pipeline
from scalewise.train.strategies.replicas import build_local_sgd, build_task_parallel

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from pytorch_lightning.strategies import Strategy

    from scalewise.config import CellConfig
    from scalewise.train.recording import BatchSizes


@dataclass(frozen=True)
class Setting:
    """What a strategy is built for, on one rank."""

    device_kind: DeviceKind
    rank: int
    world_size: int
    module: pl.LightningModule
    """As it was built, before any device has it."""
    cell: CellConfig
    batch_sizes: BatchSizes
    sample_batch: Callable[[int], Any]
    """As many samples of the training set as a batch on the CPU, for measuring. Raises ValueError
    where a user's LightningDataModule holds them."""


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

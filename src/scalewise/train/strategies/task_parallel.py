"""Independent replicas: as many models as devices, which never meet.

What they train together a second is the most that any data-parallel strategy could reach on these
devices with these batches: the ceiling, without a reduction and without waiting for one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from scalewise.train.strategies.process_group import ProcessGroupConfig, group_arguments
from scalewise.train.strategies.replicas import unwrapped_replicas

if TYPE_CHECKING:
    from pytorch_lightning.strategies import DDPStrategy

    from scalewise.train.strategies.base import Setting


@dataclass(frozen=True)
class TaskParallelConfig(ProcessGroupConfig):
    """``strategy=task_parallel``. The process group serves the start, the end and scoring only."""

    KIND: ClassVar[str] = "task_parallel"
    ONE_MODEL: ClassVar[bool] = False


def build_task_parallel(config: TaskParallelConfig, setting: Setting) -> DDPStrategy:
    """Replicas that send nothing to one another while they train."""
    strategy: Any = unwrapped_replicas()(**group_arguments(config, setting))
    built: DDPStrategy = strategy
    return built

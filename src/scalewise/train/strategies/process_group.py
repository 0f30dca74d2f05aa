"""The settings of strategies whose ranks talk to each other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from scalewise.train.strategies.base import DeviceKind, StrategyConfig

if TYPE_CHECKING:
    from scalewise.train.strategies.base import Setting

Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True)
class ProcessGroupConfig(StrategyConfig):
    """A strategy with a process group over all of its ranks."""

    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """``auto``: NCCL on GPUs, gloo on CPUs."""

    def backend_for(self, device_kind: DeviceKind) -> Backend:
        """The process-group backend on devices of that kind.

        Raises ValueError for NCCL without GPUs.
        """
        if self.backend == "auto":
            return "nccl" if device_kind == "cuda" else "gloo"
        if self.backend == "nccl" and device_kind == "cpu":
            raise ValueError("strategy.backend: found nccl on a CPU host; allowed: gloo or auto")
        return self.backend


def group_arguments(config: ProcessGroupConfig, setting: Setting) -> dict[str, Any]:
    """What Lightning makes the process group with: backend and ``sweep.collective_timeout_s``.

    Raises ValueError for NCCL without GPUs.
    """
    return {
        "process_group_backend": config.backend_for(setting.device_kind),
        "timeout": timedelta(seconds=setting.cell.sweep.collective_timeout_s),
    }

"""Hydra accepts launchers from this namespace alone; what they do lies in ``scalewise.sweep``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class MatrixSweeper(BasicSweeper):
    """``hydra/sweeper=matrix``: every combination, as Hydra's basic sweeper does.

    That one composes every job only to see that it can be; our launchers compose and check all
    of them before the first starts, so here nothing is done twice.
    """

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Left to the launcher."""


class LocalLauncher(Launcher):
    """``hydra/launcher=local``: the cells of a sweep on this host."""

    def __init__(self, policy: Literal["exclusive", "packed"] = "exclusive") -> None:
        self.policy: Literal["exclusive", "packed"] = policy
        self._config: DictConfig | None = None
        self._context: HydraContext | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self._context, self._config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        # Imported here because Hydra imports this module at every start, --help included.
        from scalewise.sweep.launcher import launch

        assert self._config is not None and self._context is not None, "Hydra calls setup first"
        return launch(self._config, self._context, job_overrides, initial_job_idx, self.policy)


class SlurmLauncher(Launcher):
    """``hydra/launcher=slurm``: the cells of a sweep as jobs of a cluster."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        """They belong to ``scalewise.sweep.slurm.SlurmConfig``, which checks them."""
        self._config: DictConfig | None = None
        self._context: HydraContext | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self._context, self._config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from scalewise.sweep.launcher import launch_on_slurm

        assert self._config is not None and self._context is not None, "Hydra calls setup first"
        return launch_on_slurm(
            self._config, self._context, job_overrides, initial_job_idx, self.options
        )

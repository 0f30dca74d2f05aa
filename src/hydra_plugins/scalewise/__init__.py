"""Hydra accepts launchers from this namespace alone; what they do lies in ``scalewise.sweep``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, ClassVar

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class MatrixSweeper(BasicSweeper):
    """``hydra/sweeper=matrix``: every combination of the choices, or of several grids of them.

    Beside what Hydra's basic sweeper takes:

    Args:
        grids: rows of overrides whose combinations are put one after the other.

    Hydra's own composes every job only to see that it can be; our launchers compose and check all
    of them before the first starts, so here nothing is done twice.
    """

    def __init__(
        self,
        max_batch_size: int | None = None,
        params: Mapping[str, Any] | None = None,
        grids: Sequence[str] | None = None,
    ) -> None:
        super().__init__(max_batch_size, None)
        self._choices = (grids, {} if params is None else params)
        self._typed: list[str] = []

    def sweep(self, arguments: list[str]) -> Any:
        from scalewise.config import as_typed

        self._typed = as_typed(arguments)
        return super().sweep(arguments)

    def split_arguments(  # type: ignore[override] # Hydra's is static; it is called on self
        self, overrides: list[Any], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        """The jobs' overrides, in batches. ``overrides`` are read again with the grids' own."""
        from scalewise.config import ConfigError
        from scalewise.sweep import combinations, texts

        assert self.hydra_context is not None and self.config is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        grids, params = self._choices
        if not isinstance(params, Mapping):
            raise ConfigError(f"hydra.sweeper.params: found {params!r}; allowed: KEY: VALUES")
        if max_batch_size is not None and not (
            isinstance(max_batch_size, int) and max_batch_size > 0
        ):
            raise ConfigError(
                f"hydra.sweeper.max_batch_size: found {max_batch_size!r}; allowed: 1 or more, null"
            )
        jobs = combinations(texts(grids), params, self._typed, parser)
        return [list(batch) for batch in self.split_overrides_to_chunks(jobs, max_batch_size)]

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Left to the launcher."""


class _SweepLauncher(Launcher):
    """What launchers learn from Hydra before the sweeper begins."""

    EXECUTOR: ClassVar[str]
    """The class that runs its cells."""

    def __init__(self, **options: Any) -> None:
        """``options`` are read and checked where the sweep reads its configuration."""
        self.options = options
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
        from scalewise.sweep import launch

        assert self._config is not None and self._context is not None, "Hydra calls setup first"
        executor = resolve_name(self.EXECUTOR).of(self.options)
        return launch(self._config, self._context, job_overrides, initial_job_idx, executor)


class LocalLauncher(_SweepLauncher):
    """``hydra/launcher=local``: the cells of a sweep on this host."""

    EXECUTOR = "scalewise.sweep:LocalExecutor"


class SlurmLauncher(_SweepLauncher):
    """``hydra/launcher=slurm``: the cells of a sweep as jobs of a cluster."""

    EXECUTOR = "scalewise.cluster:SlurmExecutor"


class RayLauncher(_SweepLauncher):
    """``hydra/launcher=ray``: the cells of a sweep on a Ray cluster."""

    EXECUTOR = "scalewise.cluster:RayExecutor"

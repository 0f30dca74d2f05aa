"""Executors of cells on other hosts: SLURM and Ray. Each imports its own files alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalewise.sweep import Engine, make_display


def slurm_engine(options: Mapping[str, Any]) -> Callable[[Path], Engine]:
    """Makes the engine of ``hydra/launcher=slurm``. Raises :class:`ConfigError`."""
    from scalewise.cluster.hosts import launcher_config
    from scalewise.cluster.slurm import SlurmConfig
    from scalewise.cluster.slurm_executor import SlurmExecutor

    config = launcher_config(SlurmConfig, options)
    return lambda folder: Engine(folder, SlurmExecutor(config), make_display())


def ray_engine(options: Mapping[str, Any]) -> Callable[[Path], Engine]:
    """Makes the engine of ``hydra/launcher=ray``. Raises :class:`ConfigError`."""
    from scalewise.cluster.hosts import launcher_config
    from scalewise.cluster.ray_executor import RayConfig, RayExecutor

    config = launcher_config(RayConfig, options)
    return lambda folder: Engine(folder, RayExecutor(config), make_display())

"""Executors of cells on other hosts: SLURM and Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hydra.core.utils import JobReturn
from hydra.types import HydraContext
from omegaconf import DictConfig

from scalewise.sweep import Engine, launch_with, make_display


def launch_on_cluster(
    cluster: Literal["slurm", "ray"],
    master: DictConfig,
    context: HydraContext,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
    options: Mapping[str, Any],
) -> list[JobReturn]:
    """``hydra/launcher=slurm|ray``: the same, with ``options`` for its configuration."""
    make_engine = engine_maker(cluster, options)
    return launch_with(master, context, job_overrides, initial_job_idx, make_engine)


def engine_maker(cluster: str, options: Mapping[str, Any]) -> Callable[[Path], Engine]:
    """Imports one cluster's files alone. Raises :class:`ConfigError` for wrong options."""
    from scalewise.cluster.hosts import launcher_config

    if cluster == "slurm":
        from scalewise.cluster.slurm import SlurmConfig
        from scalewise.cluster.slurm_executor import PrintedSweep, SlurmExecutor

        slurm = launcher_config(SlurmConfig, options)
        kind = PrintedSweep if slurm.print_only else Engine
        return lambda folder: kind(folder, SlurmExecutor(slurm), make_display())
    from scalewise.cluster.ray_executor import RayConfig, RayExecutor

    ray = launcher_config(RayConfig, options)
    return lambda folder: Engine(folder, RayExecutor(ray), make_display())

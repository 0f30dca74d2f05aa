"""The engine for each kind of cluster, and only its own rooms loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalewise.sweep.display import make_display
from scalewise.sweep.engine import Engine


def engine_maker(cluster: str, options: Mapping[str, Any]) -> Callable[[Path], Engine]:
    """Imports one cluster's rooms alone. Raises :class:`ConfigError` for wrong options."""
    if cluster == "slurm":
        from scalewise.sweep.slurm import slurm_config
        from scalewise.sweep.slurm_engine import SlurmEngine

        slurm = slurm_config(options)
        return lambda folder: SlurmEngine(folder, slurm, make_display(folder=folder))
    from scalewise.sweep.ray import ray_config
    from scalewise.sweep.ray_engine import RayEngine

    ray = ray_config(options)
    return lambda folder: RayEngine(folder, ray, make_display(folder=folder))

"""What Hydra and its sweepers get back for the cells of a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from scalewise.sweep.job import CellFailed, Outcome
from scalewise.sweep.plan import Cell
from scalewise.sweep.sweep_report import SweepReport


def outcomes_of(report: SweepReport, cells: Sequence[Cell]) -> list[Outcome]:
    """How each of ``cells`` ended."""
    return [report.outcomes[cell.planned.cell_id] for cell in cells]


def objective_over(outcomes: Sequence[Outcome]) -> float | None:
    """The mean over repeats; None if any of them has none."""
    values = [outcome.objective for outcome in outcomes]
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present and len(present) == len(values) else None


def job_return(
    overrides: list[str],
    config: DictConfig | None,
    folder: Path,
    outcomes: Sequence[Outcome],
    basic_sweeper: bool,
) -> JobReturn:
    """What a sweeper gets for one of its jobs, whose cells came to ``outcomes``."""
    task_config: Any = None
    hydra_config = None
    if config is not None:
        keys = [str(key) for key in config if key != "hydra"]
        task_config = OmegaConf.masked_copy(config, keys)
        hydra_config = OmegaConf.masked_copy(config, ["hydra"])
    result = JobReturn(
        overrides=overrides,
        cfg=task_config,
        hydra_cfg=hydra_config,
        working_dir=str(folder),
        task_name="scalewise",
        status=JobStatus.COMPLETED,
    )
    result.return_value = objective_over(outcomes)
    if result.return_value is None and not basic_sweeper:
        # Optuna and its like count failures themselves. The basic sweeper would stop at the
        # first one; there, the exit status says it.
        result.status = JobStatus.FAILED
        why = next((o.message for o in outcomes if o.objective is None), "its first stage failed")
        result.return_value = CellFailed(why)
    return result

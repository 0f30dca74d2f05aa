"""From Hydra to the engine and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from scalewise.config import ConfigError, config_id, resolve
from scalewise.records import SweepFolder
from scalewise.sweep.display import make_display
from scalewise.sweep.engine import Engine, Policy, SweepReport
from scalewise.sweep.job import CellFailed, Outcome
from scalewise.sweep.plan import Cell, Request, plan, request

ran: list[SweepReport] = []
"""Every sweep this process has run: the entry reports on them and derives its exit status."""


def run_single(composed: DictConfig, folder: Path, overrides: Sequence[str]) -> float | None:
    """``python train.py`` without ``-m``: the composed configuration, alone in ``folder``."""
    one = request(overrides, resolve(composed))
    check_resumed([one])
    cells = plan([one], one.cell.sweep.order_seed)
    report = _run(folder, "exclusive", cells)
    return _objective(_outcomes(report, report.cells))


def launch(
    master: DictConfig,
    context: HydraContext,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
    policy: Policy,
) -> list[JobReturn]:
    """Hydra's ``Launcher.launch``: one return for each list of overrides, in that order."""
    if policy not in ("exclusive", "packed"):
        raise ConfigError(f"hydra.launcher.policy: found {policy!r}; allowed: exclusive | packed")
    if str(master.hydra.sweep.subdir) != ".":
        raise ConfigError(
            f"hydra.sweep.subdir: found {str(master.hydra.sweep.subdir)!r}; scalewise names each "
            "cell's folder after its content: set hydra.sweep.dir instead"
        )
    folder = Path(str(master.hydra.sweep.dir)).resolve()
    composed = [
        _compose(master, context, list(overrides), initial_job_idx + i)
        for i, overrides in enumerate(job_overrides)
    ]
    requests = [request(overrides, resolve(cfg)) for overrides, cfg in composed]
    check_resumed(requests)
    seed = requests[0].cell.sweep.order_seed if requests else 0
    cells = plan(requests, seed)
    report = _run(folder, policy, cells)
    basic = str(master.hydra.sweeper._target_).endswith("BasicSweeper")
    return [
        _job_return(overrides, cfg, folder, _outcomes(report, _cells_of(one, report.cells)), basic)
        for (overrides, cfg), one in zip(composed, requests, strict=True)
    ]


def _compose(
    master: DictConfig, context: HydraContext, overrides: list[str], number: int
) -> tuple[list[str], DictConfig]:
    config = context.config_loader.load_sweep_config(master, overrides)
    with open_dict(config):
        config.hydra.job.id = str(number)
        config.hydra.job.num = number
    where = _chooses_launcher(context.config_loader, config)
    if where or config.hydra.launcher != master.hydra.launcher:
        raise ConfigError(
            f"hydra/launcher: chosen inside {where or 'a swept config'}, where Hydra ignores it; "
            "choose it on the command line: hydra/launcher=NAME"
        )
    return overrides, config


def _chooses_launcher(loader: Any, config: DictConfig) -> str | None:
    """``group=option`` of the chosen config whose defaults list names a launcher, if one does.

    The primary config's own choice has gone before it, and left no trace of it in ``config``.
    """
    for group, option in config.hydra.runtime.choices.items():
        path = f"{str(group).partition('@')[0]}/{option}"
        if not loader.repository.config_exists(path):
            continue
        for default in loader.repository.load_config(path).defaults_list or ():
            chosen = getattr(default, "group", None) or ""
            if default.is_override() and chosen.lstrip("/") == "hydra/launcher":
                return f"{group}={option}"
    return None


def _cells_of(one: Request, cells: Sequence[Cell]) -> list[Cell]:
    wanted = config_id(one.plain)
    return [cell for cell in cells if cell.planned.config_id == wanted]


def check_resumed(requests: Iterable[Request]) -> None:
    """Refuse to finish a sweep that was never begun. Raises :class:`ConfigError`."""
    for one in requests:
        resume = one.cell.sweep.resume
        if resume is not None and not SweepFolder(resume).plan_path.exists():
            raise ConfigError(
                f"sweep.resume: found {resume!r}, which holds no sweep.json; "
                "allowed: the folder of a sweep that was begun"
            )


def _run(folder: Path, policy: Policy, cells: Sequence[Cell]) -> SweepReport:
    engine = Engine(folder, policy, make_display())
    try:
        return engine.run(cells)
    finally:
        _remember(engine.report)


def _remember(report: SweepReport) -> None:
    earlier = next((r for r in ran if r.folder == report.folder), None)
    if earlier is None:
        ran.append(report)
    else:
        # A sweeper that asks in batches fills one folder.
        earlier.outcomes.update(report.outcomes)
        earlier.cells += report.cells


def _outcomes(report: SweepReport, cells: Sequence[Cell]) -> list[Outcome]:
    return [report.outcomes[cell.planned.cell_id] for cell in cells]


def _objective(outcomes: Sequence[Outcome]) -> float | None:
    """The mean over repeats; None if any of them has none."""
    values = [outcome.objective for outcome in outcomes]
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present and len(present) == len(values) else None


def _job_return(
    overrides: list[str],
    config: DictConfig,
    folder: Path,
    outcomes: Sequence[Outcome],
    basic_sweeper: bool,
) -> JobReturn:
    keys = [str(key) for key in config if key != "hydra"]
    task_config: Any = OmegaConf.masked_copy(config, keys)
    result = JobReturn(
        overrides=overrides,
        cfg=task_config,
        hydra_cfg=OmegaConf.masked_copy(config, ["hydra"]),
        working_dir=str(folder),
        task_name="scalewise",
        status=JobStatus.COMPLETED,
    )
    result.return_value = _objective(outcomes)
    if result.return_value is None and not basic_sweeper:
        # Optuna and its like count failures themselves. The basic sweeper would stop at the
        # first one; there, the exit status says it.
        result.status = JobStatus.FAILED
        result.return_value = CellFailed(next(o.message for o in outcomes if o.objective is None))
    return result

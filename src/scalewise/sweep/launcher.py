"""From Hydra to the engine and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from scalewise.config import ConfigError, resolve
from scalewise.records import SweepFolder
from scalewise.sweep.compose import Composer
from scalewise.sweep.display import make_display
from scalewise.sweep.engine import Engine, Policy, SweepReport
from scalewise.sweep.job import CellFailed, Outcome
from scalewise.sweep.plan import Cell, Request, plan, request
from scalewise.sweep.preview import Cluster, ThisHost, preview
from scalewise.sweep.resume import check_options, planned_repeats, refuse_mixing, select

ran: list[SweepReport] = []
"""Every sweep this process has run: the entry reports on them and derives its exit status."""


def run_single(composed: DictConfig, folder: Path, overrides: Sequence[str]) -> float | None:
    """``python train.py`` without ``-m``: the composed configuration, alone in ``folder``."""
    launcher = str(HydraConfig.get().launcher._target_)
    if not launcher.endswith(".LocalLauncher"):
        raise ConfigError(
            f"hydra/launcher: found {launcher.rpartition('.')[2]}, which Hydra asks only for "
            "sweeps; add -m, or leave it out to run here"
        )
    one = request(overrides, resolve(composed))
    cells = plan_in(folder, [one])
    if one.cell.sweep.dry_run:
        _print_preview(folder, cells, ThisHost(), packed=False)
        return None
    report = _run(folder, cells, ThisHost(), lambda f: Engine(f, "exclusive", make_display()))
    return _objective(_outcomes(report, report.cells))


def launch(
    master: DictConfig,
    context: HydraContext,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
    policy: Policy,
) -> list[JobReturn]:
    """``hydra/launcher=local``: one return for each list of overrides, in that order."""
    if policy not in ("exclusive", "packed"):
        raise ConfigError(f"hydra.launcher.policy: found {policy!r}; allowed: exclusive | packed")
    return _launch(
        master, context, job_overrides, initial_job_idx, lambda f: Engine(f, policy, make_display())
    )


def launch_on_slurm(
    master: DictConfig,
    context: HydraContext,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
    options: Mapping[str, Any],
) -> list[JobReturn]:
    """``hydra/launcher=slurm``: the same, with ``options`` for its configuration."""
    from scalewise.sweep.slurm import slurm_config
    from scalewise.sweep.slurm_engine import SlurmEngine

    config = slurm_config(options)
    return _launch(
        master,
        context,
        job_overrides,
        initial_job_idx,
        lambda folder: SlurmEngine(folder, config, make_display()),
    )


def _launch(
    master: DictConfig,
    context: HydraContext,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
    make_engine: Callable[[Path], Engine],
) -> list[JobReturn]:
    if str(master.hydra.sweep.subdir) != ".":
        raise ConfigError(
            f"hydra.sweep.subdir: found {str(master.hydra.sweep.subdir)!r}; scalewise names each "
            "cell's folder after its content: set hydra.sweep.dir instead"
        )
    folder = Path(str(master.hydra.sweep.dir)).resolve()
    composer = Composer(master, context)
    sweeper = str(master.hydra.sweeper._target_)
    basic = sweeper.endswith(("BasicSweeper", "MatrixSweeper"))
    requests = [
        request(overrides, composer.plain(overrides, initial_job_idx + i))
        for i, overrides in enumerate(job_overrides)
    ]
    cells = plan_in(folder, requests)
    local = str(master.hydra.launcher._target_).endswith(".LocalLauncher")
    host = ThisHost() if local else Cluster()
    if any(one.cell.sweep.dry_run for one in requests):
        if not basic:
            raise ConfigError(
                f"sweep.dry_run: found true with {sweeper.rpartition('.')[2]}, which chooses "
                "cells by the results of others; allowed: with hydra/sweeper=matrix"
            )
        _print_preview(folder, cells, host, packed=_is_packed(master))
        return []
    report = _run(folder, cells, host, make_engine)
    by_config: dict[str, list[Cell]] = {}
    for cell in report.cells:
        by_config.setdefault(cell.planned.config_id, []).append(cell)
    returns = []
    for i, (overrides, one) in enumerate(zip(job_overrides, requests, strict=True)):
        outcomes = _outcomes(report, by_config.get(one.config_id, []))
        # The basic sweeper looks at no configuration, and composing thousands takes minutes.
        config = None if basic else composer.compose(overrides, initial_job_idx + i)
        returns.append(_job_return(list(overrides), config, folder, outcomes, basic))
    return returns


def plan_in(folder: Path, requests: Sequence[Request]) -> list[Cell]:
    """The cells that ``requests`` ask for in ``folder``. Raises :class:`ConfigError`."""
    check_resumed(requests)
    for one in requests:
        check_options(one.cell.sweep)
    seed = requests[0].cell.sweep.order_seed if requests else 0
    return plan(requests, seed, planned_repeats(SweepFolder(folder)))


def _is_packed(master: DictConfig) -> bool:
    return bool(OmegaConf.select(master, "hydra.launcher.policy") == "packed")


def _print_preview(folder: Path, cells: Sequence[Cell], host: ThisHost, packed: bool) -> None:
    sweep = SweepFolder(folder)
    selection = select(cells, sweep, cells[0].request.cell.sweep.rerun)
    for line in preview(sweep, selection, host, packed):
        sys.stdout.write(line + "\n")


def check_resumed(requests: Iterable[Request]) -> None:
    """Refuse to finish a sweep that was never begun. Raises :class:`ConfigError`."""
    for one in requests:
        resume = one.cell.sweep.resume
        if resume is not None and not SweepFolder(resume).plan_path.exists():
            raise ConfigError(
                f"sweep.resume: found {resume!r}, which holds no sweep.json; "
                "allowed: the folder of a sweep that was begun"
            )


def _run(
    folder: Path,
    cells: Sequence[Cell],
    host: ThisHost,
    make_engine: Callable[[Path], Engine],
) -> SweepReport:
    sweep = SweepFolder(folder)
    selection = select(cells, sweep, cells[0].request.cell.sweep.rerun)
    for cell in selection.cells:
        host(cell)
    mixed = refuse_mixing(sweep, selection.cells, selection.again, host.models())
    engine = make_engine(folder)
    engine.again = selection.again
    for difference in mixed:
        engine.display.note(f"mixed: {difference}")
    try:
        return engine.run(selection.cells)
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
    config: DictConfig | None,
    folder: Path,
    outcomes: Sequence[Outcome],
    basic_sweeper: bool,
) -> JobReturn:
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
    result.return_value = _objective(outcomes)
    if result.return_value is None and not basic_sweeper:
        # Optuna and its like count failures themselves. The basic sweeper would stop at the
        # first one; there, the exit status says it.
        result.status = JobStatus.FAILED
        result.return_value = CellFailed(next(o.message for o in outcomes if o.objective is None))
    return result

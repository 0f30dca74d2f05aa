"""From Hydra to the engine and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from scalewise.config import ConfigError, resolve
from scalewise.records import SweepFolder
from scalewise.sweep import auto, auto_batch
from scalewise.sweep.compose import Composer, written_keys
from scalewise.sweep.data_files import check_files
from scalewise.sweep.display import make_display
from scalewise.sweep.engine import Engine, SweepReport
from scalewise.sweep.extras import wrapped
from scalewise.sweep.job import CellFailed, Outcome
from scalewise.sweep.left_behind import differences
from scalewise.sweep.local import LocalConfig, local_config
from scalewise.sweep.local_engine import LocalEngine
from scalewise.sweep.own_code import check_own_code
from scalewise.sweep.plan import Cell, Request, plan, request
from scalewise.sweep.preview import Cluster, ThisHost, preview
from scalewise.sweep.resume import Selection, check_options, planned_repeats, refuse_mixing, select
from scalewise.sweep.warm_start import check_warm
from scalewise.typed import DataError, check_finite

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
    wrap = _local(HydraConfig.get().launcher).wrap
    written = written_keys(GlobalHydra.instance().config_loader(), HydraConfig.get().runtime)
    one = request(overrides, wrapped(resolve(composed), wrap), written)
    cells = plan_in(folder, [one])
    check_files([one])
    if one.cell.sweep.dry_run:
        _print_preview(folder, cells, ThisHost(), False, [one])
        return None
    report = _run(
        folder,
        cells,
        ThisHost(),
        lambda f: LocalEngine(f, "exclusive", make_display(folder=f)),
        _left_open([one]),
    )
    return _objective(_outcomes(report, report.cells_of(one.config_id)))


def launch(
    master: DictConfig,
    context: HydraContext,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
) -> list[JobReturn]:
    """``hydra/launcher=local``: one return for each list of overrides, in that order."""
    local = _local(master.hydra.launcher)
    return _launch(
        master,
        context,
        job_overrides,
        initial_job_idx,
        lambda f: LocalEngine(f, local.policy, make_display(folder=f), warm=local.warm),
    )


def launch_on_cluster(
    cluster: Literal["slurm", "ssh", "ray"],
    master: DictConfig,
    context: HydraContext,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
    options: Mapping[str, Any],
) -> list[JobReturn]:
    """``hydra/launcher=slurm|ssh|ray``: the same, with ``options`` for its configuration."""
    make_engine = _engine_maker(cluster, options)
    return _launch(master, context, job_overrides, initial_job_idx, make_engine)


def _engine_maker(cluster: str, options: Mapping[str, Any]) -> Callable[[Path], Engine]:
    """Imports one cluster's rooms alone. Raises :class:`ConfigError` for wrong options."""
    try:
        check_finite(options, "hydra.launcher")
    except DataError as error:
        raise ConfigError(str(error)) from None
    if cluster == "slurm":
        from scalewise.sweep.slurm import slurm_config
        from scalewise.sweep.slurm_engine import SlurmEngine

        slurm = slurm_config(options)
        return lambda folder: SlurmEngine(folder, slurm, make_display(folder=folder))
    if cluster == "ssh":
        from scalewise.sweep.ssh import ssh_config
        from scalewise.sweep.ssh_engine import SshEngine

        ssh = ssh_config(options)
        return lambda folder: SshEngine(folder, ssh, make_display(folder=folder))
    from scalewise.sweep.ray import ray_config
    from scalewise.sweep.ray_engine import RayEngine

    ray = ray_config(options)
    return lambda folder: RayEngine(folder, ray, make_display(folder=folder))


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
    local = str(master.hydra.launcher._target_).endswith(".LocalLauncher")
    launcher = master.hydra.launcher
    wrap = _local(launcher).wrap if local else launcher.get("wrap")
    requests = [
        request(
            overrides,
            wrapped(composer.plain(overrides, initial_job_idx + i), wrap),
            composer.written(overrides),
        )
        for i, overrides in enumerate(job_overrides)
    ]
    if local:
        check_warm(launcher, [one.cell for one in requests])
    cells = plan_in(folder, requests)
    if local:  # other hosts may have files that this one has not
        check_files(requests)
    host = ThisHost() if local else Cluster()
    if any(one.cell.sweep.dry_run for one in requests):
        if not basic:
            raise ConfigError(
                f"sweep.dry_run: found true with {sweeper.rpartition('.')[2]}, which chooses "
                "cells by the results of others; allowed: with hydra/sweeper=matrix"
            )
        _print_preview(folder, cells, host, launcher.get("policy") == "packed", requests)
        return []
    # Optuna asks in batches, and so does a sweeper with max_batch_size.
    whole = basic and master.hydra.sweeper.get("max_batch_size") is None
    report = _run(folder, cells, host, make_engine, _left_open(requests), whole)
    returns = []
    for i, (overrides, one) in enumerate(zip(job_overrides, requests, strict=True)):
        outcomes = _outcomes(report, report.cells_of(one.config_id))
        # The basic sweeper looks at no configuration, and composing thousands takes minutes.
        config = None if basic else composer.compose(overrides, initial_job_idx + i)
        returns.append(_job_return(list(overrides), config, folder, outcomes, basic))
    return returns


def _local(launcher: DictConfig) -> LocalConfig:
    plain: Any = OmegaConf.to_container(launcher, resolve=True)
    return local_config(plain)


def plan_in(folder: Path, requests: Sequence[Request]) -> list[Cell]:
    """The cells that ``requests`` ask for in ``folder``. Raises :class:`ConfigError`."""
    check_resumed(requests)
    for one in requests:
        check_options(one.cell.sweep)
    check_own_code(requests)
    seed = requests[0].cell.sweep.order_seed if requests else 0
    sweep = SweepFolder(folder)
    first = auto.stage_one(auto_batch.with_searches(requests, sweep))
    return plan(tuple(first), seed, planned_repeats(sweep))


def _left_open(requests: Sequence[Request]) -> tuple[Request, ...]:
    """The requests that a first stage decides."""
    return (*auto_batch.left_open(requests), *auto.left_open(requests))


def select_in(cells: Sequence[Cell], sweep: SweepFolder, left_open: Sequence[Request]) -> Selection:
    """What of ``cells`` to look after; a search whose finding is lost is made again."""
    selection = select(cells, sweep, cells[0].request.cell.sweep.rerun)
    return replace(selection, again=selection.again | auto_batch.useless(left_open, sweep))


def _print_preview(
    folder: Path, cells: Sequence[Cell], host: ThisHost, packed: bool, requests: Sequence[Request]
) -> None:
    sweep = SweepFolder(folder)
    left_open = [f"the better of {one}" for one in auto.described(requests)]
    left_open += auto_batch.described(requests, sweep)
    selection = select_in(cells, sweep, _left_open(requests))
    for line in preview(sweep, selection, host, packed, left_open):
        sys.stdout.write(line + "\n")
    for line in differences(sweep, cells, bool(_left_open(requests))):
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
    left_open: tuple[Request, ...],
    whole: bool = True,
) -> SweepReport:
    """``whole``: no further cells will be asked for by the sweeper."""
    sweep = SweepFolder(folder)
    selection = select_in(cells, sweep, left_open)
    for cell in selection.cells:
        host(cell)
    mixed = refuse_mixing(sweep, selection.cells, selection.again, host.models())
    engine = make_engine(folder)
    engine.again = selection.again
    engine.left_open = left_open
    engine.remarks = [f"mixed: {difference}" for difference in mixed]
    if whole and cells[0].request.cell.sweep.resume is not None:
        engine.remarks += differences(sweep, cells, bool(left_open))
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
        why = next((o.message for o in outcomes if o.objective is None), "its first stage failed")
        result.return_value = CellFailed(why)
    return result

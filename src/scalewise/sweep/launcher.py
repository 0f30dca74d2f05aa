"""From Hydra to the engine and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from scalewise.config import ConfigError, resolve
from scalewise.explain import options_of
from scalewise.records import SweepFolder
from scalewise.sweep import auto, auto_batch
from scalewise.sweep.compose import Composer, written_keys
from scalewise.sweep.data_files import check_files
from scalewise.sweep.display import make_display
from scalewise.sweep.engine import Engine, SweepReport
from scalewise.sweep.engines import engine_maker
from scalewise.sweep.extras import wrapped
from scalewise.sweep.left_behind import differences
from scalewise.sweep.local import LocalConfig, local_config
from scalewise.sweep.local_engine import LocalEngine
from scalewise.sweep.own_code import check_own_code
from scalewise.sweep.plan import Cell, Request, folded, given_twice, plan, request
from scalewise.sweep.preview import Cluster, ThisHost, preview
from scalewise.sweep.resume import Selection, check_options, planned_repeats, refuse_mixing, select
from scalewise.sweep.returns import job_return, objective_over, outcomes_of
from scalewise.sweep.sweepers import is_basic
from scalewise.sweep.warm_start import check_warm

ran: list[SweepReport] = []
"""Every sweep this process has run: the entry reports on them and derives its exit status."""


def run_single(composed: DictConfig, folder: Path, overrides: Sequence[str]) -> float | None:
    """``python train.py`` without ``-m``: the composed configuration, alone in ``folder``."""
    launcher = str(HydraConfig.get().launcher._target_)
    if not launcher.endswith(".LocalLauncher"):
        found = f"hydra/launcher: found {launcher.rpartition('.')[2]}, which"
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            ours = ", ".join(options_of("hydra/launcher"))
            raise ConfigError(f"{found} knows nothing of cells; allowed: {ours}")
        raise ConfigError(
            f"{found} Hydra asks only for sweeps; add -m, or leave it out to run here"
        )
    wrap = _local(HydraConfig.get().launcher).wrap
    written = written_keys(GlobalHydra.instance().config_loader(), HydraConfig.get().runtime)
    one = request(overrides, wrapped(resolve(composed), wrap), written)
    cells = plan_in(folder, [one])
    check_files([one])
    if one.cell.sweep.dry_run:
        _print_preview(folder, cells, ThisHost(), False, [one], overrides)
        return None
    report = _run(
        folder,
        cells,
        ThisHost(),
        lambda f: LocalEngine(f, "exclusive", make_display(folder=f)),
        _left_open([one]),
        given_twice(overrides),
    )
    return objective_over(outcomes_of(report, report.cells_of(one.config_id)))


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
    make_engine = engine_maker(cluster, options)
    return _launch(master, context, job_overrides, initial_job_idx, make_engine)


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
    basic = is_basic(master) or sweeper.endswith(".MatrixSweeper")
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
    typed = [] if initial_job_idx else list(master.hydra.overrides.task)  # said once
    if any(one.cell.sweep.dry_run for one in requests):
        if not basic:
            raise ConfigError(
                f"sweep.dry_run: found true with {sweeper.rpartition('.')[2]}, which chooses "
                "cells by the results of others; allowed: with hydra/sweeper=matrix"
            )
        packed = launcher.get("policy") == "packed"
        _print_preview(folder, cells, host, packed, requests, typed)
        return []
    # Optuna asks in batches, and so does a sweeper with max_batch_size.
    whole = basic and master.hydra.sweeper.get("max_batch_size") is None
    remarks = _remarks(requests, typed)
    report = _run(folder, cells, host, make_engine, _left_open(requests), remarks, whole)
    returns = []
    for i, (overrides, one) in enumerate(zip(job_overrides, requests, strict=True)):
        outcomes = outcomes_of(report, report.cells_of(one.config_id))
        # The basic sweeper looks at no configuration, and composing thousands takes minutes.
        config = None if basic else composer.compose(overrides, initial_job_idx + i)
        returns.append(job_return(list(overrides), config, folder, outcomes, basic))
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
    folder: Path,
    cells: Sequence[Cell],
    host: ThisHost,
    packed: bool,
    requests: Sequence[Request],
    typed: Sequence[str],
) -> None:
    """Raises :class:`ConfigError` for what a run would be refused for."""
    sweep = SweepFolder(folder)
    left_open = [f"the better of {one}" for one in auto.described(requests)]
    left_open += auto_batch.described(requests, sweep)
    selection = select_in(cells, sweep, _left_open(requests))
    lines = [*preview(sweep, selection, host, packed, left_open), *_remarks(requests, typed)]
    lines += _mixed(sweep, selection, host)
    lines += differences(sweep, cells, bool(_left_open(requests)))
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _remarks(requests: Sequence[Request], typed: Sequence[str]) -> list[str]:
    """What a user may have meant otherwise."""
    line = folded(requests)
    return [*given_twice(typed), *([] if line is None else [line])]


def _mixed(sweep: SweepFolder, selection: Selection, host: ThisHost) -> list[str]:
    """What results of the folder differ in from those that would be added; refuses them first."""
    on_this_host = not isinstance(host, Cluster)  # files may be others where the cells would run
    again = selection.again
    found = refuse_mixing(sweep, selection.cells, again, host.models(), on_this_host)
    return [f"mixed: {difference}" for difference in found]


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
    remarks: Sequence[str] = (),
    whole: bool = True,
) -> SweepReport:
    """``remarks`` are said first; ``whole``: no further cells will be asked for by the sweeper."""
    sweep = SweepFolder(folder)
    selection = select_in(cells, sweep, left_open)
    for cell in selection.cells:
        host(cell)
    mixed = _mixed(sweep, selection, host)
    engine = make_engine(folder)
    engine.again = selection.again
    engine.left_open = left_open
    engine.remarks = [*remarks, *mixed]
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

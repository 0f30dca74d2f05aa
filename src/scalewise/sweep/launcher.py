"""From Hydra to the engine and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from scalewise.sweep.asked import left_open, mixed, plan_in, remarks, select_in
from scalewise.sweep.compose import Composer, written_keys
from scalewise.sweep.data_files import check_files
from scalewise.sweep.display import make_display
from scalewise.sweep.engine import Engine
from scalewise.sweep.engines import engine_maker
from scalewise.sweep.extras import wrapped
from scalewise.sweep.left_behind import differences
from scalewise.sweep.local import LocalConfig, local_config
from scalewise.sweep.local_engine import LocalEngine
from scalewise.sweep.places import Cluster, ThisHost
from scalewise.sweep.plan import Cell, Request, given_twice, request
from scalewise.sweep.preview import print_preview
from scalewise.sweep.returns import job_return, objective_over, outcomes_of
from scalewise.sweep.sweep_report import SweepReport, remember
from scalewise.sweep.sweepers import is_basic


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
        print_preview(folder, cells, ThisHost(), False, [one], overrides)
        return None
    report = _run(
        folder,
        cells,
        ThisHost(),
        lambda f: LocalEngine(f, "exclusive", make_display(folder=f)),
        left_open([one]),
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
    return launch_with(
        master,
        context,
        job_overrides,
        initial_job_idx,
        lambda f: LocalEngine(f, local.policy, make_display(folder=f), warm=local.warm),
    )


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


def launch_with(
    master: DictConfig,
    context: HydraContext,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
    make_engine: Callable[[Path], Engine],
) -> list[JobReturn]:
    """The same on the engine that ``make_engine`` makes for the sweep's folder."""
    folder = _folder_of(master)
    composer = Composer(master, context)
    sweeper = str(master.hydra.sweeper._target_)
    basic = is_basic(master) or sweeper.endswith(".MatrixSweeper")
    launcher = master.hydra.launcher
    local = str(launcher._target_).endswith(".LocalLauncher")
    wrap = _local(launcher).wrap if local else launcher.get("wrap")
    requests = [
        request(
            overrides,
            wrapped(composer.plain(overrides, initial_job_idx + i), wrap),
            composer.written(overrides),
        )
        for i, overrides in enumerate(job_overrides)
    ]
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
        print_preview(folder, cells, host, packed, requests, typed)
        return []
    # Optuna asks in batches, and so does a sweeper with max_batch_size.
    whole = basic and master.hydra.sweeper.get("max_batch_size") is None
    said = remarks(requests, typed)
    report = _run(folder, cells, host, make_engine, left_open(requests), said, whole)
    returns = []
    for i, (overrides, one) in enumerate(zip(job_overrides, requests, strict=True)):
        outcomes = outcomes_of(report, report.cells_of(one.config_id))
        # The basic sweeper looks at no configuration, and composing thousands takes minutes.
        config = None if basic else composer.compose(overrides, initial_job_idx + i)
        returns.append(job_return(list(overrides), config, folder, outcomes, basic))
    return returns


def _folder_of(master: DictConfig) -> Path:
    """The sweep's. Raises :class:`ConfigError` where its cells' folders were given names."""
    subdir = str(master.hydra.sweep.subdir)
    if subdir != ".":
        raise ConfigError(
            f"hydra.sweep.subdir: found {subdir!r}; scalewise names each cell's folder after its "
            "content: set hydra.sweep.dir instead"
        )
    return Path(str(master.hydra.sweep.dir)).resolve()


def _local(launcher: DictConfig) -> LocalConfig:
    plain: Any = OmegaConf.to_container(launcher, resolve=True)
    return local_config(plain)


def _run(
    folder: Path,
    cells: Sequence[Cell],
    host: ThisHost,
    make_engine: Callable[[Path], Engine],
    undecided: tuple[Request, ...],
    said: Sequence[str] = (),
    whole: bool = True,
) -> SweepReport:
    """Run the cells that are not done, and remember what became of them.

    Args:
        undecided: the requests that a first stage decides.
        said: lines to say first.
        whole: the sweeper will ask for no further cells.
    """
    sweep = SweepFolder(folder)
    selection = select_in(cells, sweep, undecided)
    for cell in selection.cells:
        host(cell)
    lines = [*said, *mixed(sweep, selection, host)]
    engine = make_engine(folder)
    engine.again = selection.again
    engine.left_open = undecided
    engine.remarks = lines
    if whole and cells[0].request.cell.sweep.resume is not None:
        engine.remarks += differences(sweep, cells, bool(undecided))
    try:
        return engine.run(selection.cells)
    finally:
        remember(engine.report)

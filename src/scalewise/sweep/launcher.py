"""Leads from Hydra to the engine and back; the table of contents of a sweep."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from scalewise.config import (
    DEFAULT_OBJECTIVE,
    ConfigError,
    as_typed,
    keep_known_keys,
    known_mode,
    of_validation,
    options_of,
    place_on_devices,
    resolve,
)
from scalewise.gpu import HostMismatch
from scalewise.records import ENV_SECRETS, SweepFolder, secrets_of
from scalewise.supervisor import CellFailed
from scalewise.sweep.auto import (
    describe_later,
    first_stage,
    rehearse_absent,
    settle_alone,
    undecided_requests,
)
from scalewise.sweep.compose import Composer, written_keys
from scalewise.sweep.engine import Engine, SweepReport, add_sweep_report, sweep_reports
from scalewise.sweep.executor import Executor
from scalewise.sweep.local_executor import LocalExecutor
from scalewise.sweep.plan import Cell, Request, folded, plan, request, run_once, wrapped
from scalewise.sweep.preflight import Cluster, ThisHost, check_files, take_own_batches
from scalewise.sweep.preview import print_preview
from scalewise.sweep.resume import check_options, planned_repeats, refuse_mixing, select
from scalewise.sweep.status_view import make_display


def job_return(
    overrides: list[str], report: SweepReport, config_id: str, basic_sweeper: bool
) -> JobReturn:
    """The answer to a sweeper for one of its jobs, whose configuration has ``config_id``."""
    result = JobReturn(overrides, working_dir=str(report.folder), task_name="scalewise")
    result.status, result.return_value = JobStatus.COMPLETED, report.objective_of(config_id)
    if result.return_value is None and not basic_sweeper:
        # Optuna and its like count failures themselves. The basic sweeper would stop at the
        # first one; there, the exit status says it.
        result.status = JobStatus.FAILED
        result.return_value = CellFailed(report.why_without(config_id))
    return result


def run_single(composed: DictConfig, folder: Path, overrides: Sequence[str]) -> float | None:
    """``python train.py`` without ``-m``: the composed configuration, alone in ``folder``."""
    hydra = HydraConfig.get()
    _discard_written(hydra)
    launcher = str(hydra.launcher._target_)
    if not launcher.endswith(".LocalLauncher"):
        found = f"hydra/launcher: found {launcher.rpartition('.')[2]}, which"
        if hydra.mode is RunMode.MULTIRUN:
            ours = ", ".join(options_of("hydra/launcher"))
            raise ConfigError(f"{found} knows nothing of cells; allowed: {ours}")
        raise ConfigError(
            f"{found} Hydra asks only for sweeps; add -m, or leave it out to run here"
        )
    typed: Any = OmegaConf.to_container(hydra.launcher, resolve=True)
    executor = LocalExecutor.of({key: value for key, value in typed.items() if key != "_target_"})
    written = written_keys(GlobalHydra.instance().config_loader(), hydra.runtime)
    plain = wrapped(resolve(composed, hydra.runtime.choices), executor.config.wrap)
    (one,), beside, lines = _settled([request(overrides, plain, written)], executor.host)
    report = _run(folder, [one, *beside], executor, lines)
    return None if report is None else report.objective_of(one.config_id)


def launch(
    master: DictConfig,
    context: HydraContext,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
    executor: Executor[Any],
) -> list[JobReturn]:
    """One return for each list of overrides, in that order. Raises :class:`ConfigError`."""
    folder = Path(str(master.hydra.sweep.dir)).resolve()
    _discard_written(master.hydra)
    # Hydra's default, ${hydra.job.num}, is known to each job alone.
    typed: Any = OmegaConf.to_container(master.hydra.sweep, resolve=False)
    if (subdir := typed["subdir"]) != ".":
        raise ConfigError(
            f"hydra.sweep.subdir: found {subdir!r}; scalewise names each cell's folder after its "
            "content: set hydra.sweep.dir instead"
        )
    composer = Composer(master, context)
    sweeper = str(master.hydra.sweeper._target_)
    basic = sweeper.endswith(".MatrixSweeper")
    wrap = executor.config.wrap
    jobs = [as_typed(overrides) for overrides in job_overrides]
    composed = [
        place_on_devices(wrapped(composer.plain(job, initial_job_idx + i), wrap), job)
        for i, job in enumerate(jobs)
    ]
    asked = [
        request(job, plain, composer.written(job))
        for job, plain in zip(jobs, keep_known_keys(composed), strict=True)
    ]
    requests, beside, lines = _settled(asked, executor.host)
    if not basic:
        _check_objective(master.hydra.sweeper, requests)
        # What chooses by results asks for one, and for pairs by chance alone.
        requests = [run_once(one) for one in requests]
    if not basic and any(one.cell.sweep.dry_run for one in requests):
        raise ConfigError(
            f"sweep.dry_run: found true with {sweeper.rpartition('.')[2]}, which chooses "
            "cells by the results of others; allowed: with hydra/sweeper=matrix"
        )
    report = _run(folder, [*requests, *beside], executor, lines)
    if report is None:
        return []
    answers = zip(job_overrides, requests, strict=True)
    return [job_return(list(overrides), report, one.config_id, basic) for overrides, one in answers]


def _settled(
    asked: Sequence[Request], host: ThisHost
) -> tuple[list[Request], list[Request], list[str]]:
    """The requests as they run on ``host``, rehearsals beside them, and lines on what changed."""
    own, lines = take_own_batches(asked)
    requests, more = settle_alone(own, host.devices_of)
    if not any(one.cell.rehearse.on for one in requests):
        return requests, [], [*lines, *more]
    settled, beside, said = rehearse_absent(requests, host.devices_of, host.models_of)
    return settled, beside, [*lines, *more, *said]


def _check_objective(sweeper: DictConfig, requests: Sequence[Request]) -> None:
    """Refuse a search for the worst, or for what no cell measures. Raises :class:`ConfigError`."""
    typed = sweeper.get("direction")
    direction = getattr(typed, "name", typed)
    for cell in (one.cell for one in requests):
        asked, why = cell.sweep, cell.unscored(at_end=True)
        ours = cell.model.target.startswith("scalewise.")  # others may log what is named, by hand
        certain = ours or asked.objective == DEFAULT_OBJECTIVE
        if why and certain and of_validation(asked.objective):
            raise ConfigError(f"sweep.objective: found {asked.objective} with {why}")
        mode = asked.mode or known_mode(asked.objective)
        if direction in ("minimize", "maximize") and mode is not None and direction[:3] != mode:
            more = "smaller" if mode == "min" else "larger"
            what = f"sweep.objective={asked.objective}, which is better the {more} it is"
            raise ConfigError(
                f"hydra.sweeper.direction: found {direction} with {what}; allowed: {mode}imize, or "
                f"sweep.mode={direction[:3]}"
            )


def _discard_written(hydra: HydraConf) -> None:
    """Remove what Hydra wrote for this job or sweep: it may hold secrets, and is not wanted."""
    if hydra.mode is RunMode.MULTIRUN:
        Path(hydra.sweep.dir, "multirun.yaml").unlink(missing_ok=True)
    if hydra.output_subdir is not None and not OmegaConf.is_missing(hydra.runtime, "output_dir"):
        folder = Path(hydra.runtime.output_dir, hydra.output_subdir)
        for name in ("config", "hydra", "overrides"):
            (folder / f"{name}.yaml").unlink(missing_ok=True)
        with suppress(OSError):  # other files are in it
            folder.rmdir()


def _run(
    folder: Path, requests: Sequence[Request], executor: Executor[Any], lines: Sequence[str]
) -> SweepReport | None:
    """Run the cells that are not done; None where ``sweep.dry_run`` prints what would run."""
    _hand_on_secrets(requests)
    sweep, host = SweepFolder(folder), executor.host
    cells = plan_in(folder, requests)
    if not isinstance(host, Cluster):  # other hosts may have files that this one has not
        check_files(requests)
    selection = select(cells, sweep, cells[0].request.cell.sweep.rerun)
    for cell in selection.cells:
        try:
            host(cell)
        except HostMismatch as mismatch:  # of a grid the engine skips it, in these words
            # A script was asked for on these devices; of a grid some cells may fit elsewhere.
            if cell.request.cell.script and not sweep.is_done(cell.planned):
                raise ConfigError(str(mismatch)) from None
    remarks = [*lines, *filter(None, [folded(requests)])]
    remarks += refuse_mixing(sweep, selection.cells, selection.rerun_ids, host.models())
    if any(one.cell.sweep.dry_run for one in requests):
        later = describe_later(requests)
        print_preview(sweep, selection, host, executor.policy == "packed", later, remarks)
        return None
    engine = Engine(folder, executor, make_display())
    engine.rerun_ids = selection.rerun_ids
    engine.undecided_requests = undecided_requests(requests)
    earlier = {line for one in sweep_reports if one.folder == folder for line in one.remarks}
    engine.report.remarks = [line for line in remarks if line not in earlier]
    try:
        return engine.run(selection.cells)
    finally:
        add_sweep_report(engine.report)


def _hand_on_secrets(requests: Sequence[Request]) -> None:
    """Into the environment of all processes to come."""
    found: dict[str, Any] = {}
    for one in requests:
        for key, value in secrets_of(one.plain).items():
            if found.setdefault(key, value) != value:
                raise ConfigError(f"{key}: found two values of a secret; allowed: one in a sweep")
    os.environ[ENV_SECRETS] = json.dumps(found)


def plan_in(folder: Path, requests: Sequence[Request]) -> list[Cell]:
    """The cells that ``requests`` ask for in ``folder``. Raises :class:`ConfigError`."""
    for one in requests:
        check_options(one.cell.sweep)
    seed = requests[0].cell.sweep.order_seed if requests else 0
    return plan(tuple(first_stage(requests)), seed, planned_repeats(SweepFolder(folder)))

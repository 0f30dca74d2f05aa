"""Which cells of a folder run again, which run more often, and what must not be mixed there.

Its lock keeps a folder to one sweep at a time.
"""

from __future__ import annotations

import fnmatch
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from scalewise.config import ConfigError, SweepConfig, own_classes
from scalewise.host import (
    CLASS_FILES,
    FileLock,
    code_changes,
    files_now,
    from_here,
    plural,
    running_code,
)
from scalewise.records import (
    PROTOCOL,
    UNFINISHED,
    CellFolder,
    Ending,
    PlannedCell,
    RecordError,
    SweepFolder,
    cell_state,
    load_or_none,
)
from scalewise.supervisor import mendable
from scalewise.sweep.plan import Cell


@dataclass(frozen=True)
class Selection:
    """The cells that one invocation looks after."""

    cells: tuple[Cell, ...]
    """Those it reports on: done ones are left alone, unless they are in ``rerun_ids``."""
    rerun_ids: frozenset[str]
    """Ids of done cells whose results are set aside, so that they run once more."""


def select(cells: Sequence[Cell], folder: SweepFolder, rerun: str | None) -> Selection:
    """Apply ``sweep.rerun``: null, ``failed``, ``all``, or a pattern for cell names.

    Raises :class:`ConfigError` if it selects nothing.
    """
    if rerun is None:
        return Selection(tuple(cells), frozenset())
    planned = [cell.planned for cell in cells]
    done = {one.cell_id for one in planned if folder.is_done(one)}
    chosen = {
        one.cell_id
        for one in planned
        if is_rerun(one, rerun)
        or (rerun == "failed" and cell_state(folder.cell(one.name), one.cell_id).state == "failed")
    }
    if not chosen:
        raise ConfigError(
            f"sweep.rerun: found {rerun!r}, which fits none of the {len(cells)} "
            f"{plural(len(cells), 'cell')} of {folder.path}; allowed: failed | all | a "
            "pattern for their names"
        )
    kept = tuple(c for c in cells if c.planned.cell_id in chosen | done)
    return Selection(kept, frozenset(chosen & done))


def set_unreadable_aside(folder: CellFolder, planned: PlannedCell) -> str | None:
    """Move away a run that ended, but whose result is not this cell's or cannot be read.

    Returns the line that says so; None where there was nothing to move. Where the result is gone,
    the supervisor moves the rest when the cell runs again.
    """
    if not folder.has_result_file():
        ended = (folder.path / "ranks" / "rank0.json").exists() and not any(folder.attempts())
        if not ended or folder.find_running_attempt() is not None:
            return None
        return f"set aside {planned.name}: its result.json is gone; its records go to earlier/"
    try:
        folder.load_result(planned.cell_id)
    except RecordError as error:
        return f"set aside {planned.name}: {error}; its records now lie in {folder.set_aside()}"
    return None


def is_rerun(planned: PlannedCell, rerun: str | None) -> bool:
    """Whether ``sweep.rerun`` names the cell, done or not."""
    if rerun in (None, "failed"):
        return False
    return rerun == "all" or fnmatch.fnmatchcase(planned.name, str(rerun))


def planned_repeats(folder: SweepFolder) -> dict[str, set[int]]:
    """``config_id`` to its repeats that the folder's plan holds, not always from 0 on end."""
    repeats: dict[str, set[int]] = {}
    for planned in folder.load_plan().cells if folder.plan_path.exists() else ():
        repeats.setdefault(planned.config_id, set()).add(planned.repeat)
    return repeats


def check_options(sweep: SweepConfig) -> None:
    """Refuse to go on with a sweep that was never begun. Raises :class:`ConfigError`."""
    if sweep.resume is not None:
        if not SweepFolder(sweep.resume).plan_path.exists():
            raise ConfigError(
                f"sweep.resume: found {sweep.resume!r}, which holds no sweep.json; "
                "allowed: the folder of a sweep that was begun"
            )
        return
    for key, found in (("rerun", sweep.rerun), ("extend", sweep.extend or None)):
        if found is not None:
            raise ConfigError(
                f"sweep.{key}: found {found!r} without sweep.resume; "
                "allowed: together with sweep.resume=FOLDER; of a new sweep, repeats=N"
            )


def differing(
    folder: SweepFolder, kept: Iterable[PlannedCell], code: Mapping[str, object], gpus: set[str]
) -> list[str]:
    """How this process differs from those that made the results of ``kept``, one line each.

    ``code`` is that of :func:`current_code`, and ``gpus`` are models of the devices that cells
    would run on now; each is empty if unknown.
    """
    found = Counter[str]()
    for planned in kept:
        there = load_or_none(folder.cell(planned.name).load_provenance)
        if there is None:
            continue  # what nobody recorded cannot be compared
        if there.protocol != PROTOCOL:
            found[f"protocol of timing: {there.protocol} there, {PROTOCOL} here"] += 1
        if code:
            found.update(code_changes(there.code, code))
        models = {device.name for device in there.devices}
        if gpus and not models <= gpus:
            found[f"device: {', '.join(sorted(models))} there, {', '.join(sorted(gpus))} here"] += 1
    return [f"{line} (in {count} {plural(count, 'cell')})" for line, count in found.items()]


def current_code(
    cells: Iterable[Cell], folder: SweepFolder, kept: Iterable[PlannedCell]
) -> dict[str, Any]:
    """The fingerprint of the code that these cells would run now.

    With what those of ``kept`` had imported that have a class or a script in common with them.
    """
    classes = {name for cell in cells for name in own_classes(cell.request.plain)}
    scripts = {str(Path(s.file).parent) for c in cells if (s := c.request.cell.script) and s.file}
    search = [*scripts, *sys.path]
    code = running_code(Path.cwd(), classes, search)
    own = code.get(CLASS_FILES, {})
    there = (load_or_none(folder.cell(planned.name).load_provenance) for planned in kept)
    each = [one.code.get(CLASS_FILES, {}) for one in there if one]
    files = {file for one in each if scripts or own.keys() & one.keys() for file in one}
    return {**code, CLASS_FILES: {**own, **files_now(files, search)}}


def refuse_mixing(
    folder: SweepFolder, cells: Sequence[Cell], rerun_ids: Collection[str], gpus: set[str]
) -> list[str]:
    """Lines on how results of the folder that stay differ from those that ``cells`` would add.

    All done cells of the folder stay, but for those in ``rerun_ids``: one report holds them,
    whether or not this command names them. Where nothing is added, only another code is told,
    as none of it runs. Of repeats that read other data the report sets the fewer aside.

    Raises :class:`ConfigError` for any difference unless ``sweep.allow_mixed`` is set; each result
    carries its own provenance either way. Where ``sweep.rerun`` names the cells, only repeats of
    their own configurations are held against them: the others were left as they are on purpose,
    and a report refuses to compare results of two states.
    """
    known = {cell.planned.cell_id: cell.planned for cell in cells}
    if folder.plan_path.exists():
        known |= {planned.cell_id: planned for planned, _ in folder.cells()}
    kept = [p for p in known.values() if p.cell_id not in rerun_ids and folder.is_done(p)]
    stay = {planned.cell_id for planned in kept}
    added = [cell for cell in cells if cell.planned.cell_id not in stay]
    if not kept:
        return []
    if not added:
        left = [cell.planned for cell in cells]
        lines = differing(folder, left, current_code(cells, folder, left), set())
        return [f"not run again: {line}; sweep.rerun=all runs them anew" for line in lines]
    code = current_code(added, folder, kept)
    sweep = cells[0].request.cell.sweep
    configs = {cell.planned.config_id for cell in added}
    mixed_with = kept
    if sweep.rerun not in (None, "failed"):
        mixed_with = [planned for planned in kept if planned.config_id in configs]
    refused = [] if sweep.allow_mixed else differing(folder, mixed_with, code, gpus)
    if refused:
        raise ConfigError(
            f"{from_here(folder.path)}: found results of another state: {'; '.join(refused)}; "
            "allowed: go back to that state, sweep.rerun=all with every repeat of what is to run "
            "again, a new sweep, or sweep.allow_mixed=true"
        )
    return [f"mixed: {line}" for line in differing(folder, kept, code, gpus)]


def way_to_finish(folder: Path, endings: Iterable[Ending]) -> str:
    """The command that finishes what of a sweep another run may end better; empty for nothing.

    What comes back in another try is mended first: wrong code, too little memory, a full disk.
    Where done cells ran the code to mend, or a script, all run anew: other code is not compared.
    """
    # Wrong input stays wrong.
    better = [one for one in endings if one.outcome in UNFINISHED
              or (one.outcome == "failed" and one.cause != "config")]  # fmt: skip
    sweep = SweepFolder(folder)
    plan = load_or_none(sweep.load_plan)  # a zip has none in it that could be resumed
    # The ids of a script of the user's own are no hashes, and nobody can resume it.
    if not better or plan is None or all(one.cell_id == one.name for one in plan.cells):
        return ""
    command = f"scalewise resume {shlex.quote(from_here(folder))}"
    faults = [one for one in better if one.cause and one.outcome == "failed" and not mendable(one)]
    if not faults:
        # Whoever sent it, the rank itself perhaps, may do so again.
        killed = all(one.outcome == "failed" and one.cause == "signal" for one in better)
        return f"{'try again what was killed' if killed else 'finish it'}: {command}"
    own = str(Path(__file__).parents[1])  # which nobody is to mend
    raised = [one.raised_at for one in faults if one.cause in ("exception", "exit", "signal")]
    at = next((line for line in raised if line and not line.startswith(own)), None)
    said = f"mend {from_here(at) if at else 'it'}, then:\n  {command}"
    if any("ModuleNotFoundError" in one.message for one in faults):
        said = f"install the module, or type the command with the Python that has it; or {said}"
    done = [sweep.cell(one.name) for one in plan.cells if sweep.is_done(one)]
    cells = f"{len(done)} done {plural(len(done), 'cell')}"
    ran = any(_ran(cell, (at or "").rpartition(":")[0]) for cell in done)
    if ran and at:
        said += (
            " sweep.rerun=all\n"
            f"  It runs all anew, {cells} included: other code is not compared.\n"
            "  To keep what is done, apart from the rest: sweep.allow_mixed=true instead."
        )
    elif ran:
        said += f"\n  Where you edit code that {cells} ran, add sweep.rerun=all."
    if any(one.cause in ("exception", "exit", "oom") for one in faults):
        said += "\n  Where what you typed is wrong, type it anew: resume keeps it."
    return said


def _ran(cell: CellFolder, file: str) -> bool:
    """Whether a done cell ran that file of the user's, or its script; any of them without one."""
    there = load_or_none(cell.load_provenance)
    known = {} if there is None else there.code.get(CLASS_FILES, {})
    is_script = there is not None and "script" in there.data
    return is_script or any(not file or f"/{file}".endswith(f"/{name}") for name in known)


_ASK_S = 0.2
"""``scalewise status`` has the lock of a sweep for far less than this."""
_RANKS_END_S = 15.0
"""Ranks of a sweep that was killed are ended within ``sweep.grace_s``, which is at most 8."""
_LOOK_S = 0.05


@contextmanager
def lock_folder(folder: SweepFolder) -> Iterator[FileLock]:
    """Make the folder, and keep every other sweep out of it by its lock.

    Processes that a killed sweep has left are waited for. Raises :class:`ConfigError` where a sweep
    runs in it already, something is left for too long, or it cannot be made.
    """
    lock = FileLock(folder.lock_path)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"hydra.sweep.dir: {folder.path} cannot be made: {error}") from error
    _wait_for(lock, folder.path)
    try:
        yield lock
    finally:
        lock.release()


def _wait_for(lock: FileLock, folder: Path) -> None:
    """Take a lock that others have, once they have ended. Raises :class:`ConfigError`."""
    begun = time.monotonic()
    while not lock.try_acquire(f"{os.getpid()}\n"):
        waited_s, holder = time.monotonic() - begun, lock.holder().strip()
        if waited_s > _ASK_S and _has_open(holder, lock.path):
            raise ConfigError(
                f"{from_here(folder)}: found process {holder}, which runs a sweep in it; "
                "allowed: wait for it, or another folder"
            )
        if waited_s > _RANKS_END_S:
            raise ConfigError(
                f"{from_here(folder)}: its sweep runs on another host, or was killed and what "
                f"it left still runs here; `lsof {lock.path}` names it: end it first"
            )
        time.sleep(_LOOK_S)


def _has_open(pid: str, path: Path) -> bool:
    """Whether the process has the file open: one that was killed lets go before it is reaped."""
    with suppress(ValueError, psutil.Error):  # no number, another user's, or it has just ended
        files = psutil.Process(int(pid)).open_files()
        return any(file.path == str(path.resolve()) for file in files)
    return False

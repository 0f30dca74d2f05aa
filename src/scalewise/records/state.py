"""The state of a cell, derived from its records: in this one place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scalewise.records.files import RecordError
from scalewise.records.folders import ALIVE_S, CellFolder, PlannedCell, SweepFolder
from scalewise.records.model import Attempt, CellResult, RunningAttempt

State = Literal["done", "running", "failed", "skipped", "interrupted", "waiting"]
UNFINISHED = ("running", "waiting", "interrupted")
"""States of cells that the sweep, or its resumption, still runs."""


@dataclass(frozen=True)
class CellState:
    """The state of a cell and the records that tell it."""

    state: State
    message: str = ""
    """Why there is no result."""
    problem: str = ""
    """Why nobody can tell whether the cell runs."""
    result: CellResult | None = None
    """The cell's own; None in every state but ``done``."""
    result_fault: str = ""
    """Why a result that is there cannot be used."""
    running: RunningAttempt | None = None
    """The try that is alive, or that ended without a record."""
    attempts: tuple[Attempt, ...] = ()
    """Tries without a result, where the last of them tells the state."""


def cell_state(folder: CellFolder, cell_id: str | None, now: float = math.inf) -> CellState:
    """Derive the state at the Unix time ``now``; without one, no try counts as alive.

    ``cell_id`` is None where no plan tells which cell's result belongs into the folder.
    """
    fault = ""
    try:
        result = folder.load_result() if cell_id is None else folder.load_result_of(cell_id)
        return CellState("done", result=result)
    except RecordError as error:
        if folder.has_result_file():
            fault = _within(folder, error)
    beat, running, problem = folder.last_beat(), None, ""
    try:
        running = folder.read_running() if beat is not None else None
    except RecordError as error:
        problem = _within(folder, error)
    if beat is not None and running is not None:
        if now - beat < ALIVE_S:
            return CellState("running", result_fault=fault, running=running)
        why = "its processes are gone, and nobody recorded why"
        return CellState("interrupted", why, result_fault=fault, running=running)
    if fault:
        why = f"it ended, but its result cannot be used: {fault}"
        return CellState("interrupted", why, problem, result_fault=fault)
    try:
        attempts = tuple(folder.attempts())
    except RecordError as error:
        return CellState("interrupted", _within(folder, error), problem)
    if not attempts:
        return CellState("waiting", "", problem)
    return CellState(attempts[-1].outcome, attempts[-1].message, problem, attempts=attempts)


def state_of(sweep: SweepFolder, planned: PlannedCell) -> CellState:
    """The state of a cell of a sweep that no other process runs."""
    return cell_state(sweep.cell(planned.name), planned.cell_id)


def is_done(sweep: SweepFolder, planned: PlannedCell) -> bool:
    """Whether the cell has a result, and it is this cell's."""
    return state_of(sweep, planned).result is not None


def _within(folder: CellFolder, error: RecordError) -> str:
    """The error, with paths as seen from the cell's folder."""
    return str(error).removeprefix(f"{folder.path}/")

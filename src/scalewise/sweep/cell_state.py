"""The state of a cell, derived from its records: in this one place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scalewise.records import (
    ALIVE_S,
    Attempt,
    CellFolder,
    CellResult,
    PlannedCell,
    RecordError,
    RunningAttempt,
    SweepFolder,
)

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
    running: RunningAttempt | None = None
    """The try that is alive, or that ended without a record."""
    attempts: tuple[Attempt, ...] = ()
    """Tries without a result, where the last of them tells the state."""


def cell_state(folder: CellFolder, cell_id: str, now: float = math.inf) -> CellState:
    """Derive the state at the Unix time ``now``; without one, no try counts as alive."""
    try:
        return CellState("done", result=folder.load_result_of(cell_id))
    except RecordError as error:
        no_result = _within(folder, error)
    beat, running, problem = folder.last_beat(), None, ""
    try:
        running = folder.read_running() if beat is not None else None
    except RecordError as error:
        problem = _within(folder, error)
    if beat is not None and running is not None:
        if now - beat < ALIVE_S:
            return CellState("running", running=running)
        why = "its processes are gone, and nobody recorded why"
        return CellState("interrupted", why, running=running)
    if folder.has_result_file():
        why = f"it ended, but its result cannot be used: {no_result}"
        return CellState("interrupted", why, problem)
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

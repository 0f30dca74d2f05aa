"""Derives the state of a cell from its records."""

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
    """The state of a cell, and the records it is derived from."""

    state: State
    message: str = ""
    """Why there is no result."""
    problem: str = ""
    """Why it is unknown whether the cell runs."""
    result: CellResult | None = None
    """None in every state but ``done``."""
    result_fault: str = ""
    """Why the result file cannot be used; empty if it can or is missing."""
    running: RunningAttempt | None = None
    """The attempt that is alive, or that ended without a record."""
    attempts: tuple[Attempt, ...] = ()
    """Attempts without a result, if the last of them determines the state."""


def cell_state(folder: CellFolder, cell_id: str | None, now: float = math.inf) -> CellState:
    """Derive the state of a cell.

    Args:
        folder: its folder.
        cell_id: the cell whose result is expected there; None if there is no plan.
        now: Unix time; by default no attempt counts as alive.
    """
    fault = ""
    try:
        result = folder.load_result() if cell_id is None else folder.load_result_of(cell_id)
        return CellState("done", result=result)
    except RecordError as error:
        if folder.has_result_file():
            fault = _relative_message(folder, error)
    beat, running, problem = folder.last_beat(), None, ""
    try:
        running = folder.load_running() if beat is not None else None
    except RecordError as error:
        problem = _relative_message(folder, error)
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
        return CellState("interrupted", _relative_message(folder, error), problem)
    if not attempts:
        return CellState("waiting", "", problem)
    return CellState(attempts[-1].outcome, attempts[-1].message, problem, attempts=attempts)


def planned_cell_state(sweep: SweepFolder, planned: PlannedCell) -> CellState:
    """Derive the state of a planned cell, of a sweep that no other process runs."""
    return cell_state(sweep.cell(planned.name), planned.cell_id)


def is_done(sweep: SweepFolder, planned: PlannedCell) -> bool:
    """Whether the cell has a result, and it is this cell's."""
    return planned_cell_state(sweep, planned).result is not None


def _relative_message(folder: CellFolder, error: RecordError) -> str:
    """The message of the error, with paths relative to the cell's folder."""
    return str(error).removeprefix(f"{folder.path}/")

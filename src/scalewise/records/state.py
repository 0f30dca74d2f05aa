"""Derives the state of a cell from its records."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise

from scalewise.records.files import RecordError
from scalewise.records.folders import ALIVE_S, CellFolder
from scalewise.records.model import CellResult, Ending, RunningAttempt, State

UNFINISHED = ("running", "waiting", "interrupted")
"""States of cells that the sweep, or its resumption, still runs."""


@dataclass(frozen=True)
class CellState:
    """The state of a cell, and the records it is derived from."""

    ending: Ending
    """How it ended, or that it has not: the last try's where that determines the state."""
    problem: str = ""
    """Why it is unknown whether the cell runs."""
    result: CellResult | None = None
    """None in every state but ``done``."""
    result_fault: str = ""
    """Why the result file cannot be used; empty if it can or is missing."""
    running: RunningAttempt | None = None
    """The attempt that is alive, or that ended without a record."""

    @property
    def state(self) -> State:
        return self.ending.outcome


def cell_state(folder: CellFolder, cell_id: str | None, now: float = math.inf) -> CellState:
    """Derive the state of a cell at the Unix time ``now``; by default no attempt counts as alive.

    ``cell_id`` is the cell whose result is expected there; None if there is no plan.
    """
    fault = ""
    try:
        result = folder.load_result(cell_id)
        ending = Ending(
            "done",
            number=result.attempt,
            started_at=result.started_at,
            finished_at=result.finished_at,
            elapsed_s=result.elapsed_s,
        )
        return CellState(ending, result=result)
    except RecordError as error:
        if folder.has_result_file():
            fault = _relative_message(folder, error)
    beat, running, problem = folder.last_beat(), None, ""
    try:
        running = folder.load_running() if beat is not None else None
    except RecordError as error:
        problem = _relative_message(folder, error)
    if beat is not None and running is not None:
        ending = Ending("running", number=running.number, started_at=running.started_at)
        if now - beat >= ALIVE_S:
            why = "its processes are gone or stopped, and nobody recorded why"
            ending = replace(ending, outcome="interrupted", message=why)
        return CellState(ending, result_fault=fault, running=running)
    if fault:
        why = f"it ended, but its result cannot be used: {fault}"
        return CellState(Ending("interrupted", message=why), problem, result_fault=fault)
    try:
        attempts = list(folder.attempts())
    except RecordError as error:
        why = _relative_message(folder, error)
        return CellState(Ending("interrupted", message=why), problem)
    return CellState(attempts[-1] if attempts else Ending("waiting"), problem)


def _relative_message(folder: CellFolder, error: RecordError) -> str:
    """The message of the error, with paths relative to the cell's folder."""
    return str(error).removeprefix(f"{folder.path}/")


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d|^<")
_OURS = re.compile(r"(^|/)src/scalewise/")


def line_that_raised(text: str) -> str | None:
    """``file:line`` of the innermost frame of the user's code in tracebacks; else of ours.

    Of several errors, one of which caused the next, that of the last that has one.
    """
    errors = [
        [(found["file"], found["line"]) for found in _FRAME.finditer(part)]
        for part in text.split("Traceback (most recent call last)")
    ]
    frames = [frame for part in reversed(errors) for frame in reversed(part)]
    theirs = (f for f in frames if not _INSTALLED.search(f[0]) and not _OURS.search(f[0]))
    ours = (f for f in frames if _OURS.search(f[0]) or "/scalewise/" in f[0])
    found = next(theirs, None) or next(ours, None)
    return None if found is None else ":".join(found)


def source_line(ending: Ending) -> str:
    """The code at ``raised_at`` as it was when it raised; empty where its last lines lack it."""
    for at, code in pairwise(ending.last_lines):
        frame = _FRAME.match(at)
        if frame and f"{frame['file']}:{frame['line']}" == ending.raised_at:
            return code.strip()
    return ""

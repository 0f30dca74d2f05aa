"""Derives the state of a cell from its records, and keeps the progress of its ranks.

That lies in 40 bytes of shared memory for each, written every step and read by anyone: packing into
a memory-mapped file costs less than a microsecond and no system call, so that it may stay on the
training path.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from scalewise.records.files import RecordError, read_plain
from scalewise.records.folders import ALIVE_S, CellFolder, PlannedCell
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


def typed_anew(planned: PlannedCell, ending: Ending, done: Iterable[PlannedCell]) -> Ending:
    """The same; wrong input that is done with what it asked for beside it says that alone."""
    if ending.cause != "config":
        return ending
    own, alike = {*planned.overrides}, [one for one in done if one.repeat == planned.repeat]
    more = {one.name: {*one.overrides} - own for one in alike if own < {*one.overrides}}
    asked = (n for n, ws in more.items() if all(w.partition("=")[0] in ending.message for w in ws))
    anew = next(asked, "")
    return replace(ending, message=f"done with what was typed since: {anew}") if anew else ending


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
    ending = attempts[-1] if attempts else Ending("waiting")
    if ending.outcome == "failed" and folder.is_queued_again():  # perhaps what failed is mended
        why = f"its next try has not begun; the one before: {ending.message}"
        ending = replace(ending, cause=None, message=why)
    return CellState(ending, problem)


def _relative_message(folder: CellFolder, error: RecordError) -> str:
    return str(error).removeprefix(f"{folder.path}/")


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d|^<")
_OURS = re.compile(r"(^|/)src/scalewise/")


def line_that_raised(text: str) -> str | None:
    """``file:line`` of the innermost frame of the user's code in tracebacks; else of ours, if it is
    the one that raised.

    Of several errors, one of which caused the next, that of the last that has one. faulthandler
    writes the innermost frame first.
    """
    errors = [
        [(found["file"], found["line"]) for found in _FRAME.finditer(part)]
        for part in text.split("Traceback (most recent call last)")
    ]
    if text.startswith(("Current thread 0x", "Thread 0x")):
        errors[0].reverse()
    frames = [frame for part in reversed(errors) for frame in reversed(part)]
    theirs = (f for f in frames if not _INSTALLED.search(f[0]) and not _OURS.search(f[0]))
    ours = (f for f in frames[:1] if _OURS.search(f[0]) or "/scalewise/" in f[0])
    found = next(theirs, None) or next(ours, None)
    return None if found is None else ":".join(found)


def source_line(ending: Ending) -> str:
    """The code at ``raised_at`` as it was when it raised; empty where its last lines lack it."""
    for at, code in pairwise(ending.last_lines):
        frame = _FRAME.match(at)
        raised_here = frame and f"{frame['file']}:{frame['line']}" == ending.raised_at
        if raised_here and not _FRAME.match(code):
            return code.strip()
    return ""


_LAYOUT = struct.Struct("<qqqdd")


@dataclass(frozen=True)
class Heartbeat:
    """The last sign of life of a rank."""

    step: int
    """Optimizer steps done."""
    total_steps: int
    """Steps it means to do; -1 if it does not know."""
    samples: int
    """Samples this rank has fed."""
    started_at: float
    """Unix time training began; 0 before it does."""
    time: float
    """Unix time of this beat, as the clock stood when the rank began."""


class HeartbeatWriter:
    """Owned by a rank."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_LAYOUT.pack(0, -1, 0, 0.0, time.time()))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), _LAYOUT.size)
        # Fields by number: packing all of them takes twice as long, and this is every step's.
        self._counts, self._times = memoryview(self._map).cast("q"), memoryview(self._map).cast("d")
        # A clock set during training would make a rate of a step, and a time left, of nothing.
        self._epoch_offset_s = time.time() - time.monotonic()

    def begin(self, total_steps: int | None) -> None:
        """Training starts now, and means to take ``total_steps`` in all."""
        self._times[3] = self._epoch_offset_s + time.monotonic()
        self.plan(-1 if total_steps is None else total_steps)
        self.beat(0, 0)

    def plan(self, total_steps: int) -> None:
        """It means to take so many steps in all."""
        self._counts[1] = total_steps

    def beat(self, step: int, samples: int) -> None:
        self._counts[0], self._counts[2] = step, samples
        self._times[4] = self._epoch_offset_s + time.monotonic()

    def close(self) -> None:
        self._counts.release()
        self._times.release()
        self._map.close()
        self._file.close()


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The last beat, or None before the first. Raises RecordError for what is no heartbeat."""
    try:
        data = read_plain(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    return Heartbeat(*_LAYOUT.unpack(data)) if len(data) == _LAYOUT.size else None

"""Which rank failed first, and of what.

When one rank of a group dies, the others fail within milliseconds because a peer is gone. The
culprit is a rank that a signal ended, if there is one: peers that are gone raise errors, but kill
nobody. Otherwise it is the earliest, by the time its error surfaced or its end was seen.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from dataclasses import replace

from scalewise.records import CellFolder, RankError, RecordError
from scalewise.records.heartbeat import read_heartbeat
from scalewise.sweep.job import Verdict
from scalewise.sweep.ranks import RankProcess, Ranks
from scalewise.sweep.retry import EPOCHS_DIFFER, NO_PEER, transient

_SETTLE_S = 0.3
_LAST_LINES = 20
_LINE_LIMIT = 500
_IN_A_STEP = "loops/optimization/"
"""In the traceback of a rank that trained: Lightning validates and ends a fit elsewhere."""


def blame(ranks: Ranks, folder: CellFolder) -> Verdict:
    """The rank that failed first. Waits a moment for the others to say what they know."""
    time.sleep(_SETTLE_S)
    ranks.collect()
    errors = {p.rank: _error(folder, p.rank) for p in ranks.processes}
    candidates: list[tuple[bool, float, RankProcess]] = []
    for process in ranks.processes:
        error = errors[process.rank]
        if error is not None:
            candidates.append((True, error.time, process))
        elif process.ended_at is not None and not _finished(process, folder):
            candidates.append((not _was_killed(process), process.ended_at, process))
    _, at, first = min(candidates, key=lambda candidate: candidate[:2])
    error = errors[first.rank]
    uneven = "" if error is None else _uneven_epochs(error, ranks, folder)
    verdict = _verdict(first, error)
    return replace(verdict, at=at, message=uneven or verdict.message)


def _uneven_epochs(error: RankError, ranks: Ranks, folder: CellFolder) -> str:
    """That a rank missed a peer in a step which that peer did not have; empty for any other end."""
    if transient(error.message) != NO_PEER or _IN_A_STEP not in error.traceback:
        return ""
    reached = _steps_reached(error.rank, folder)
    for process in ranks.processes:
        steps = _steps_at_a_good_end(process, folder)
        if steps is not None and reached is not None and steps <= reached:
            return (
                f"rank {process.rank} had ended its epoch after {steps:,} steps while rank "
                f"{error.rank} went on: {EPOCHS_DIFFER}; give every rank as many batches"
            )
    return ""


def _steps_reached(rank: int, folder: CellFolder) -> int | None:
    try:
        heartbeat = read_heartbeat(folder.heartbeat_path(rank))
    except RecordError:
        return None
    return None if heartbeat is None else heartbeat.step


def _steps_at_a_good_end(process: RankProcess, folder: CellFolder) -> int | None:
    """Steps of a rank whose fit ended as it should, though its process may still be closing."""
    if process.exit_code not in (None, 0):
        return None
    try:
        return folder.load_rank(process.rank).steps_completed
    except RecordError:
        return None


def _finished(process: RankProcess, folder: CellFolder) -> bool:
    """Whether a rank did all it had to: status 0 alone may be somebody's early ``os._exit(0)``."""
    try:
        return process.exit_code == 0 and folder.load_rank(process.rank).rank == process.rank
    except RecordError:
        return False


def _was_killed(process: RankProcess) -> bool:
    """Whether a signal ended it from outside. SIGABRT is a library giving up, on a peer perhaps."""
    code = process.exit_code
    return code is not None and code < 0 and -code != signal.SIGABRT


def _error(folder: CellFolder, rank: int) -> RankError | None:
    try:
        return folder.load_rank_error(rank)
    except RecordError:
        return None  # torn by the fault itself: the exit status and the log still speak


def _verdict(process: RankProcess, error: RankError | None) -> Verdict:
    rank, code = process.rank, process.exit_code
    if error is not None:
        return Verdict(error.kind, f"rank {rank}: {error.message}", rank, code)
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (the kernel's out-of-memory killer uses it: see dmesg)" if code == -9 else ""
        return Verdict("signal", f"rank {rank} was ended by {name}{hint}", rank, code)
    early = " before it had finished" if code == 0 else ""
    return Verdict("exit", f"rank {rank} exited with status {code}{early}; see logs/", rank, code)


def last_lines(folder: CellFolder, rank: int | None) -> tuple[str, ...]:
    """The end of a rank's stderr; of rank 0's where none is to blame."""
    path = folder.log_path(0 if rank is None else rank, "err")
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = deque(file, maxlen=_LAST_LINES)
            return tuple(line.rstrip("\n")[:_LINE_LIMIT] for line in lines)
    except OSError:
        return ()

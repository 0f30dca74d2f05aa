"""Which rank failed first, and of what.

When one rank of a group dies, the others fail within milliseconds because a peer is gone. The
culprit is a rank that a signal ended, if there is one: peers that are gone raise errors, but kill
nobody. Otherwise it is the earliest, by the time its error surfaced or its end was seen.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from dataclasses import dataclass, field, replace

from scalewise.records import Cause, CellFolder, RankError, RecordError
from scalewise.sweep.ranks import RankProcess, Ranks

_SETTLE_S = 0.3
_LAST_LINES = 20
_LINE_LIMIT = 500


@dataclass(frozen=True)
class Verdict:
    """Why a cell has no result."""

    cause: Cause
    message: str
    """One line."""
    rank: int | None
    exit_code: int | None
    at: float = field(default_factory=time.time)
    """Unix time: when the rank failed, or when this was decided."""


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
    return replace(_verdict(first, errors[first.rank]), at=at)


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


def port_was_taken(folder: CellFolder, verdict: Verdict) -> bool:
    """Whether somebody took the rendezvous port between its choice and its use."""
    text = " ".join([verdict.message, *last_lines(folder, verdict.rank)]).lower()
    return "eaddrinuse" in text or "address already in use" in text

"""Which failures another try can mend, and how often one may be tried.

A fault is mended by another try if it came from outside and may be gone: a signal, a lost host, a
port that somebody else took, a device that was busy or broke (and is quarantined by then). An error
of the user's own, memory that was too small, a full disk, a time limit or a hang come back, and
cost as much again.
"""

from __future__ import annotations

import re
import signal

from scalewise.records import Attempt, CellFolder, RecordError

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGPWR})
"""Others, SIGSEGV and SIGABRT among them, are faults of the program: they come back."""

NO_PEER = "a peer could not be reached"
EPOCHS_DIFFER = "epochs differ in length"
"""In the message of a try whose ranks had unequal numbers of batches: peers that ended well are
gone too, but come and go the same way again."""

_TRANSIENT = {
    NO_PEER: re.compile(
        r"connection (reset|closed|refused)|broken pipe|socket timeout|ncclRemoteError"
        r"|ncclSystemError|DistNetworkError|no route to host",
        re.IGNORECASE,
    ),
    "the rendezvous port was taken": re.compile(
        r"EADDRINUSE|address already in use", re.IGNORECASE
    ),
    "the device was not ready": re.compile(
        r"busy or unavailable|system not yet initialized|driver initialization failed"
        r"|cudaErrorNotReady",
        re.IGNORECASE,
    ),
    "the device broke": re.compile(
        r"uncorrectable (ECC|NVLink) error|fallen off the bus|GPU is lost|cudaErrorECC",
        re.IGNORECASE,
    ),
}
"""What torch, NCCL and CUDA say of faults that are not the program's."""


def mendable(attempt: Attempt) -> str | None:
    """Why another try may end better; None if it would end the same way."""
    if attempt.outcome != "failed":
        return None
    if attempt.cause == "signal":
        code = attempt.exit_code
        return "ended from outside" if code is not None and -code in _FROM_OUTSIDE else None
    if attempt.cause == "supervisor":
        lost = re.search(r"ended by SIG|was lost with", attempt.message)
        return "the supervisor was lost" if lost else None
    if attempt.cause == "host":
        return "a host was lost"
    if attempt.cause == "exception" and EPOCHS_DIFFER not in attempt.message:
        return transient("\n".join((attempt.message, *attempt.last_lines)))
    return None


def transient(text: str) -> str | None:
    """What kind of passing fault an error message tells of; None for any other."""
    return next((kind for kind, words in _TRANSIENT.items() if words.search(text)), None)


def misses_a_peer(attempt: Attempt) -> bool:
    """Whether a try only tells of a rank of another host that is gone."""
    return attempt.cause == "exception" and transient(attempt.message) == NO_PEER


class Retries:
    """How often each cell has been tried again by this sweep process."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def grant(self, folder: CellFolder, limit: int) -> str | None:
        """Why the cell is to run again, counted as one retry; None if it has failed for good."""
        used = self._used.get(folder.name, 0)
        try:
            attempts = list(folder.attempts())
        except RecordError:
            return None  # a torn record of a try: what it died of is not known
        reason = mendable(attempts[-1]) if attempts and used < limit else None
        if reason is None:
            return None
        self._used[folder.name] = used + 1
        return f"{reason}; retry {used + 1} of {limit}"

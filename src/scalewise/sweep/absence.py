"""Which ranks others waited for in vain: the process group's time-out names only who waited.

The one to blame is whoever did not come, and it says nothing: it sleeps, computes, or lives on a
host whose cable is cut.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

from scalewise.records import CellFolder
from scalewise.sweep.job import Verdict
from scalewise.sweep.ranks import Ranks

_OTHERS_GIVE_UP_S = 3.0
"""Ranks that wait for the same one began to, and so give up, about as long after each other."""
_TAIL_BYTES = 200_000
"""NCCL prints pages of frames after the line that tells."""

_GAVE_UP = re.compile(
    r"Timed out waiting \d+ ?ms"  # gloo
    r"|Watchdog caught collective operation timeout"  # NCCL
    r"|wait timeout after \d+ ?ms"  # the store at which ranks meet
    r"|Timed out after \d+ seconds waiting for clients",
    re.IGNORECASE,
)


def is_collective_timeout(text: str) -> bool:
    """Whether this is how a rank ends that has waited in a collective for too long."""
    return _GAVE_UP.search(text) is not None


def name_absent(
    verdict: Verdict, ranks: Ranks, folder: CellFolder, limit_s: float, world_size: int
) -> Verdict:
    """The same, unless its rank gave up waiting in a collective: then a hang of whom it waited for.

    Waits a moment for the other ranks to give up too: those that neither do nor fail are absent.

    Args:
        verdict: on the rank that failed first.
        ranks: of this host.
        folder: the cell's.
        limit_s: ``sweep.collective_timeout_s``.
        world_size: ranks of the cell on all of its hosts.
    """
    if verdict.rank is None or not is_collective_timeout(
        f"{verdict.message}\n{_log(folder, verdict.rank)}"
    ):
        return verdict
    deadline = time.monotonic() + _OTHERS_GIVE_UP_S
    while time.monotonic() < deadline and ranks.alive:
        time.sleep(0.1)
        ranks.collect()
    absent = [process.rank for process in ranks.alive]
    whom = _whom(absent, [process.rank for process in ranks.processes], world_size)
    message = (
        f"rank {verdict.rank} waited {limit_s:g} s (sweep.collective_timeout_s) in a collective "
        f"for {whom}; logs/ have the stacks"
    )
    return replace(
        verdict, cause="hang", message=message, rank=absent[0] if absent else verdict.rank
    )


def _whom(absent: Sequence[int], here: Sequence[int], world_size: int) -> str:
    if absent:
        return f"rank {', '.join(map(str, absent))}, which did not enter it"
    if len(here) < world_size:
        elsewhere = [str(rank) for rank in range(world_size) if rank not in here]
        return f"ranks of other hosts ({', '.join(elsewhere)}), which did not answer"
    return "others that were in another one: the ranks do not make the same calls"


def _log(folder: CellFolder, rank: int) -> str:
    try:
        with folder.log_path(rank, "err").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""  # nothing was printed: the verdict's own words are all there is

"""Cells that were suspended for longer than their ranks wait for each other."""

from __future__ import annotations

from dataclasses import replace

from scalewise.sweep.blame import Verdict
from scalewise.sweep.looked_time import LookedTime
from scalewise.sweep.retry import NO_PEER, SUSPENDED, transient

_GIVE_UP_WITHIN_S = 60.0
"""Ranks find out within seconds of going on; NCCL's watchdog is the slowest."""

_MESSAGE = (
    f"{SUSPENDED} for {{pause_s:.0f}} s, and its ranks wait for each other no longer than "
    "sweep.collective_timeout_s={limit_s:g}: raise that above the longest suspension ({said})"
)


def name_suspended(verdict: Verdict, looked: LookedTime, limit_s: float) -> Verdict:
    """The same, unless ranks gave up on each other because the whole cell had been suspended.

    The clocks of gloo and NCCL go on meanwhile, and nobody was to blame.

    Args:
        verdict: on ranks that failed.
        looked: the supervisor's own time, which tells of its pauses.
        limit_s: ``sweep.collective_timeout_s``.
    """
    gave_up = verdict.cause == "hang" or transient(verdict.message) == NO_PEER
    if not gave_up or looked.pause_s <= limit_s or looked.since_pause_s > _GIVE_UP_WITHIN_S:
        return verdict
    message = _MESSAGE.format(pause_s=looked.pause_s, limit_s=limit_s, said=verdict.message)
    return replace(verdict, cause="hang", message=message, rank=None)

"""Ranks that somebody stopped: whoever waits for them is not told, and nor is a hang's reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from scalewise.sweep.job import Verdict

_STOPPED = frozenset("Tt")
"""By a signal, and by a debugger."""


def name_stopped(verdict: Verdict, pids: Callable[[], Mapping[int, int]]) -> Verdict:
    """The same, unless it is a hang for which stopped ranks are to blame: then with their names.

    Args:
        verdict: why the cell has no result.
        pids: asked for a hang only: rank to the process that trains.
    """
    if verdict.cause != "hang":
        return verdict
    stopped = [rank for rank, pid in pids().items() if process_state(pid) in _STOPPED]
    if not stopped:
        return verdict
    each = ", ".join(map(str, stopped))
    told = f"rank {each} {'was' if len(stopped) == 1 else 'were'} stopped (SIGSTOP, or a debugger)"
    return replace(verdict, message=f"{told}: {verdict.message}", rank=stopped[0])


def process_state(pid: int) -> str:
    """The kernel's letter for it, ``T`` for stopped; empty for a process that is gone."""
    try:
        # The name before it, in brackets, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""

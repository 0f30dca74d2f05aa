"""Subcommands of ``scalewise`` that are no more than options and a call of another room.

Those with more to them lie beside what they do: ``sweep.status_view``, ``measure.doctor``,
``gpu.top`` and their like.
"""

from __future__ import annotations

from scalewise.errors import EXIT_CONFIG_ERROR
from scalewise.streams import say


def refuse(command: str, problem: object) -> int:
    """Say what is wrong with what was typed, in one line, and return the exit status for it."""
    say(f"scalewise {command}: {problem}")
    return EXIT_CONFIG_ERROR

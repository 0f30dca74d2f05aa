"""What a reader can do for an answer: settings of a sweep, or runs of a script of their own.

A script under the Monitor callback has neither ``repeats`` nor ``strategy`` to set. Its runs add
up in one folder, so it is run again.
"""

from __future__ import annotations

WANTED_RUNS = 5
"""Runs that mostly settle a difference of 10 %, where runs vary by 5 %."""


def for_more_runs(monitored: bool, runs: int) -> str:
    """How a figure of so many ``runs`` gets more of them."""
    if not monitored:
        return f"repeat it (repeats={WANTED_RUNS})"
    return f"run the script {_times(runs)} into the same folder"


def for_more_runs_of_both(monitored: bool, runs: int) -> str:
    """How a comparison with so many ``runs`` on its lesser side gets more of them."""
    if not monitored:
        return f"add repeats (repeats={WANTED_RUNS})" if runs < 2 else "add repeats"
    return f"run the script {_times(runs)} on each number of devices, into the same folder"


def for_one_device(monitored: bool) -> str:
    """How to get what several devices are compared with."""
    if not monitored:
        return "no single-device cell in this sweep: add strategy=single"
    return "no run on one device in this folder: run the script on one too"


def for_several_devices(monitored: bool) -> str:
    """How to get a verdict where all ran on one device."""
    if not monitored:
        return "add `strategy=single,ddp` for a verdict"
    return "run the script on several too, into the same folder, for a verdict"


def _times(runs: int) -> str:
    missing = WANTED_RUNS - runs
    return f"{missing} more time{'s' if missing > 1 else ''}" if missing > 0 else "again"

"""The end of a rank by an exception, as its record tells it."""

from __future__ import annotations

import errno
import traceback
from typing import Literal

from scalewise.config import ConfigError, first_line
from scalewise.records import Ending, line_that_raised

_MESSAGE_LIMIT = 500
_TRACEBACK_LIMIT = 20_000
_NO_MEMORY = (
    "outofmemory",  # torch's class for it on GPUs
    "can't allocate memory",  # torch on CPUs, in a RuntimeError
    "bad_alloc",
    "cuda error: out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)
"""How torch and its libraries say it, in lower case."""


def ending_of(error: BaseException, rank: int) -> Ending:
    """How ``error`` ends this rank; its last lines are the end of the traceback."""
    text = "".join(traceback.format_exception(error))
    is_config = isinstance(error, ConfigError)
    cause = "config" if is_config else failure_kind(error)
    return Ending(
        "failed",
        cause,
        failure_line(error, with_class=cause not in ("config", "disk")),
        rank,
        # A message for the user names the setting; no line of code does.
        raised_at=None if is_config else line_that_raised(text),
        last_lines=tuple(text[-_TRACEBACK_LIMIT:].splitlines()),
    )


def cause_of(error: BaseException) -> BaseException:
    """The error that ended a rank, where Lightning ends the process with an exit status of its own.

    A KeyboardInterrupt in a training step leaves ``Trainer.fit`` as ``SystemExit(1)``.
    """
    interrupt = error.__context__
    is_exit = isinstance(error, SystemExit)
    return interrupt if is_exit and isinstance(interrupt, KeyboardInterrupt) else error


def failure_kind(error: BaseException) -> Literal["exception", "oom", "disk"]:
    """Memory that ran out and disks that are full apart from all else."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk"
    words = f"{type(error).__name__} {error}".lower()
    if isinstance(error, MemoryError) or any(one in words for one in _NO_MEMORY):
        return "oom"
    return "exception"


def failure_line(error: BaseException, with_class: bool = True) -> str:
    """The first line of what it says, after its class unless that says nothing to the reader."""
    return first_line(error, with_class)[:_MESSAGE_LIMIT]

"""Errors as the one line that a user reads, and as the end of a rank."""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from typing import Literal

from scalewise.host import escaped
from scalewise.records import Ending, line_that_raised


class ConfigError(ValueError):
    """Wrong input: one line with the key, what was found and what is allowed."""

    def __str__(self) -> str:
        return escaped(super().__str__())


@contextmanager
def refuse_as(key: str = "") -> Iterator[None]:
    """Refuse with ConfigError what the block does with ValueError: ``key`` or an argument of it."""
    try:
        yield
    except ValueError as error:
        joint = "." if re.match(r"[\w.\[\]-]+: ", str(error)) else ": "
        raise ConfigError(f"{key}{key and joint}{error}") from error


class DatasetError(ValueError):
    """Data that are missing or not what they should be: one line that says where and what."""


def in_one_line(error: BaseException, at_most: int | None = None, with_class: bool = False) -> str:
    """All that another library's ``error`` says, its lines put together, cut ``at_most`` there.

    ``with_class`` puts its class before that, which stands alone for an error that says nothing.
    """
    return _called(error, " ".join(str(error).split())[:at_most], with_class)


def first_line(error: BaseException, with_class: bool = True) -> str:
    """As :func:`in_one_line`, but the first line: torch puts a page of its own calls below it."""
    said = str(*error.args[:1]).strip()  # str() of an error of ours is one line
    if "Original Traceback (most recent call last):" in said:
        # Of a worker of a DataLoader: what it raised stands below its last frame.
        raised = said.rpartition("Traceback (most recent call last):")[2].splitlines()[1:]
        said = shortened("\n".join(dropwhile(lambda line: not line[:1].strip(), raised)))
        return said if with_class else said.partition(": ")[2] or said
    return shortened(_called(error, str(error).strip(), with_class))


def shortened(text: str) -> str:
    """The first line of ``text``, cut where it is too long, and a sign where more follows."""
    first = (text.strip().splitlines() or [""])[0][:_MESSAGE_LIMIT]
    return first if first == text.strip() else f"{first[: _MESSAGE_LIMIT - 4]} ..."


def _called(error: BaseException, said: str, with_class: bool) -> str:
    name = type(error).__name__
    if not said:
        return name
    return f"{name}: {said}" if with_class else said


def require(argument: str, found: object, holds: bool, allowed: str, beside: str = "") -> None:
    """Raise ``ValueError("<argument>: found X; allowed: Y")`` unless ``holds``.

    Constructors of models and data sets check combinations of their arguments with it, settings
    their own: ``beside`` is the setting that does not go with what was found.
    """
    if holds:
        return
    text = str(found) if beside else repr(found)
    if found is None or isinstance(found, bool):
        text = "null" if found is None else str(found).lower()
    raise ValueError(f"{argument}: found {text}{beside and f' with {beside}'}; allowed: {allowed}")


_PACKAGE = str(Path(__file__).parents[1]) + os.sep
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
    cause = error.__cause__
    if isinstance(error, ConfigError) and cause and str(error).endswith(str(cause) or "?"):
        # Told as it was raised: what a user's own code refuses is no setting of ours.
        *_, innermost = traceback.extract_tb(cause.__traceback__) or [None]
        at = line_that_raised("".join(traceback.format_exception(cause)))
        is_ours = innermost is None or innermost.filename.startswith(_PACKAGE)
        error = error if is_ours or at is None else cause
    text = "".join(traceback.format_exception(error))
    kind = "config" if isinstance(error, ConfigError) else failure_kind(error)
    return Ending(
        "failed",
        kind,
        first_line(error, with_class=kind not in ("config", "disk")),
        rank,
        # A message for the user names the setting; no line of code does.
        raised_at=None if kind == "config" else line_that_raised(text),
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

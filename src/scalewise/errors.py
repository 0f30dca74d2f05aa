"""Errors as the one line that a user reads, and the exit status of wrong input."""

from __future__ import annotations

import re

EXIT_CONFIG_ERROR = 2

_BREAKS_THE_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters, and what else ends a line: none of them is meant to reach a terminal."""


def escaped(text: str) -> str:
    """``text`` with its control characters written as Python does: a newline is ``\\n``."""
    return _BREAKS_THE_LINE.sub(lambda found: repr(found[0])[1:-1], text)


def in_one_line(error: BaseException, at_most: int | None = None, with_class: bool = False) -> str:
    """All that another library's ``error`` says, its lines put together.

    Args:
        at_most: characters of what it says; the rest is left out.
        with_class: ``ValueError: what it says``, for errors whose class tells something. It stands
            alone for an error that says nothing.
    """
    return _called(error, " ".join(str(error).split())[:at_most], with_class)


def first_line(error: BaseException, with_class: bool = True) -> str:
    """The first line of what ``error`` says: torch puts a page of its own calls below it.

    Args:
        with_class: as of :func:`in_one_line`.
    """
    return _called(error, next(iter(str(error).strip().splitlines()), ""), with_class)


def _called(error: BaseException, said: str, with_class: bool) -> str:
    name = type(error).__name__
    if not said:
        return name
    return f"{name}: {said}" if with_class else said


class ConfigError(ValueError):
    """Wrong input: one line with the key, what was found and what is allowed."""

    def __str__(self) -> str:
        return escaped(super().__str__())

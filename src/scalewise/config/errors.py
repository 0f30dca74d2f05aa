"""Errors as the one line that a user reads."""

from __future__ import annotations

from scalewise.host import escaped


class ConfigError(ValueError):
    """Wrong input: one line with the key, what was found and what is allowed."""

    def __str__(self) -> str:
        return escaped(super().__str__())


class DatasetError(ValueError):
    """Data that are missing or not what they should be: one line that says where and what."""


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

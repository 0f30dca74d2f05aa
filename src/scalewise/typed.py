"""Plain data (from YAML or JSON) to frozen dataclasses and back, with errors that name the key.

Both the configuration and the records cross this border, so that nothing behind it has to ask
whether a value is there, has the right type or lies in its range. A dataclass may check what
types cannot say (ranges, combinations) in ``__post_init__`` by raising ``ValueError``. Keys that
earlier versions wrote and nobody reads any more stand in its ``FORMER_KEYS``: they are skipped.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")


class DataError(ValueError):
    """A value that does not fit its place: names the key, what was found and what is allowed."""


def build(cls: type[T], data: object, at: str = "") -> T:
    """Build the dataclass ``cls`` from the mapping ``data``.

    ``at`` is the dotted path of ``data`` inside the whole, used in messages.
    Raises :class:`DataError` for an unknown or missing key, a wrong type, or whatever
    ``__post_init__`` refuses.
    """
    value = convert(cls, data, at)
    assert isinstance(value, cls)
    return value


def to_plain(value: object) -> Any:
    """The inverse of :func:`build`: dataclasses to dicts, tuples to lists, paths to strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    return value


def closest(name: str, allowed: Sequence[str]) -> str:
    """``" (did you mean 'x'?)"`` when one of ``allowed`` resembles ``name``, else nothing."""
    match = difflib.get_close_matches(name, allowed, n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def describe(hint: Any) -> str:
    """A type as a user would write it: ``an integer``, ``auto | nccl | gloo``, ..."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return " | ".join(str(a) for a in typing.get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(a) for a in typing.get_args(hint))
    if origin in (list, tuple, Sequence):
        return "a list"
    if origin in (dict, Mapping):
        return "a mapping"
    names: dict[Any, str] = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "null",
        Path: "a path",
    }
    if dataclasses.is_dataclass(hint):
        return "a mapping with the keys " + ", ".join(f.name for f in dataclasses.fields(hint))
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def convert(hint: Any, value: Any, at: str) -> Any:
    """``value`` as the type ``hint`` asks for it, or :class:`DataError` naming ``at``."""
    if hint is Any or hint is object:
        return value
    if type(value) is hint and hint in (str, int, bool):
        return value  # most are: a plan of thousands of cells shows it
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return convert(typing.get_args(hint)[0], value, at)
    if origin is Literal:
        if any(value == a and type(value) is type(a) for a in typing.get_args(hint)):
            return value
        raise _mismatch(hint, value, at)
    if origin in (Union, types.UnionType):
        return _convert_union(hint, value, at)
    if dataclasses.is_dataclass(hint):
        return _convert_dataclass(typing.cast(type, hint), value, at)
    if origin in (list, tuple, Sequence):
        return _convert_sequence(hint, value, at)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _mismatch(hint, value, at)
        item = typing.get_args(hint)[1]
        return {str(k): convert(item, v, f"{at}.{k}") for k, v in value.items()}
    return _convert_scalar(hint, value, at)


def check_finite(value: object, at: str) -> None:
    """Raise :class:`DataError` for the first number in ``value`` that is ``inf`` or ``nan``.

    Records may hold such numbers, as what a run came to; as an input they mean nothing.
    """
    found = _not_finite(value)
    if found is not None:
        where, number = found
        raise DataError(f"{(at + where).lstrip('.')}: found {number}; allowed: a finite number")


# Asked first, and by exact type: a plan asks a million times, an abstract class answers slowly.
_NEVER_INFINITE = frozenset({str, int, bool, type(None)})


def _not_finite(value: object) -> tuple[str, float] | None:
    """The path to the first number that is not finite, and that number."""
    if type(value) in _NEVER_INFINITE:
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", value)
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif isinstance(value, (dict, Mapping)):
        items = value.items()
    for key, item in items:
        found = _not_finite(item)
        if found is not None:
            step = f"[{key}]" if isinstance(value, (list, tuple)) else f".{key}"
            return step + found[0], found[1]
    return None


def _convert_scalar(hint: Any, value: Any, at: str) -> Any:
    if isinstance(value, float) and math.isnan(value):
        raise DataError(f"{at}: found nan; allowed: {describe(hint)} that is one")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise DataError(f"{at}: found an integer above 1e308; allowed: a number") from None
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint in (dict, Mapping) and isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bool) and hint is not bool:
        raise _mismatch(hint, value, at)
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    raise _mismatch(hint, value, at)


def _convert_union(hint: Any, value: Any, at: str) -> Any:
    options = typing.get_args(hint)
    if type(value) is float and float in options:
        return value  # nearly every value of a long series: nothing else could be meant
    if value is None and type(None) in typing.get_args(hint):
        return None
    nested: list[DataError] = []
    for option in options:
        try:
            return convert(option, value, at)
        except DataError as error:
            # A mapping that fits a nested dataclass badly deserves that dataclass's own message.
            if dataclasses.is_dataclass(option) and isinstance(value, Mapping):
                nested.append(error)
    if nested:
        raise nested[0]
    raise _mismatch(hint, value, at)


def _convert_sequence(hint: Any, value: Any, at: str) -> Any:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise _mismatch(hint, value, at)
    args = typing.get_args(hint)
    items = [convert(args[0], v, f"{at}[{i}]") for i, v in enumerate(value)]
    return tuple(items) if typing.get_origin(hint) is tuple else items


@functools.cache
def _shape(cls: type) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]:
    """Types and fields of a dataclass: resolving them takes longer than building one from them."""
    return (
        typing.get_type_hints(cls),
        {f.name: f for f in dataclasses.fields(cls) if f.init},
    )


@functools.cache
def _field_types(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert_dataclass(cls: type, value: Any, at: str) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise _mismatch(cls, value, at)
    hints, fields = _shape(cls)
    prefix = f"{at}." if at else ""
    for key in value:
        if key not in fields and key not in getattr(cls, "FORMER_KEYS", ()):
            raise DataError(
                f"{prefix}{key}: unknown key{closest(str(key), list(fields))}; "
                f"allowed: {', '.join(fields)}"
            )
    built: dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            built[name] = convert(hints[name], value[name], f"{prefix}{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DataError(f"{prefix}{name}: missing; give {describe(hints[name])}")
    try:
        return cls(**built)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{prefix}{error}") from None


def _mismatch(hint: Any, value: Any, at: str) -> DataError:
    found = "null" if value is None else repr(value)
    options: list[str] = []
    if typing.get_origin(hint) is Literal and isinstance(value, str):
        options = [str(a) for a in typing.get_args(hint)]
    meant = closest(str(value), options)
    if isinstance(value, float) and value.is_integer() and int in (hint, *typing.get_args(hint)):
        meant = f" (did you mean {int(value)}?)"  # 1e3 is a number with a fraction to YAML
    return DataError(f"{at or 'value'}: found {found}{meant}; allowed: {describe(hint)}")

"""Plain data (from YAML or JSON) to frozen dataclasses and back, and one line for what is wrong.

pydantic reads the annotations: types, ranges (``Annotated[int, Field(ge=1)]``), literals. A
``__post_init__`` checks combinations by raising ``ValueError("key: found X; allowed: Y")``.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator, core_schema

T = TypeVar("T")

MOST_FLOAT: Final = 1e40
"""What 32 bits hold, and somewhat more: a sum or a product of such numbers is finite."""

_MOST_KEYS: Final = 16
"""That one line lists; of more it lists the nearest."""
_NEAREST: Final = 5

_BOUNDS: dict[str, dict[str, Any]] = {
    "int": {"strict": True, "ge": -(2**64), "le": 2**64},
    "float": {"strict": True, "allow_inf_nan": False, "ge": -MOST_FLOAT, "le": MOST_FLOAT},
    "bool": {"strict": True},
    "str": {"strict": True},
    # One error is enough: a million of them take gigabytes.
    "tuple": {"fail_fast": True},
    "list": {"fail_fast": True},
}
"""Bounds of every value, unless its annotation says something narrower."""


class DataError(ValueError):
    """A value that does not fit: ``key`` says where, ``code`` what is wrong with it."""

    def __init__(self, message: str, key: str = "", code: str = "value_error") -> None:
        super().__init__(message)
        self.key, self.code = key, code


def build(cls: type[T], data: object, at: str = "") -> T:
    """Build ``cls`` from plain data; ``at`` is the path of ``data``. Raises :class:`DataError`."""
    value: T = convert(cls, data, at)
    return value


def convert(hint: Any, value: Any, at: str) -> Any:
    """``value`` as the type ``hint`` asks for it. Raises :class:`DataError` naming ``at``."""
    try:
        return _validator(hint).validate_python(value)
    except ValidationError as error:
        raise _data_error(error, value, at) from None


def words_beside(module: str, cls: type[T], name: str = "") -> T:
    """The words in the TOML file ``name`` beside a module; without, in that called as it is."""
    path = Path(module)
    path = path.with_name(name) if name else path.with_suffix(".toml")
    return build(cls, tomllib.loads(path.read_text(encoding="utf-8")))


def to_plain(value: object) -> Any:
    """The inverse of :func:`build`: dataclasses to dicts, tuples to lists, paths to strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def nearest(name: str, allowed: Sequence[str]) -> str:
    """The one of ``allowed`` that resembles ``name`` most; empty where none does."""
    return "".join(difflib.get_close_matches(name, allowed, n=1))


def closest(name: str, allowed: Sequence[str]) -> str:
    """``" (did you mean 'x'?)"`` when one of ``allowed`` resembles ``name``, else nothing."""
    return f" (did you mean {near!r}?)" if (near := nearest(name, allowed)) else ""


@functools.cache
def _validator(hint: Any) -> SchemaValidator:
    config = None if dataclasses.is_dataclass(hint) else ConfigDict(arbitrary_types_allowed=True)
    return SchemaValidator(_bounded(TypeAdapter(hint, config=config).core_schema))


def _bounded(node: Any) -> Any:
    """pydantic's schema of a type, with :data:`_BOUNDS`, and without keys that nobody knows."""
    if isinstance(node, list):
        return [_bounded(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {"default", "metadata", "serialization", "expected", "config"}
    made = {k: v if k in kept else _bounded(v) for k, v in node.items()}
    kind = made.get("type")
    if kind == "dataclass":
        check, ref = _known_keys(made["cls"]), made.pop("ref", None)
        return core_schema.no_info_before_validator_function(check, cast(Any, made), ref=ref)
    if made == {"type": "str"}:
        # A command may hold bytes that are no text, which pydantic's own check refuses.
        return core_schema.custom_error_schema(core_schema.is_instance_schema(str), "string_type")
    return {**_BOUNDS.get(str(kind), {}), **made}


def _known_keys(cls: type) -> Callable[[Any], Any]:
    names = {f.name: None for f in dataclasses.fields(cls) if f.init}
    gone: frozenset[str] = getattr(cls, "GONE", frozenset())

    def check(value: Any) -> Any:
        if gone and isinstance(value, Mapping):
            value = {k: v for k, v in value.items() if k not in gone}
        strange = value.keys() - names.keys() if isinstance(value, Mapping) else ()
        for key in sorted(map(str, strange)):
            guess, near = closest(key, list(names)), list(names)
            if len(names) > _MOST_KEYS:
                near = difflib.get_close_matches(key, near, _NEAREST, 0.0)
                near.append(f"or one of {len(names) - _NEAREST} more")
            raise ValueError(f"{key[:80]}: unknown key{guess}; allowed: {', '.join(near)}")
        return value

    return check


def _data_error(error: ValidationError, data: Any, at: str) -> DataError:
    """One line about the first field with an error, of all errors there the deepest."""
    found = [(_path(one, data), one) for one in error.errors(include_url=False)]
    path, first = max(
        (each for each in found if each[0][:1] == found[0][0][:1]), key=lambda each: len(each[0])
    )
    key = at + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    key, value, code = key.removeprefix("."), first["input"], first["type"]
    if code == "value_error":
        said = first["ctx"]["error"]
        if isinstance(said, DataError):
            return said  # it names the whole path already
        joint = "" if not key else ": " if str(said).startswith("found") else "."
        text = f"{key}{joint}{said}"
        return DataError(text, text.partition(":")[0], code)
    if code == "missing":
        return DataError(f"{key}: missing; it must be given", key, code)
    same = [one for other, one in found if other == path]
    options = [name for one in same for name in re.findall("'([^']*)'", one["msg"])]
    hint = closest(value, options) if isinstance(value, str) else ""
    allowed = " or ".join(_in_plain_words(one["msg"]) for one in same)
    if isinstance(value, float) and value.is_integer() and "integer" in allowed:
        hint = f" (did you mean {int(value)}?)"  # 1e3 is a number with a fraction to YAML
    return DataError(f"{key or 'value'}: found {shown(value)}{hint}; allowed: {allowed}", key, code)


def _in_plain_words(text: str) -> str:
    for theirs, ours in words_beside(__file__, dict[str, str]).items():
        text = re.sub(theirs, ours, text)
    return text


def _path(one: ErrorDetails, data: Any) -> list[int | str]:
    """The keys of an error, without the names that pydantic gives to the options of a union."""
    path: list[int | str] = []
    for step in one["loc"]:
        if isinstance(data, Mapping) and (step in data or one["type"] == "missing"):
            data = data.get(step)
        elif isinstance(data, (list, tuple)) and isinstance(step, int):
            data = data[step]
        else:
            continue
        path.append(step)
    return path


def shown(value: object) -> str:
    """A value in a message, cut where it is long."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"

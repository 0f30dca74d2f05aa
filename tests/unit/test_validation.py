"""Plain data to dataclasses and back, and what is said of data that does not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from scalewise.validation import DataError, build, closest, describe, to_plain


@dataclass(frozen=True)
class Engine:
    cylinders: int
    litres: float = 1.0

    def __post_init__(self) -> None:
        if self.cylinders < 1:
            raise ValueError(f"cylinders: found {self.cylinders}; allowed: 1 or more")


@dataclass(frozen=True)
class Car:
    name: str
    engine: Engine
    colour: Literal["red", "blue"] = "red"
    doors: int | Literal["auto"] = "auto"
    tags: tuple[str, ...] = ()
    weights: Sequence[float] = ()
    spare: Engine | None = None
    extras: Mapping[str, int] = field(default_factory=dict)
    manual: Path | None = None
    fast: bool = False
    anything: Any = None


FULL: dict[str, Any] = {
    "name": "a",
    "engine": {"cylinders": 4, "litres": 2},
    "colour": "blue",
    "doors": 5,
    "tags": ["x", "y"],
    "weights": [1, 2.5],
    "spare": {"cylinders": 1},
    "extras": {"radio": 1},
    "manual": "doc.pdf",
    "fast": True,
    "anything": [None, {"k": 1}],
}


def test_nested_data_is_built_and_comes_back_the_same() -> None:
    car = build(Car, FULL)
    assert car.engine == Engine(4, 2.0)
    assert isinstance(car.engine.litres, float)
    assert car.tags == ("x", "y")
    assert car.manual == Path("doc.pdf")
    assert build(Car, to_plain(car)) == car


def test_defaults_stand_where_nothing_is_given() -> None:
    car = build(Car, {"name": "a", "engine": {"cylinders": 1}})
    assert (car.doors, car.spare, car.tags) == ("auto", None, ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "reed"}, "colour: found 'reed' (did you mean 'red'?); allowed: red | blue"),
        ({"doors": "many"}, "doors: found 'many'; allowed: an integer or auto"),
        ({"doors": True}, "doors: found True; allowed: an integer or auto"),
        ({"doors": 2.0}, "doors: found 2.0 (did you mean 2?); allowed: an integer or auto"),
        ({"doors": 2.5}, "doors: found 2.5; allowed: an integer or auto"),
        (
            {"engine": {"cylinders": 1e3}},
            "engine.cylinders: found 1000.0 (did you mean 1000?); allowed: an integer",
        ),
        ({"fast": 1}, "fast: found 1; allowed: true or false"),
        ({"name": None}, "name: found null; allowed: text"),
        ({"name": 3}, "name: found 3; allowed: text"),
        ({"tags": "x"}, "tags: found 'x'; allowed: a list"),
        ({"tags": [1]}, "tags[0]: found 1; allowed: text"),
        ({"extras": [1]}, "extras: found [1]; allowed: a mapping"),
        ({"extras": {"radio": "on"}}, "extras.radio: found 'on'; allowed: an integer"),
        ({"engine": 4}, "engine: found 4; allowed: a mapping with the keys cylinders, litres"),
        ({"engine": {}}, "engine.cylinders: missing; give an integer"),
        ({"engine": {"cylinders": 0}}, "engine.cylinders: found 0; allowed: 1 or more"),
        (
            {"engine": {"cylinder": 1}},
            "engine.cylinder: unknown key (did you mean 'cylinders'?); allowed: cylinders, litres",
        ),
        # A mapping that fits one option of a union badly gets that option's own message.
        ({"spare": {"cylinders": "x"}}, "spare.cylinders: found 'x'; allowed: an integer"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        build(Car, {**FULL, **change})


def test_the_path_to_a_key_is_prefixed() -> None:
    with pytest.raises(DataError, match=r"^garage\.engine\.cylinders: "):
        build(Car, {**FULL, "engine": {"cylinders": -1}}, "garage")


def test_nothing_is_suggested_for_a_name_that_resembles_none() -> None:
    assert closest("zzz", ["model", "dataset"]) == ""
    assert closest("modle", ["model", "dataset"]) == " (did you mean 'model'?)"


def test_types_are_described_in_words() -> None:
    assert describe(int | None) == "an integer or null"
    assert describe(list[int]) == "a list"
    assert describe(Path) == "a path"

"""Plain data to dataclasses and back, and what is said of data that does not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from scalewise.records import DataError, build, convert, to_plain


@dataclass(frozen=True)
class Engine:
    cylinders: Annotated[int, Field(ge=1)]
    litres: float = 1.0

    def __post_init__(self) -> None:
        if self.cylinders > self.litres * 8:
            raise ValueError(f"cylinders: found {self.cylinders}; allowed: 8 a litre")


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
    "name": "a", "engine": {"cylinders": 4, "litres": 2}, "colour": "blue", "doors": 2**64,
    "tags": ["x", "y"], "weights": [1, 2.5], "spare": {"cylinders": 1}, "extras": {"radio": 1},
    "manual": "doc.pdf", "fast": True, "anything": [None, {"k": 1}],
}  # fmt: skip


def test_nested_data_is_built_and_comes_back_the_same() -> None:
    car = build(Car, FULL)
    assert car.engine == Engine(4, 2.0)
    assert isinstance(car.engine.litres, float)
    assert (car.tags, car.manual) == (("x", "y"), Path("doc.pdf"))
    assert build(Car, to_plain(car)) == car
    # Text may hold bytes that are none.
    assert (
        build(Car, {**FULL, "doors": -(2**64), "name": "a\udcff", "extras": {"\udcff": 1}}).name
        == "a\udcff"
    )


@pytest.mark.parametrize(
    ("change", "key", "code"),
    [
        ({"doors": "many"}, "doors", "int_type"),
        ({"doors": True}, "doors", "int_type"),
        ({"doors": 2**64 + 1}, "doors", "less_than_equal"),
        ({"doors": -(2**64) - 1}, "doors", "greater_than_equal"),
        ({"fast": 1}, "fast", "bool_type"),
        ({"name": None}, "name", "string_type"),
        ({"name": 3}, "name", "string_type"),
        ({"tags": "x"}, "tags", "tuple_type"),
        ({"tags": [1]}, "tags[0]", "string_type"),
        ({"weights": [1, float("nan")]}, "weights[1]", "finite_number"),
        ({"weights": [10**400]}, "weights[0]", "float_type"),
        ({"weights": [True]}, "weights[0]", "float_type"),
        ({"extras": [1]}, "extras", "dict_type"),
        ({"extras": {"radio": "on"}}, "extras.radio", "int_type"),
        ({"engine": 4}, "engine", "dataclass_type"),
        ({"engine": {}}, "engine.cylinders", "missing"),
        ({"engine": {"cylinders": "4"}}, "engine.cylinders", "int_type"),
        ({"engine": {"cylinders": 0}}, "engine.cylinders", "greater_than_equal"),
        ({"engine": {"cylinders": 9}}, "engine.cylinders", "value_error"),
        # A mapping that fits one option of a union badly gets that option's own message.
        ({"spare": {"cylinders": "x"}}, "spare.cylinders", "int_type"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], key: str, code: str) -> None:
    with pytest.raises(DataError) as caught:
        build(Car, {**FULL, **change}, "garage")
    assert (caught.value.key, caught.value.code) == (f"garage.{key}", code)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "reed"}, "colour: found 'reed' (did you mean 'red'?); allowed: red or blue"),
        ({"doors": 2.0}, "doors: found 2.0 (did you mean 2?); allowed: an integer or auto"),
        ({"engine": {"cylinders": 0}}, "engine.cylinders: found 0; allowed: 1 or more"),
        ({"colour": "y" * 78}, f"colour: found '{'y' * 78}'; allowed: red or blue"),
        ({"colour": "y" * 79},
         f"colour: found '{'y' * 59}... (81 characters); allowed: red or blue"),
        ({"engine": {"cylinder": 1}},
         "engine.cylinder: unknown key (did you mean 'cylinders'?); allowed: cylinders, litres"),
    ],
)  # fmt: skip
def test_the_line_says_what_was_found_and_is_allowed(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        build(Car, {**FULL, **change})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("count", "allowed"), [(16, r"(key\d+, ){15}key15"), (17, r"(key\d+, ){5}or one of 12 more")]
)
def test_of_many_keys_the_nearest_are_listed(count: int, allowed: str) -> None:
    many = make_dataclass("Many", [(f"key{i}", int, field(default=0)) for i in range(count)])
    with pytest.raises(DataError, match=f"^ky: unknown key.*; allowed: {allowed}$"):
        build(many, {"ky": 1})


def test_a_type_that_pydantic_does_not_know_takes_its_instances() -> None:
    class Own:
        pass

    own = Own()
    assert convert(Own, own, "x") is own
    with pytest.raises(DataError):
        convert(Own, 3, "x")

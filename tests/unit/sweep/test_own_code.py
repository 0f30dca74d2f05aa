"""A user's own classes are checked before anything starts, mostly without importing them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scalewise.components import Component
from scalewise.errors import ConfigError
from scalewise.sweep.own_code import check_own_code
from scalewise.sweep.signature import Undecided, check_call

SOURCE = """
import dataclasses
from elsewhere import Imported, Base

class Net:
    def __init__(self, width: int, depth=2, *, note: str = ""): ...

class Wider(Net):
    pass

class Open:
    def __init__(self, width, **rest): ...

class Inherits(Base):
    pass

@dataclasses.dataclass
class Data:
    path: str

def make(size: float): ...
"""
MODULE = ast.parse(SOURCE)


def check(name: str, **arguments: Any) -> None:
    check_call("model", f"mine.{name}", name, MODULE, arguments)


def test_arguments_that_fit_pass() -> None:
    check("Net", width=3, note="x")
    check("Wider", width=3, depth=None)
    check("Open", width=3, anything=4)
    check("make", size=3)


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("Net", {"widht": 1}, "model.widht: unknown key (did you mean 'width'?); allowed: width,"),
        ("Net", {}, "model.width: missing; mine.Net needs it"),
        ("Wider", {"width": "a"}, "model.width: found 'a'; allowed: an integer"),
        ("Open", {"rest": 1}, "model.width: missing"),
        ("make", {"size": None}, "model.size: found null; allowed: a number"),
        ("Nett", {}, "model._target_: found 'mine.Nett'; mine has no 'Nett' (did you mean 'Net'?)"),
    ],
)
def test_what_does_not_is_one_line(name: str, arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(name, **arguments)
    assert str(error.value).startswith(line)


@pytest.mark.parametrize("name", ["Inherits", "Data", "Imported"])
def test_what_the_source_does_not_tell_is_left_to_an_import(name: str) -> None:
    with pytest.raises(Undecided):
        check(name)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    assert not {"loud", "broken"} & set(sys.modules), "nothing of the user's was imported here"


def request_of(target: str, **arguments: Any) -> Any:
    ours = Component("scalewise.datasets.Any", "any", {})
    cell = SimpleNamespace(model=Component(target, "own", arguments), dataset=ours, optimizer=ours)
    return cast(Any, SimpleNamespace(cell=cell, overrides=()))


def test_one_process_imports_what_the_source_does_not_tell(mine: Path) -> None:
    (mine / "loud.py").write_text(
        "import collections\nPoint = collections.namedtuple('Point', ['x', 'y'])\n"
        "class Counter(collections.Counter): pass\n"
    )
    check_own_code([request_of("loud.Point", x=1, y=2), request_of("loud.Counter", a=1)])
    with pytest.raises(ConfigError, match=r"^model\.y: missing; loud\.Point needs it$"):
        check_own_code([request_of("loud.Counter"), request_of("loud.Point", x=1)])


def test_a_module_that_cannot_be_imported_is_one_line(mine: Path) -> None:
    (mine / "broken.py").write_text("Net = 1 / 0\n")
    with pytest.raises(ConfigError, match=r"importing broken failed: ZeroDivisionError"):
        check_own_code([request_of("broken.Net")])
    (mine / "broken.py").write_text("class Net:\n  def\n")
    with pytest.raises(ConfigError, match=r"^model\._target_: broken\.py, line 2: invalid syntax$"):
        check_own_code([request_of("broken.Net")])


def optimizer_of(target: str, **arguments: Any) -> Any:
    ours = Component("scalewise.models.Any", "any", {})
    optimizer = Component(target, "own", arguments)
    cell = SimpleNamespace(model=ours, dataset=ours, optimizer=optimizer)
    return cast(Any, SimpleNamespace(cell=cell, overrides=()))


def test_an_optimizer_of_ones_own_is_given_its_parameters(mine: Path) -> None:
    (mine / "loud.py").write_text(
        "class Plain:\n  def __init__(self, params, lr: float): ...\n"
        "class Told:\n  def __init__(self, params, device_kind, lr: float = 0.1): ...\n"
        "def make(**all): ...\n"
        "class Without:\n  def __init__(self, weights): ...\n"
    )
    check_own_code([optimizer_of("loud.Plain", lr=0.1), optimizer_of("loud.Told")])
    check_own_code([optimizer_of("loud.make", lr=0.1)])
    for wrong, line in (
        (
            optimizer_of("loud.Plain", lr=0.1, rate=3),
            r"^optimizer\.rate: unknown key; allowed: lr$",
        ),
        (optimizer_of("loud.Plain", lr="x"), r"^optimizer\.lr: found 'x'; allowed: a number$"),
        (optimizer_of("loud.Plain"), r"^optimizer\.lr: missing; loud\.Plain needs it$"),
        (optimizer_of("loud.Plain", lr=1.0, params=3), r"^optimizer\.params: unknown key"),
        (optimizer_of("loud.Without", weights=1), r"^optimizer\._target_: .* takes no params;"),
    ):
        with pytest.raises(ConfigError, match=line):
            check_own_code([wrong])


def test_a_module_that_ends_the_process_is_one_line(mine: Path) -> None:
    (mine / "broken.py").write_text("import sys\nsys.exit(3)\nclass Net: ...\n")
    with pytest.raises(ConfigError, match="importing broken failed: SystemExit: 3"):
        check_own_code([request_of("broken.Net")])

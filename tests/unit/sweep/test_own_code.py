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
from scalewise.sweep.own_code import check_files, check_own_code
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
    return cast(Any, SimpleNamespace(cell=cell))


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


def test_a_data_file_of_ours_that_is_not_there(tmp_path: Path) -> None:
    def request(path: str | None, target: str = "scalewise.datasets.X") -> Any:
        return SimpleNamespace(cell=SimpleNamespace(dataset=Component(target, "x", {"path": path})))

    there = tmp_path / "there.csv"
    there.touch()
    check_files([request(str(there)), request(None), request("gone.csv", "mine.Data")])
    with pytest.raises(ConfigError, match=r"^dataset\.path: gone\.csv cannot be read: No such"):
        check_files([request(str(there)), request("gone.csv")])

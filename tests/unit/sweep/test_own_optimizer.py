"""An optimizer that would never be used is refused before anything starts."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scalewise.components import Component
from scalewise.errors import ConfigError
from scalewise.sweep import own_code
from scalewise.sweep.own_optimizer import may_be_lightning, typed_optimizer

SOURCE = """
import pytorch_lightning as pl
from torch import nn
from elsewhere import Base

class Net(nn.Module):
    def __init__(self, width: int = 2): ...

class Deeper(Net): ...

class Mine(pl.LightningModule):
    def __init__(self): super().__init__()

class Derived(Mine): ...

class Unknown(Base): ...

class Loop(Loop): ...

def make(): ...
"""


@pytest.mark.parametrize(
    ("overrides", "typed"),
    [
        (("model=medium", "optimizer=sgd", "optimizer.lr=1"), "optimizer=sgd"),
        (("+optimizer.lr=0.1",), "+optimizer.lr=0.1"),
        (("optimizer_like=3", "model.optimizer=x", "seed=1"), ""),
    ],
)
def test_only_what_was_typed_of_the_optimizer_counts(
    overrides: tuple[str, ...], typed: str
) -> None:
    assert typed_optimizer(overrides) == typed


def test_the_source_tells_who_is_surely_no_lightning_module() -> None:
    module = ast.parse(SOURCE)
    found = {name for name in ("Net", "Deeper", "Mine", "Derived", "Unknown", "Loop", "make",
                               "imported") if may_be_lightning(name, module)}  # fmt: skip
    assert found == {"Mine", "Derived", "Unknown", "Loop", "imported"}


def asked(target: str, *overrides: str) -> Any:
    ours = Component("scalewise.datasets.Any", "any", {})
    cell = SimpleNamespace(model=Component(target, "own", {}), dataset=ours, optimizer=ours)
    return cast(Any, SimpleNamespace(cell=cell, overrides=overrides))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = SOURCE.replace("from elsewhere import Base", "Base = object").replace(
        "class Loop(Loop): ...", ""
    )
    (tmp_path / "lit_mine.py").write_text(source)


@pytest.mark.usefixtures("mine")
def test_an_optimizer_beside_a_lightning_module_is_one_line() -> None:
    with pytest.raises(ConfigError) as refused:
        own_code.check_own_code(
            [
                asked("lit_mine.Unknown", "optimizer=sgd"),  # is none, and passes
                asked("lit_mine.Derived", "seed=3", "optimizer.lr=0.5"),
            ]
        )
    line = str(refused.value)
    assert line.startswith(
        "optimizer: found optimizer.lr=0.5 beside model._target_=lit_mine.Derived, a "
        "LightningModule, which builds its own; allowed: "
    )
    assert "\n" not in line


@pytest.mark.usefixtures("mine")
def test_nothing_is_imported_for_whom_the_source_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(asked: Any) -> None:
        raise AssertionError(f"imported {asked}")

    monkeypatch.setattr(own_code, "_check_by_import", imported)
    own_code.check_own_code(
        [
            asked("lit_mine.Net", "optimizer=sgd"),
            asked("lit_mine.make", "optimizer=sgd"),
            asked("lit_mine.Mine", "seed=1"),
        ]
    )

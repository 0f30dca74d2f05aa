"""A user's own classes are imported and looked at by one process before any cell starts."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from fakes.requests import asked as composed
from fakes.requests import read
from scalewise.config import Component, ConfigError
from scalewise.datasets.labelled import read_labelled_csv
from scalewise.datasets.text_classification import AgNews
from scalewise.sweep import preflight
from scalewise.sweep.plan import Request
from scalewise.sweep.preflight import check_files, check_own_code, take_own_batches

SOURCE = """
import collections
print("said while it is imported")
class Net:
    def __init__(self, width: int, depth=2, *, note: str = ""): ...
class Wider(Net): ...
class Open:
    def __init__(self, width, **rest): ...
Point = collections.namedtuple("Point", ["x", "y"])
NUMBER = 3
def make(size: float): ...
class Plain:
    def __init__(self, params, lr: float): ...
def optimizer(**all): ...
class Without:
    def __init__(self, weights): ...
"""
STUB = """
class LightningModule:
    def training_step(self): ...
    def configure_optimizers(self): ...
class LightningDataModule:
    def prepare_data(self): ...
"""
"""Stands for Lightning, whose import takes seconds."""
LIGHTNING = """
import pytorch_lightning as pl
class Mine(pl.LightningModule):
    def training_step(self, batch): ...
    def configure_optimizers(self): ...
class Derived(Mine): __init__ = lambda self, lr=1: None
class Other: ...
"""
REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())["own_code"]
OURS = Component("scalewise.datasets.Any", "any", {})


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(preflight, "_sound", set())
    monkeypatch.setattr(preflight, "_batches", {})
    (tmp_path / "loud.py").write_text(SOURCE)
    yield tmp_path
    assert not {"loud", "broken"} & set(sys.modules), "nothing of the user's was imported here"


@pytest.fixture
def looked_at_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process of ``check_own_code`` does is done in this one: a start less per case."""

    def here(*_: Any, input: str, **__: Any) -> Any:
        asked = [(key, Component(**plain), *rest) for key, plain, *rest in json.loads(input)]
        error = next(filter(None, map(preflight._error_of, asked)), None)
        for name in ("loud", "broken"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        answer = {"error": error, "batches": [None] * len(asked)}
        return SimpleNamespace(stdout=json.dumps(answer), returncode=0)

    monkeypatch.setattr(subprocess, "run", here)


def asked(target: str, *overrides: str, group: str = "model", **arguments: Any) -> Any:
    groups = {"model": OURS, "dataset": OURS, "optimizer": OURS}
    components = {**groups, group: Component(target, "own", arguments)}
    cell = SimpleNamespace(**components, components=components, test=False)
    return cast(Any, SimpleNamespace(cell=cell, overrides=overrides))


def refusal(*requests: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        check_own_code(requests)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """``subprocess.run``, counted."""
    counted = Mock(wraps=subprocess.run)
    monkeypatch.setattr(subprocess, "run", counted)
    return counted


def test_one_process_looks_at_all_that_fits_and_only_once(started: Mock) -> None:
    sound = [
        asked("loud.Net", "optimizer=sgd", width=3, note="x"),
        asked("loud.Wider", width=3, depth=None), asked("loud.Open", width=3, anything=4),
        asked("loud.Open", width={"_target_": "loud.Net", "_args_": [3]}),
        asked("loud.Point", x=1, y=2), asked("loud.make", size=3, group="dataset"),
        asked("loud.Plain", lr=0.1, group="optimizer"),
        asked("loud.optimizer", lr=0.1, group="optimizer"), asked("scalewise.models.mlp.Mlp"),
    ]  # fmt: skip
    check_own_code(sound)
    check_own_code([*sound, asked("loud.Net", "optimizer=adam", width=4, note="y")])
    assert started.call_count == 1
    check_own_code([asked("loud.Net", width=4)])
    assert started.call_count == 2, "other arguments than before"
    inner = {"_target_": "loud.Plain", "_partial_": True, "lr": 0.1}
    for number, target in enumerate(("loud.Plain", "loud.Open", "loud.Plain"), start=3):
        given = {**inner, "_target_": target, "width": 3} if "Open" in target else inner
        check_own_code([asked("loud.Open", width=[given])])
        assert started.call_count == min(number, 4), "another class among the arguments"


@pytest.mark.parametrize(
    ("source", "limit_s", "why"),
    [
        ("import os; os._exit(3)", 60, "ended the process that tried it (exit status 3)"),
        ("import time; time.sleep(60)", 0.5, "took more than 0.5 s"),
    ],
)
def test_an_import_that_does_not_return_is_one_line(
    mine: Path, monkeypatch: pytest.MonkeyPatch, source: str, limit_s: float, why: str
) -> None:
    monkeypatch.setattr(preflight, "_TIMEOUT_S", limit_s)
    (mine / "broken.py").write_text(source)
    assert refusal(asked("broken.Net")).startswith(f"model._target_: importing broken {why}")


@pytest.mark.usefixtures("looked_at_here")
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("Net = 1 / 0", "model._target_: importing broken failed: ZeroDivisionError: "),
        ("class Net:\n  def", "model._target_: importing broken failed: SyntaxError: "),
        ("import loudd", "model._target_: found 'broken.Net'; importing broken failed: No module "),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(mine: Path, source: str, line: str) -> None:
    (mine / "broken.py").write_text(source)
    assert refusal(asked("broken.Net")).startswith(line)


def test_a_lightning_module_takes_no_optimizer(mine: Path) -> None:
    (mine / "pytorch_lightning.py").write_text(STUB)
    (mine / "lit.py").write_text(LIGHTNING)
    check_own_code([asked("lit.Derived", "seed=3"), asked("lit.Other", "optimizer=sgd")])
    typed = asked("lit.Derived", "seed=3", "+optimizer.lr=0.5")
    assert refusal(typed).startswith("optimizer: found +optimizer.lr=0.5 beside model._target_=lit")
    assert refusal(typed).endswith("an argument for it: model.lr=0.5")
    assert refusal(asked("lit.Derived", "optimizer=sgd")).endswith("for it: model.KEY=VALUE")
    given = asked("lit.Derived", "optimizer=sgd", optimizer={"_target_": "torch.optim.Adam"})
    assert refusal(given).endswith("an argument for it: model.optimizer._target_=VALUE")
    check_own_code([asked("lit.Derived", "optimizer_like=3", "model.optimizer=x")])
    in_file = asked("lit.Derived", "seed=3")
    in_file.cell.components["scheduler"] = OURS
    assert refusal(in_file).startswith("scheduler: found scheduler=any beside model._target_=lit")
    words = ("model._target_=lit.Derived", "dataset._target_=loud.make", "scheduler=cosine")
    with pytest.raises(ConfigError, match=r"^scheduler: found scheduler=cosine beside model\."):
        take_own_batches([composed(*words)])  # before the length that a schedule of ours needs


def test_a_class_of_the_other_lightning_is_told_what_to_import(mine: Path) -> None:
    (mine / "theirs.py").write_text("import lightning as L\nclass Net(L.LightningModule): ...\n")
    told = "allowed: import pytorch_lightning as L, which has the same classes"
    assert refusal(asked("theirs.Net")).endswith(told), "it is not installed"
    (mine / "lightning").mkdir()
    (mine / "lightning/__init__.py").write_text("from lightning.pytorch import LightningModule")
    (mine / "lightning/pytorch.py").write_text("class LightningModule: ...")
    assert refusal(asked("theirs.Net")).endswith(told), "it is"


DATA = """
import pytorch_lightning as pl
class Loader:
    def __init__(self, batch_size):
        self.batch_size = batch_size
class Data(pl.LightningDataModule):
    def __init__(self, batch_size=64, missing="", root=""):
        self.batch_size, self.missing = batch_size, missing
    def prepare_data(self):
        raise AssertionError("a download")
    def setup(self, stage):
        if self.missing:
            raise FileNotFoundError(self.missing)
    def train_dataloader(self):
        return Loader(self.batch_size)
"""


@pytest.fixture
def data(mine: Path) -> None:
    (mine / "pytorch_lightning.py").write_text(STUB)
    (mine / "data.py").write_text(DATA)


def data_module(*overrides: str, **arguments: Any) -> Request:
    words = [f"+dataset.{key}={value}" for key, value in arguments.items()]
    return composed("dataset._target_=data.Data", *words, *overrides)


@pytest.mark.parametrize(
    ("typed", "given"),
    [("batch_size=256", {}), ("dataset.loader.num_workers=2", {}),
     ("batch_size=256", {"batch_size": 8})],
)  # fmt: skip
def test_what_a_data_module_decides_itself_is_refused_beside_it(
    data: None, typed: str, given: dict[str, int]
) -> None:
    key, _, value = typed.partition("=")
    line = refusal(data_module(typed, **given))
    assert line.startswith(f"{key}: found {value} beside dataset._target_=data.Data, which makes")
    assert line.endswith(f": {'' if given else '+'}dataset.{key.rpartition('.')[2]}={value}")


@pytest.mark.parametrize(("typed", "line"), REFUSED.items())
@pytest.mark.usefixtures("looked_at_here")
def test_what_does_not_fit_is_one_line(mine: Path, typed: str, line: str) -> None:
    """What a rank alone can tell, or does, has an empty line."""
    (mine / "bare.py").write_text(BARE)
    one = composed(*typed.split())
    assert refusal(one).startswith(line) if line else check_own_code([one]) is None


BARE = """
import pytorch_lightning as pl, torch
class Bare(pl.LightningModule):
    def __init__(self, given=""):
        super().__init__()
        exec(given)
class Data(pl.LightningDataModule):
    def __init__(self, given=""): exec(given)
class Plain(torch.nn.Module):
    def __init__(self): vars(self)["loss"] = print
"""


def test_batches_are_those_of_the_loader_without_a_download(data: None) -> None:
    given: list[dict[str, Any]] = [{}, {"batch_size": 20}, {"missing": "x.pt"}]
    taken, lines = take_own_batches([data_module("devices=3", **one) for one in given])
    assert {one.cell.scaling for one in taken} == {"weak"}
    assert [one.cell.batch_size for one in taken] == [64, 20, 128]
    assert taken[0].plain["batch_size"] == 64
    told = ("64 samples a device", "20 samples a device", "not checked, FileNotFoundError: x.pt")
    assert lines == [f"batch size: given by data.Data: {one} (scaling=weak)" for one in told]
    in_file = ("experiment=strong_scaling", "dataset._target_=data.Data")
    for asked_for in (["dataset._target_=data.Data", "scaling=strong"], in_file):
        with pytest.raises(
            ConfigError, match=r"^scaling: found strong with data\.Data, .*: weak, "
        ):
            read(asked_for)
        assert len(read([*asked_for, "sweep.resume=x"])), "as it once ran"
    assert {one.cell.scaling for one in read([*in_file, "scaling=weak"])} == {"weak"}


@pytest.mark.parametrize(
    ("missing", "makes", "found"),
    [("gone.csv", False, True), ("gone/a/x.csv", False, True), ("gone.csv", True, False)],
)
def test_a_typed_path_that_is_absent_is_refused_unless_the_module_makes_it(
    data: None, mine: Path, missing: str, makes: bool, found: bool
) -> None:
    """As the module itself says: it may look for others, and below the folder that was typed."""
    source = DATA.replace("FileNotFoundError(self.missing)", f"open({missing!r})")
    (mine / "data.py").write_text(source if makes else source.replace("def prepare_", "def other_"))
    given = {"root": "gone", "missing": missing.removesuffix("/x.csv"), "batch_size": makes}
    (one,), _ = take_own_batches([data_module(**given)])
    with pytest.raises(ConfigError, match=r"^dataset\.missing: gone") if found else nullcontext():
        check_files([one])


# Data files of ours that will not do are refused before anything starts, without torch.
TEXT = "scalewise.datasets.text_file.TextFile"


def request(target: str, **arguments: Any) -> Any:
    dataset = Component(target, "mine", arguments)
    return SimpleNamespace(cell=SimpleNamespace(dataset=dataset, ckpt_path=None, script=None))


def test_what_is_there_passes_and_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (there := tmp_path / "there.csv").touch()
    check_files([request("scalewise.datasets.X", path=path) for path in (str(there), None)])
    check_files([request("mine.Data", path="gone.csv")])


def test_what_cannot_be_read_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    (tmp_path / "file").touch()
    for target, key, name, found in (
        ("scalewise.datasets.X", "path", "gone", "gone cannot be read: No .*a file that is there"),
        ("scalewise.datasets.X", "root", "gone", "gone cannot be read: No .*a folder that is the"),
        (TEXT, "path", "loop.csv", "cannot be read: Too many levels of symbolic links"),
        (TEXT, "path", "", "cannot be read: a folder"),
        (TEXT, "root", "file", "cannot be read: no folder"),
    ):
        given: dict[str, Any] = {key: str(tmp_path / name)}
        with pytest.raises(ConfigError, match=rf"^dataset\.{key}: .*{found}"):
            check_files([request(target, **given)])
    start = request("mine.Data")
    start.cell.ckpt_path = ""
    with pytest.raises(ConfigError, match=r"^ckpt_path: '' cannot be read: a folder"):
        check_files([start])


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (b"1,a title,a text\n2,no text\n", "row 2: found ['2', 'no text']; allowed: "),
        (b"Class,Title,Description\n5,a,b\n", "row 2: found ['5', 'a', 'b']; allowed: "),
        (b"1,a,b\n2, ,\n", "row 2: found ['2', ' ', '']; allowed: "),
        (b'1,a,b\n2,"a,b\n', "after row 1: unexpected end of data; allowed: "),
        (b"1,a,b\n2,\xff,b\n", "after row 0: 'utf-8' codec can't decode byte 0xff"),
        (b"", "found no rows"),
        (b"class,title,description\n", "found no rows"),
    ],
)
def test_a_csv_file_is_refused_at_the_row(tmp_path: Path, rows: bytes, found: str) -> None:
    path = tmp_path / "news.csv"
    path.write_bytes(rows)
    with pytest.raises(ValueError, match=re.escape(found)):
        read_labelled_csv(path, AgNews.layout)


@pytest.mark.parametrize("first", ['"1",', "class,"])
def test_the_byte_order_mark_is_no_part_of_the_first_cell(tmp_path: Path, first: str) -> None:
    path = tmp_path / "excel.csv"
    path.write_text(f'{first}title,description\n"2",b,c\n', encoding="utf-8-sig")
    assert len(read_labelled_csv(path, AgNews.layout)) == (1 if first == "class," else 2)

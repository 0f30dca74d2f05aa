"""Which code runs, where it is in a repository, in somebody else's, or in none."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.host import (
    CLASS_FILES,
    SOURCE_SHA256,
    WORKING_DIRECTORY,
    code_changes,
    identity,
    own_classes,
    running_code,
    scalewise_version,
)
from scalewise.host.identity import code_version, source_sha256


def repository(folder: Path) -> str:
    """Commits all that is in ``folder``, but for what it ignores; returns the commit."""
    for given in (
        ("init", "-q"),
        ("add", "-A"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"),
    ):
        subprocess.run(["git", "-C", str(folder), *given], check=True)
    return str(code_version(folder)["commit"])


def package(folder: Path, content: str = "A = 1\n") -> Path:
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "part" / "a.py").write_text(content)
    return folder


def test_without_a_repository_the_sources_tell_the_code(tmp_path: Path) -> None:
    assert code_version(tmp_path) == {}
    first = scalewise_version(package(tmp_path / "first"))
    assert list(first) == [SOURCE_SHA256]
    again = package(tmp_path / "again")
    (again / "__pycache__").mkdir()
    (again / "__pycache__" / "a.pyc").write_bytes(b"of another path")
    assert scalewise_version(again) == first
    assert scalewise_version(package(tmp_path / "changed", "A = 2\n")) != first
    moved = package(tmp_path / "moved")
    shutil.move(moved / "part" / "a.py", moved / "a.py")
    assert scalewise_version(moved) != first


def test_a_repository_that_does_not_track_the_package_is_not_its_own(tmp_path: Path) -> None:
    """As an environment within the user's checkout, which he has git ignore."""
    (tmp_path / ".gitignore").write_text(".venv\n")
    (tmp_path / "train.py").write_text("")
    installed, tracked = package(tmp_path / ".venv" / "lib"), package(tmp_path / "src")
    commit = repository(tmp_path)
    assert scalewise_version(installed) == {SOURCE_SHA256: source_sha256(installed)}
    assert scalewise_version(tracked)["commit"] == commit


def test_a_page_that_is_edited_while_a_sweep_runs_changes_no_code(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("a")
    package(tmp_path / "src")
    repository(tmp_path)
    clean = code_version(tmp_path)
    (tmp_path / "notes.md").write_text("b")
    assert code_version(tmp_path) == clean
    (tmp_path / "src" / "part" / "a.py").write_text("A = 2\n")
    changed = code_version(tmp_path / "src")
    assert changed["dirty"]
    assert changed["diff_sha256"] != clean["diff_sha256"]


def test_a_users_commit_is_recorded_as_none_of_scalewises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = repository(tmp_path)
    monkeypatch.setattr(identity, "scalewise_version", lambda: {"commit": "ours"})
    assert running_code(tmp_path) == {"commit": "ours"}
    monkeypatch.setattr(identity, "scalewise_version", lambda: {SOURCE_SHA256: "0"})
    assert running_code(tmp_path) == {
        "commit": users, "dirty": False, "diff_sha256": None,
        "tree": WORKING_DIRECTORY, SOURCE_SHA256: "0",
    }  # fmt: skip
    shutil.rmtree(tmp_path / ".git")
    assert running_code(tmp_path) == {SOURCE_SHA256: "0"}


def test_the_classes_are_those_of_neither_scalewise_nor_torch() -> None:
    plain = {
        "model": {"_target_": "mine.Net", "layer": {"_target_": "other.Layer"}},
        "dataset": {"_target_": "scalewise.datasets.tabular.Tabular"},
        "optimizer": {"_target_": "torch.optim.SGD"},
        "callbacks": [{"_target_": "mine.Callback"}],
    }
    assert own_classes(plain) == ("mine.Callback", "mine.Net", "other.Layer")


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("mine_of_all", "mine_of_all.py"),
        ("nets_of_all", "nets_of_all/__init__.py"),
        ("nets_of_all.parts.mine", "nets_of_all/parts/mine.py"),
        ("exp_of_all.nets.mine", "exp_of_all/nets/mine.py"),
    ],
)
def test_a_class_is_known_by_the_file_of_its_module_which_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, file: str
) -> None:
    nets = ("nets_of_all/__init__.py", "nets_of_all/parts/mine.py")
    for name in ("mine_of_all.py", *nets, "exp_of_all/nets/mine.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise RuntimeError({name!r})\n")
    search = [str(tmp_path)]
    monkeypatch.setattr(identity, "scalewise_version", lambda: {"commit": "ours"})
    content = hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()
    found = running_code(tmp_path, [f"{module}.Net", f"{module}.Data"], search)
    assert found == {"commit": "ours", CLASS_FILES: {file: content}}
    monkeypatch.syspath_prepend(str(tmp_path))
    assert running_code(tmp_path, [f"{module}.Net"]) == found
    assert module.partition(".")[0] not in sys.modules


def test_a_class_that_is_not_found_has_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "scalewise_version", lambda: {"commit": "ours"})
    absent = ["no_such_module.Net", "no.such.Net", "sys.Net", "__main__.Net"]
    assert running_code(tmp_path, absent, [str(tmp_path)]) == {"commit": "ours"}


def test_each_part_of_the_fingerprint_tells_of_a_change() -> None:
    was = {"commit": "a", "diff_sha256": None, SOURCE_SHA256: "0", CLASS_FILES: {"mine.py": "1"}}
    now = [
        {**was, "commit": "b"},
        {**was, "diff_sha256": "2"},
        {**was, SOURCE_SHA256: "3"},
        {**was, CLASS_FILES: {"mine.py": "4"}},
    ]
    assert [len(list(code_changes(was, one))) for one in now] == [1, 1, 1, 1]
    (line,) = code_changes(was, now[-1])
    assert "mine.py" in line
    unknown = {**was, CLASS_FILES: {"other.py": "5"}}
    assert not list(code_changes(was, was)) + list(code_changes(was, unknown))

"""Which code runs, where it is in a repository, in somebody else's, or in none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scalewise import working_tree
from scalewise.records.provenance import SOURCE_SHA256, WORKING_DIRECTORY
from scalewise.working_tree import code_version, running_code, scalewise_version, source_sha256


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


def test_a_users_commit_is_recorded_as_none_of_scalewises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = repository(tmp_path)
    monkeypatch.setattr(working_tree, "scalewise_version", lambda: {"commit": "ours"})
    assert running_code(tmp_path) == {"commit": "ours"}
    monkeypatch.setattr(working_tree, "scalewise_version", lambda: {SOURCE_SHA256: "0"})
    assert running_code(tmp_path) == {
        "commit": users, "dirty": False, "diff_sha256": None,
        "tree": WORKING_DIRECTORY, SOURCE_SHA256: "0",
    }  # fmt: skip
    shutil.rmtree(tmp_path / ".git")
    assert running_code(tmp_path) == {SOURCE_SHA256: "0"}

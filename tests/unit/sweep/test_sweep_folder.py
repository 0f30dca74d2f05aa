"""Where the shipped configuration lies and where sweeps go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scalewise.config import components
from scalewise.sweep import compose


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    compose._new_folder.cache_clear()
    yield
    compose._new_folder.cache_clear()


def begun(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text("{}")
    return folder


def test_the_shipped_configuration_is_found() -> None:
    assert (components.conf_dir() / "config.yaml").is_file()


def test_one_process_has_one_new_folder_and_two_have_two() -> None:
    first = compose.sweep_folder([])
    assert compose.sweep_folder(["seed=1"]) == first
    compose._new_folder.cache_clear()
    assert compose.sweep_folder([]) != first


@pytest.mark.parametrize("spelling", ["sweep.resume={}", "+sweep.resume={}", "sweep.resume='{}'"])
def test_a_sweep_that_was_begun_is_resumed(tmp_path: Path, spelling: str) -> None:
    folder = begun(tmp_path / "old sweep")
    assert compose.sweep_folder(["seed=1", spelling.format(folder)]) == str(folder)


@pytest.mark.parametrize("value", ["null", "", "nowhere"])
def test_a_sweep_that_was_never_begun_is_not(value: str) -> None:
    assert compose.sweep_folder([f"sweep.resume={value}"]).startswith("multirun/")


def test_only_a_new_folder_without_a_sweep_is_removed(tmp_path: Path) -> None:
    compose.discard_unused_folder()
    resumed = begun(tmp_path / "old")
    compose.sweep_folder([f"sweep.resume={resumed}"])
    new = Path(compose.sweep_folder([]))
    (new / ".hydra").mkdir(parents=True)
    compose.discard_unused_folder()
    assert not new.exists()
    begun(new)
    compose.discard_unused_folder()
    assert new.exists()
    assert resumed.exists()

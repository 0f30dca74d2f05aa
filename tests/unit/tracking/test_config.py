"""The options of ``tracking``."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.requests import asked
from scalewise.config import TrackingConfig, default_project
from scalewise.records import build
from scalewise.tracking.tracker import tracking_of
from scalewise.tracking.wandb import logged_in, resolve_mode

CONF = Path(__file__).resolve().parents[3] / "conf" / "tracking"


def test_every_option_builds_and_the_default_is_both() -> None:
    read = {p.stem: yaml.safe_load(p.read_text(encoding="utf-8")) for p in CONF.glob("*.yaml")}
    assert {one.pop("project") for one in read.values()} == {None}
    options = {name: build(TrackingConfig, one) for name, one in read.items()}
    assert {name: config.trackers for name, config in options.items()} == {
        "both": ("trackio", "wandb"), "trackio": ("trackio",), "wandb": ("wandb",), "none": (),
    }  # fmt: skip
    assert all(config.name == name for name, config in options.items())
    assert options["both"] == TrackingConfig()


def test_a_project_is_called_as_the_folder_or_as_wandb_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".my thesis"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert default_project() == "my-thesis"
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    assert default_project() == "theirs"
    assert asked().plain["tracking"]["project"]
    assert asked("tracking.project=mine").cell.tracking.project == "mine"
    assert tracking_of({"tracking": {"project": "kept"}}).project == "kept"
    assert tracking_of({}).trackers == ("trackio", "wandb"), "a script may have recorded none"


# Which mode WandB runs in.
@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No account and no settings of whoever runs the tests; returns the netrc's path."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "netrc"


@pytest.mark.parametrize(
    ("environment", "asked", "mode"),
    [(None, "auto", "online"), (None, "offline", "offline"), (None, "online", "online"),
     ("offline", "online", "offline"), ("online", "offline", "online"),
     ("dryrun", "online", "offline"), ("disabled", "auto", "disabled")],
)  # fmt: skip
def test_mode_with_a_key(
    environment: str | None, asked: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    if environment is not None:
        monkeypatch.setenv("WANDB_MODE", environment)
    assert resolve_mode(TrackingConfig(wandb_mode=asked)) == mode


def test_netrc_counts_for_its_own_host(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody.write_text("machine wandb.example.org login user password secret\n")
    nobody.chmod(0o600)
    assert not logged_in() and resolve_mode(TrackingConfig()) == "offline"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert logged_in()

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from scalewise.config import TrackingConfig
from scalewise.tracking.wandb import logged_in, resolve_mode


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No account and no settings of whoever runs the tests; returns the netrc's path."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "netrc"


def test_nobody_is_logged_in() -> None:
    assert not logged_in()
    assert resolve_mode(TrackingConfig()) == "offline"


@pytest.mark.parametrize(
    ("environment", "asked", "mode"),
    [
        (None, "auto", "online"),
        (None, "offline", "offline"),
        (None, "online", "online"),
        ("offline", "online", "offline"),
        ("online", "offline", "online"),
        ("dryrun", "online", "offline"),
        ("disabled", "auto", "disabled"),
    ],
)
def test_mode_with_a_key(
    environment: str | None,
    asked: Literal["auto", "offline", "online"],
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    if environment is not None:
        monkeypatch.setenv("WANDB_MODE", environment)
    assert resolve_mode(TrackingConfig(wandb_mode=asked)) == mode


def test_netrc_counts_for_its_own_host(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody.write_text("machine wandb.example.org login user password secret\n")
    nobody.chmod(0o600)
    assert not logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert logged_in()

"""Where Trackio's variables send a project, without a network."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
import trackio
from huggingface_hub.errors import RepositoryNotFoundError

from scalewise.tracking import trackio_server
from scalewise.tracking.tracker import TrackerError
from scalewise.tracking.trackio_server import hand_over


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WRITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:7860", "allowed: http:// or https://"),
        ("http://localhost:7860", "found no write token"),
    ],
)
def test_a_server_that_cannot_be_one_is_refused(
    url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over("scalewise", ())  # nowhere is no error
    monkeypatch.setenv("TRACKIO_SERVER_URL", url)
    with pytest.raises(TrackerError, match=words):
        hand_over("scalewise", ())


def test_a_server_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackio_server, "_TAKE_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        monkeypatch.setenv("TRACKIO_SERVER_URL", f"{url}?write_token=secret")
        with pytest.raises(TrackerError, match="mirror FOLDER hands them over") as raised:
            hand_over("scalewise", ())
    assert str(raised.value).startswith(url) and "secret" not in str(raised.value)


@pytest.mark.parametrize("sdk", ["static", "gradio"])
def test_a_space_goes_before_a_server_and_takes_the_project(
    sdk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Any] = []
    found = SimpleNamespace(sdk=sdk)
    monkeypatch.setattr(huggingface_hub.HfApi, "space_info", lambda *_, **__: found)
    monkeypatch.setattr(trackio, "sync", lambda project, **more: synced.append((project, more)))
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://localhost:1/?write_token=secret")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/runs")
    hand_over("scalewise", ())
    assert synced == [("scalewise", {"space_id": "me/runs", "sdk": sdk, "force": True})]


def test_a_space_that_is_not_there_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RepositoryNotFoundError("", response=httpx.Response(404, request=REQUEST))

    monkeypatch.setattr(huggingface_hub.HfApi, "space_info", refuse)
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/runs")
    with pytest.raises(TrackerError, match="me/runs: no such Space, or not yours"):
        hand_over("scalewise", ())


REQUEST = httpx.Request("GET", "http://localhost")

"""Where Trackio's variables send runs, without a network."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import trackio

from scalewise.tracking import trackio_server
from scalewise.tracking.tracker import TrackerError
from scalewise.tracking.trackio_server import Parcel, TrackioServer


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WRITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_a_space_goes_before_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TrackioServer.from_environment() is None
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://localhost:1/?write_token=secret")
    server = TrackioServer.from_environment()
    assert server is not None and server.name == "http://localhost:1/"
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/runs")
    server = TrackioServer.from_environment()
    assert server is not None and server.name.endswith("/me/runs")


@pytest.mark.parametrize("url", ["localhost:7860", "http://localhost:7860"])
def test_a_server_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(TrackerError, match="TRACKIO_SERVER_URL: found"):
        TrackioServer(None, url)


def test_a_server_that_hangs_costs_its_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackio_server, "_TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = TrackioServer(None, f"http://127.0.0.1:{silent.getsockname()[1]}/?write_token=t")
        parcels: list[Parcel] = [("/bulk_log", {"logs": []})]
        began = time.monotonic()
        for _ in range(50):
            server.send(parcels)
        assert time.monotonic() - began < 5
    assert len(parcels) == 1
    assert server.problem


def test_a_static_space_takes_the_project_and_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Any] = []
    monkeypatch.setattr(trackio_server, "server_answers", lambda url, timeout_s: True)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "space_info", lambda *_, **__: SimpleNamespace(sdk="static")
    )
    monkeypatch.setattr(trackio, "sync", lambda project, **more: synced.append((project, more)))
    server = TrackioServer("me/runs", None)
    assert server.is_static()
    server.publish("scalewise")
    ((project, more),) = synced
    assert (project, more["space_id"], more["sdk"]) == ("scalewise", "me/runs", "static")


def test_without_the_hub_a_space_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackio_server, "server_answers", lambda url, timeout_s: False)
    server = TrackioServer("me/runs", None)
    parcels: list[Parcel] = [("/bulk_log", {"logs": []})]
    server.send(parcels)
    assert len(parcels) == 1
    assert "Hub" in server.problem

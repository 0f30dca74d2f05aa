"""The Trackio dashboard as a person sees it, in a real browser."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fakes.browser import CHROMIUM, Browser
from fakes.recorded import RecordedCell, plan_sweep
from fakes.train_command import ROOT
from scalewise.cli import main
from scalewise.records import Alert

_VIEW = [sys.executable, "-m", "scalewise", "trackio-view"]


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The full URL of a dashboard over one sweep of a GPU cell and a CPU cell."""
    tmp_path = tmp_path_factory.mktemp("dashboard")
    own = {"TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": str(ROOT / "src")}
    environment = {**os.environ, **own}
    sweep = plan_sweep(tmp_path / "sweep", ["on_gpus", "on_cpu"])
    for name, gpus in (("on_gpus", True), ("on_cpu", False)):
        only_trackio = {"tracking": {"name": "trackio", "trackers": ["trackio"]}}
        cell = RecordedCell(sweep.cell(name), gpus=gpus, config=only_trackio, steps=100)
        if gpus:
            text = "GPU 1 is lost: timeout"
            cell.alert(Alert(time.time(), "error", "lost", "GPU-1", "GPU 1: lost", text))
        cell.succeed()
    mirror = [sys.executable, "-m", "scalewise.tracking.mirror", str(sweep.path), "--once"]
    subprocess.run(mirror, env=environment, check=True, timeout=120)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    view = [*_VIEW, "--project", "scalewise", "--port", str(port)]
    with subprocess.Popen(view, env=environment, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        match = re.fullmatch(r"Trackio dashboard: (http://127\.0\.0\.1:\S+)\n", line)
        assert match, line
        yield match.group(1)
        process.terminate()


@pytest.mark.slow
def test_the_full_url_answers(dashboard: str) -> None:
    assert "project=scalewise" in dashboard
    assert "write_token=" in dashboard
    with urllib.request.urlopen(dashboard, timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_curves_and_gpus_by_device_are_shown(dashboard: str, tmp_path: Path) -> None:
    base, _, query = dashboard.partition("?")
    curves = "on_gpus on_cpu train_loss step_time_ms global_samples_per_s arrival_cv_percent"
    system = ("GPU 0", "GPU 1", "PROCESS 0", "PROCESS 1", "memory_used_mib", "power_w", "rss_mib",
              "GPU 1: lost")  # fmt: skip  # alerts stand beside the curves
    pages = {dashboard: curves.split(), f"{base.rstrip('/')}/system?{query}": system}
    with closing(Browser(tmp_path)) as browser:
        for url, words in pages.items():
            browser.open(url)
            for word in words:
                browser.until(f"document.documentElement.outerHTML.includes({word!r})")


def test_url_and_refusals_need_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    assert main(["trackio-view", "--url-only", "--project", "mine", "--port", "7999"]) == 0
    assert capsys.readouterr() == (
        "http://127.0.0.1:7999/?project=mine\n",
        "nothing listens there: start it with scalewise trackio-view --project mine\n",
    )
    assert main(["trackio-view", "--project", "mine"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: project: found 'mine'; in ") and said.endswith(
        "there is: none\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        (tmp_path / "scalewise.db").touch()
        assert main(["trackio-view", "--project", "scalewise", "--port", port]) == 2
    assert f"port {port}" in capsys.readouterr().err

"""Trackio's own server, and what is said where there is none."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.recorded_cell import RecordedCell, plan_sweep
from scalewise.records import SweepFolder, TrackerState

SERVE = """
import sys, time, trackio
*_, url = trackio.show(host="127.0.0.1", server_port=int(sys.argv[1]), open_browser=False,
                       block_thread=False)
print(url, file=sys.stderr, flush=True)
time.sleep(600)
"""
ONLY_TRACKIO = {"tracking": {"name": "trackio", "trackers": ["trackio"]}}


@pytest.fixture
def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[str]:
    """The URL of a server whose projects lie elsewhere, with its token."""
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "elsewhere")}
    command = [sys.executable, "-c", SERVE, str(free_port)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        yield next(line.strip() for line in process.stderr if "write_token=" in line)
        process.kill()


def mirror(
    environment: dict[str, str], sweep: SweepFolder, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scalewise", "mirror", str(sweep.path)],
        env={**environment, **more}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def state(cell: RecordedCell) -> TrackerState:
    record = cell.folder.load_tracking()
    assert record is not None
    return record.trackers["trackio"]


def counts(folder: Path) -> dict[str, int]:
    """Rows of each run in the project of a folder, read with nothing but SQL."""
    found: dict[str, int] = {}
    with sqlite3.connect(folder / "scalewise.db") as database:
        for table in ("metrics", "system_metrics"):
            query = f"SELECT run_name, count(*) FROM {table} GROUP BY run_name"
            for name, count in database.execute(query):
                found[name] = found.get(name, 0) + count
    return found


def configured(folder: Path) -> set[str]:
    """The runs whose configuration is there."""
    with sqlite3.connect(folder / "scalewise.db") as database:
        rows = database.execute("SELECT run_name, config FROM configs")
        return {name for name, config in rows if b"gpt2_tiny" in config or b"model" in config}


def test_a_server_that_is_away_gets_everything_once_it_is_there(
    tmp_path: Path, trackers_environment: dict[str, str], server: str, free_port: int
) -> None:
    sweep = plan_sweep(tmp_path / "2026-11-23_14-05-09-ab12", ["alpha", "beta"])
    cells = []
    for name in ("alpha", "beta"):
        cells.append(cell := RecordedCell(sweep.cell(name), config=ONLY_TRACKIO))
        cell.train(60)
        cell.succeed()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{closed.getsockname()[1]}/?write_token=t"
        began = time.monotonic()
        done = mirror(trackers_environment, sweep, TRACKIO_SERVER_URL=away)
        assert time.monotonic() - began < 30
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "cannot be reached" in line
    assert "write_token" not in line
    assert {state(cell).status for cell in cells} == {"incomplete"}
    names = {"11-23 14:05 alpha", "11-23 14:05 beta"}
    rows = cells[0].expected_rows()
    assert counts(tmp_path / "trackio") == dict.fromkeys(names, rows), "the local project is whole"

    done = mirror(trackers_environment, sweep, TRACKIO_SERVER_URL=server)
    assert (done.returncode, done.stderr) == (0, "")
    assert {state(cell).status for cell in cells} == {"synced"}
    assert counts(tmp_path / "elsewhere") == dict.fromkeys(names, rows)
    assert configured(tmp_path / "elsewhere") == names

    # Run again, the cell's old run leaves its name in both.
    cells[0].folder.set_aside()
    again = RecordedCell(sweep.cell("alpha"), config=ONLY_TRACKIO)
    again.train(80)
    again.succeed()
    done = mirror(trackers_environment, sweep, TRACKIO_SERVER_URL=server)
    assert (done.returncode, done.stderr) == (0, "")
    for folder in ("trackio", "elsewhere"):
        found = counts(tmp_path / folder)
        assert found.pop("11-23 14:05 alpha") == again.expected_rows()
        (old,) = found.keys() - names
        assert old.startswith("superseded 11-23 14:05 alpha")
        assert found[old] == rows

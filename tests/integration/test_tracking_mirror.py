"""The mirror process with the real Trackio and the real WandB, both read back."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import RecordedCell, plan_sweep
from fakes.train_command import wait_for
from fakes.wandb_server import WandbServer
from scalewise.host import descendants
from scalewise.records import Alert, CellFolder, SweepFolder, TrackerState, TrackingRecord
from scalewise.tracking.tracker import SweepName

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(trackers_environment: dict[str, str]) -> Iterator[Start]:
    with ExitStack() as ends:

        def _start(*arguments: str | Path, **env: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [sys.executable, "-m", "scalewise.tracking.mirror", *map(str, arguments)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                env={**trackers_environment, **env},
            )  # fmt: skip
            ends.enter_context(process)
            ends.callback(process.kill)
            return process

        yield _start


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, errors = process.communicate(b"finish\n", timeout=120)
    return process.returncode, errors.decode()


def tracking(cell: CellFolder) -> TrackingRecord:
    record = cell.load_tracking()
    assert record is not None
    return record


def are_synced(cell: CellFolder) -> bool:
    record = cell.load_tracking()
    # Each tracker adds its own state: one may not have begun when the other is done.
    return record is not None and [s.status for s in record.trackers.values()] == ["synced"] * 2


def in_trackio(environment: dict[str, str], table: str, columns: str) -> list[tuple[Any, ...]]:
    """Run and these columns of each row, read with nothing but SQL."""
    with closing(sqlite3.connect(Path(environment["TRACKIO_DIR"]) / "scalewise.db")) as connection:
        rows = connection.execute(f"SELECT run_name, {columns} FROM {table} ORDER BY rowid")
        # When the sweep began ends the name of each run.
        return [(run[:-12], *rest) for run, *rest in rows]


def trackio_rows(environment: dict[str, str], run: str) -> list[dict[str, Any]]:
    """Metric and system rows."""
    return [
        {**json.loads(text), "timestamp": when, "table": table}
        for table in ("metrics", "system_metrics")
        for name, text, when in in_trackio(environment, table, "metrics, timestamp")
        if name == run
    ]


def trackio_alerts(environment: dict[str, str]) -> list[tuple[Any, ...]]:
    """Run, title, text and level of every alert."""
    return in_trackio(environment, "alerts", "title, text, level")


def wandb_records(sweep: Path) -> dict[str, list[dict[str, Any]]]:
    """Records of each offline run by its name, as WandB's own tool reads them."""
    runs = {}
    for log in sorted((sweep / "wandb").glob("offline-run-*/*.wandb")):
        command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", log]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        records = [json.loads(line) for line in text.splitlines()]
        name = next(r["run"]["display_name"] for r in records if r["type"] == "run")[:-12]
        assert name not in runs, f"two offline runs are called {name}"
        runs[name] = records
    return runs


def history(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r["history"]["item"] for r in records if r["type"] == "history"]


def test_two_cells_land_whole_in_both_trackers(
    tmp_path: Path, start: Start, trackers_environment: dict[str, str]
) -> None:
    """The first is tried again, which is a new run; the second joins a plan that grows."""
    sweep = plan_sweep(tmp_path / "sweep", ["alpha"])
    process = start(sweep.path)
    failed = RecordedCell(sweep.cell("alpha"), steps=30)
    failed.fail()
    wait_for(lambda: are_synced(failed.folder), "the failed try in both", 90)
    alpha = RecordedCell(sweep.cell("alpha"), steps=55)
    plan_sweep(tmp_path / "sweep", ["alpha", "beta"])
    beta = RecordedCell(sweep.cell("beta"), gpus=False, steps=40)
    alpha.train(45)
    alpha.succeed(attempt=2)
    beta.succeed()
    status, errors = finish(process)
    assert (status, errors) == (0, "")

    logs = wandb_records(sweep.path)
    # The failed try ends with its throughput as its only summary.
    assert len(trackio_rows(trackers_environment, "alpha")) == failed.expected_rows()
    assert [r["exit"]["exit_code"] for r in logs["alpha"] if r["type"] == "exit"] == [1]
    assert tracking(alpha.folder).attempt == 2
    for cell, name in ((alpha, "alpha try 2"), (beta, "beta")):
        rows = trackio_rows(trackers_environment, name)
        assert len(rows) == cell.expected_rows()
        assert len(history(logs[name])) == cell.expected_rows()
        handed = cell.expected_rows()
        # Nobody counts the rows of an offline run of WandB.
        for tracker, counted in (("trackio", handed), ("wandb", None)):
            state = tracking(cell.folder).trackers[tracker]
            assert (state.status, state.handed_over, state.read_back, state.problem) == (
                "synced", handed, counted, None,
            )  # fmt: skip

    rows = trackio_rows(trackers_environment, "alpha try 2")
    gpu = [r for r in rows if r["table"] == "system_metrics"]
    assert (gpu[0]["gpu/1/memory_used_mib"], gpu[0]["gpu_total_memory"]) == (12050, 24050)
    assert next(r for r in rows if "step_time_ms" in r)["step_time_ms"] == pytest.approx(100)
    beta_rows = trackio_rows(trackers_environment, "beta")
    assert any(r.get("process/1/rss_mib") == 12050 for r in beta_rows)

    run = next(r["run"] for r in logs["alpha try 2"] if r["type"] == "run")
    assert (run["project"], run["run_group"][12:]) == ("scalewise", "alpha,beta")
    assert set(run["tags"]) >= {"medium", "tabular", "ddp", "fp32"}
    assert run["job_type"] == "alpha"
    configs = in_trackio(trackers_environment, "configs", "config")
    assert {json.loads(text)["row"] for _, text in configs} == {"alpha", "beta"}
    last = history(logs["alpha try 2"])[-1]
    assert last["summary/world_size"] == 2
    assert "summary/val_accuracy" not in last, "what was logged is a curve"


def test_killed_mirror_completes_later_without_doubling(
    tmp_path: Path, start: Start, trackers_environment: dict[str, str]
) -> None:
    """One cell ended an hour ago, and its records have torn ends, which nobody takes for rows."""
    sweep = plan_sweep(tmp_path / "sweep", ["alpha", "beta"])
    ecc, lost = (
        Alert(time.time(), "error", code, f"GPU-{gpu}", f"GPU {gpu}: {title}", text)
        for code, gpu, title, text in (
            ("ecc", 1, "uncorrected memory errors", "1 of them"),
            ("lost", 0, "lost", "GPU 0 is lost: timeout"),
        )
    )
    beta = RecordedCell(sweep.cell("beta"))
    beta.started_at -= 3600
    beta.alert(ecc)
    beta.train(30)
    beta.succeed()
    for path in (beta.folder.metrics_path(0), beta.folder.device_series_paths()[0]):
        with path.open("ab") as file:
            file.write(b'{"time": 1, "st')
    with beta.folder.steps_path(1).open("ab") as file:
        file.write(b"\0" * 7)
    alpha = RecordedCell(sweep.cell("alpha"))
    alpha.alert(lost)
    alpha.train(50)
    first = start(sweep.path)
    wait_for(lambda: are_synced(beta.folder), "beta in both", 90)
    wait_for(lambda: len(trackio_rows(trackers_environment, "alpha")) >= 10, "rows", 90)
    wait_for(lambda: len(trackio_alerts(trackers_environment)) == 2, "its alert", 90)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert tracking(alpha.folder).trackers["trackio"].status == "incomplete"

    alpha.alert(ecc)
    alpha.train(50)
    alpha.succeed()
    before = (beta.folder.path / "tracking.json").stat().st_mtime_ns
    assert finish(start(sweep.path)) == (0, "")
    assert (beta.folder.path / "tracking.json").stat().st_mtime_ns == before
    logs = wandb_records(sweep.path)
    assert sorted(logs) == ["alpha", "beta"]
    told = [*trackio_alerts(trackers_environment)]
    for cell, alerts in ((alpha, [lost, ecc]), (beta, [ecc])):
        name, record = cell.folder.name, tracking(cell.folder)
        assert len(trackio_rows(trackers_environment, name)) == cell.expected_rows()
        assert len(history(logs[name])) == cell.expected_rows()
        assert {state.status for state in record.trackers.values()} == {"synced"}
        titles = {one.title for one in alerts}
        assert set(record.alerts) == titles
        assert sorted(one for one in told if one[0] == name) == sorted(
            (name, one.title, one.text, "error") for one in alerts
        )
        in_wandb = [r["alert"] for r in logs[name] if r["type"] == "alert"]
        assert {(a["title"], a["level"]) for a in in_wandb} == {(t, "ERROR") for t in titles}
    rows = trackio_rows(trackers_environment, "beta")
    sampled = next(row for row in rows if row["table"] == "system_metrics")
    expected = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(beta.started_at + 1))
    assert sampled["timestamp"].startswith(expected)


def test_dead_sweep_ends_the_mirror_and_its_children(tmp_path: Path, start: Start) -> None:
    """All of which ran on idle time."""
    sweep = plan_sweep(tmp_path / "sweep", ["alpha"])
    cell = RecordedCell(sweep.cell("alpha"), steps=50)
    cell.close()
    process = start(sweep.path)
    wait_for(lambda: list((sweep.path / "wandb").glob("offline-run-*/*.wandb")), "a run", 90)
    children = descendants(process.pid)
    assert children
    for pid in (process.pid, *children):
        threads = [int(t.name) for t in Path(f"/proc/{pid}/task").iterdir()]
        assert {os.sched_getscheduler(t) for t in threads} == {os.SCHED_IDLE}
    process.stdin.close()
    assert process.wait(30) == 1
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "their end", 30)
    states = tracking(cell.folder).trackers
    assert {s.status for s in states.values()} == {"incomplete"}
    assert all("had not ended" in (s.problem or "") for s in states.values())
    assert states["trackio"].handed_over == states["trackio"].read_back


@pytest.fixture
def full_disk(small_disk: Path) -> Path:
    """A file system with 64 KiB left."""
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - (64 << 10)))
    return small_disk


@pytest.mark.parametrize(("full", "whole"), [("trackio", "wandb"), ("wandb", "trackio")])
def test_a_full_disk_is_said_of_the_tracker_on_it(
    tmp_path: Path, start: Start, full_disk: Path, full: str, whole: str
) -> None:
    sweep = plan_sweep(tmp_path / "sweep", ["alpha"])
    RecordedCell(sweep.cell("alpha"), steps=3000).succeed()
    environment = {"TRACKIO_DIR": str(full_disk)} if full == "trackio" else {}
    if full == "wandb":
        # It says nothing of a full disk: only what is found there afterwards does.
        (sweep.path / "wandb").symlink_to(full_disk)
    status, errors = finish(start(sweep.path, **environment))
    states = tracking(sweep.cell("alpha")).trackers
    assert (status, len(errors.splitlines())) == (1, 1)
    assert errors.startswith(f"{full}: ")
    assert states[full].status in ("incomplete", "failed")
    assert ("" if full == "wandb" else "full") in states[full].problem
    assert states[whole].status == "synced"


# WandB online, and uploads of offline runs, against a server on loopback

ONLY_WANDB = {"tracking": {"name": "wandb", "trackers": ["wandb"]}}


def account(server: WandbServer) -> dict[str, str]:
    return {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "k" * 40}


def wandb_state(cell: RecordedCell) -> TrackerState:
    ((name, state),) = tracking(cell.folder).trackers.items()
    assert name == "wandb"
    return state


@pytest.fixture
def finished(tmp_path: Path) -> tuple[SweepFolder, list[RecordedCell]]:
    """Two finished cells that want WandB only."""
    sweep = plan_sweep(tmp_path / "sweep", ["alpha", "beta"])
    cells = [RecordedCell(sweep.cell(n), config=ONLY_WANDB, steps=40) for n in ("alpha", "beta")]
    for cell in cells:
        cell.succeed()
    return sweep, cells


def test_offline_runs_are_uploaded_by_what_we_name(
    finished: tuple[SweepFolder, list[RecordedCell]],
    start: Start,
    trackers_environment: dict[str, str],
) -> None:
    sweep, cells = finished
    with closing(WandbServer()) as server:
        assert finish(start(sweep.path, "--once", **account(server), WANDB_MODE="offline"))[0] == 0
        assert server.runs == {}, "WANDB_MODE goes before a login"
        assert wandb_state(cells[0]).status == "synced"
        runs = sorted(sweep.path.glob("wandb/offline-run-*"))
        subprocess.run(
            [sys.executable, "-m", "wandb", "sync", *runs], check=True, capture_output=True,
            env={**trackers_environment, **account(server)}, timeout=120,
        )  # fmt: skip
        group = str(SweepName.of(sweep, sweep.load_plan()))
        assert sorted(((u.name or "").split()[0], u.group) for u in server.runs.values()) == [
            ("alpha", group), ("beta", group),
        ]  # fmt: skip
        for upload in server.runs.values():
            assert len(upload.history) == cells[0].expected_rows()
            assert "ddp" in upload.tags
            assert "provenance" in upload.config
            assert upload.exit_code == 0


def test_server_away_leaves_runs_to_upload(
    finished: tuple[SweepFolder, list[RecordedCell]], start: Start
) -> None:
    sweep, cells = finished
    with closing(WandbServer()) as server:
        nobody = account(server)
    status, errors = finish(start(sweep.path, "--once", **nobody))
    assert (status, len(errors.splitlines())) == (1, 1)
    for cell in cells:
        state = wandb_state(cell)
        assert state.status == "incomplete"
        assert (state.handed_over, state.read_back) == (cell.expected_rows(), None)
        assert "server cannot be reached" in (state.problem or "")
    with closing(WandbServer()) as server:
        # The next mirror of this sweep finds the server and completes the runs there.
        assert finish(start(sweep.path, "--once", **account(server)))[0] == 0
        assert sorted((u.name or "").split()[0] for u in server.runs.values()) == ["alpha", "beta"]
        assert {len(u.history) for u in server.runs.values()} == {cells[0].expected_rows()}
        assert all(wandb_state(cell).location.startswith(server.url) for cell in cells)
        assert {wandb_state(cell).status for cell in cells} == {"synced"}


def test_killed_mirror_completes_online_without_doubling(tmp_path: Path, start: Start) -> None:
    sweep = plan_sweep(tmp_path / "sweep", ["alpha"])
    cell = RecordedCell(sweep.cell("alpha"), config=ONLY_WANDB, steps=60)
    with closing(WandbServer()) as server:
        # WandB sends what it has every 15 s else.
        often = {"WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "1"}
        first = start(sweep.path, **account(server), **often)
        wait_for(lambda: any(run.history for run in server.runs.values()), "an upload", 90)
        first.kill()
        cell.train(60)
        cell.succeed()
        assert finish(start(sweep.path, "--once", **account(server))) == (0, "")
        (upload,) = server.runs.values()
        assert len(upload.history) == cell.expected_rows()
        losses = [row["train_loss"] for row in upload.history.values() if "train_loss" in row]
        assert (len(losses), losses) == (12, sorted(losses, reverse=True))
    assert wandb_state(cell).status == "synced"

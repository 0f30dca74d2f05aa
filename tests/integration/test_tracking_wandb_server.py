"""WandB online and uploads of offline runs, against a server on loopback."""

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from fakes.recorded_cell import RecordedCell, plan_sweep
from fakes.wandb_server import WandbServer
from scalewise.records import SweepFolder, TrackerState
from scalewise.tracking.tracker import SweepName

ONLY_WANDB = {"tracking": {"name": "wandb", "trackers": ["wandb"]}}


def named(server: WandbServer) -> list[tuple[str, str]]:
    """Name and group of every run, by name."""
    return sorted((u.name or "", u.group or "") for u in server.runs.values())


def group_of(sweep: SweepFolder) -> str:
    return str(SweepName.of(sweep, sweep.load_plan()))


def logged_in(environment: dict[str, str], url: str) -> dict[str, str]:
    return {**environment, "WANDB_BASE_URL": url, "WANDB_API_KEY": "k" * 40}


def run(environment: dict[str, str], *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def mirror(environment: dict[str, str], sweep: SweepFolder) -> subprocess.CompletedProcess[str]:
    return run(environment, "-m", "scalewise.tracking.mirror", sweep.path, "--once")


def recorded_sweep(folder: Path) -> tuple[SweepFolder, list[RecordedCell]]:
    """Two finished cells that want WandB only."""
    sweep = plan_sweep(folder, ["alpha", "beta"])
    cells = []
    for name in ("alpha", "beta"):
        cell = RecordedCell(sweep.cell(name), config=ONLY_WANDB)
        cell.train(40)
        cell.succeed()
        cells.append(cell)
    return sweep, cells


def wandb_state(cell: RecordedCell) -> TrackerState:
    record = cell.folder.load_tracking()
    assert set(record.trackers) == {"wandb"}
    return record.trackers["wandb"]


def test_offline_runs_are_uploaded_by_what_we_name(
    tmp_path: Path, trackers_environment: dict[str, str]
) -> None:
    sweep, cells = recorded_sweep(tmp_path / "sweep")
    with closing(WandbServer()) as server:
        account = logged_in(trackers_environment, server.url)
        assert mirror({**account, "WANDB_MODE": "offline"}, sweep).returncode == 0
        assert server.runs == {}, "WANDB_MODE goes before a login"
        assert wandb_state(cells[0]).status == "synced"
        runs = sorted(sweep.path.glob("wandb/offline-run-*"))
        assert run(account, "-m", "wandb", "sync", *runs).returncode == 0
        assert [(name.split()[0], group) for name, group in named(server)] == [
            ("alpha", group_of(sweep)),
            ("beta", group_of(sweep)),
        ]
        for upload in server.runs.values():
            assert len(upload.history) == cells[0].expected_rows()
            assert "ddp" in upload.tags
            assert "provenance" in upload.config
            assert upload.exit_code == 0


def test_server_away_leaves_runs_to_upload(
    tmp_path: Path, trackers_environment: dict[str, str]
) -> None:
    sweep, cells = recorded_sweep(tmp_path / "sweep")
    with closing(WandbServer()) as server:
        nobody = server.url
    done = mirror(logged_in(trackers_environment, nobody), sweep)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    for cell in cells:
        state = wandb_state(cell)
        assert state.status == "incomplete"
        assert (state.handed_over, state.read_back) == (cell.expected_rows(), None)
        assert "server cannot be reached" in (state.problem or "")
    with closing(WandbServer()) as server:
        # The next mirror of this sweep finds the server and completes the runs there.
        assert mirror(logged_in(trackers_environment, server.url), sweep).returncode == 0
        assert [name.split()[0] for name, _ in named(server)] == ["alpha", "beta"]
        assert {len(u.history) for u in server.runs.values()} == {cells[0].expected_rows()}
        assert all(wandb_state(cell).location.startswith(server.url) for cell in cells)
        assert {wandb_state(cell).status for cell in cells} == {"synced"}


def test_killed_mirror_completes_online_without_doubling(
    tmp_path: Path, trackers_environment: dict[str, str]
) -> None:
    sweep = plan_sweep(tmp_path / "sweep", ["alpha"])
    cell = RecordedCell(sweep.cell("alpha"), config=ONLY_WANDB)
    cell.train(60)
    with closing(WandbServer()) as server:
        account = logged_in(trackers_environment, server.url)
        command = [sys.executable, "-m", "scalewise.tracking.mirror", str(sweep.path)]
        with subprocess.Popen(command, env=account, stdin=subprocess.PIPE) as process:
            deadline = time.monotonic() + 90
            while not any(upload.history for upload in server.runs.values()):
                assert time.monotonic() < deadline, "nothing was uploaded"
                time.sleep(0.1)
            process.kill()
        cell.train(60)
        cell.succeed()
        done = mirror(account, sweep)
        assert (done.returncode, done.stderr) == (0, "")
        (upload,) = server.runs.values()
        assert len(upload.history) == cell.expected_rows()
        losses = [row["train_loss"] for row in upload.history.values() if "train_loss" in row]
        assert len(losses) == 12
        assert losses == sorted(losses, reverse=True)
    assert wandb_state(cell).status == "synced"

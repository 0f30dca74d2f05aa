"""What is said of a mirror is where it really is."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import Spec, write_sweep

from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import Analysis, analyse
from scalewise.records import CellFolder, TrackerState, TrackingRecord
from scalewise.report import trackers


def analysed(path: Path, **states: TrackerState) -> Analysis:
    write_sweep(path, [Spec()])
    CellFolder(next(path.glob("000-*"))).save_tracking(TrackingRecord(states))
    return analyse(load_sweep(path))


def whole(location: str) -> TrackerState:
    return TrackerState("synced", 12, 12, location)


def test_a_run_recorded_offline_is_not_said_to_be_on_a_server(tmp_path: Path) -> None:
    folder = tmp_path / "wandb" / "offline-run-1"
    found = analysed(tmp_path, wandb=whole(f"/gone/{folder.name}"), trackio=whole("p/r in /x"))
    assert trackers.standing(found) == [
        "wandb: 1 run recorded offline, in files of this machine; not uploaded (scalewise "
        "wandb-sync SWEEP_FOLDER uploads them)",
        "trackio: 1 run in Trackio's files of this machine, read back from there",
    ]
    folder.mkdir(parents=True)
    (folder / "run-1.wandb.synced").touch()
    assert trackers.standing(found)[0] == "wandb: 1 run recorded offline and uploaded since"


@pytest.mark.parametrize("status", ["incomplete", "failed"])
def test_a_mirror_with_a_problem_is_told_by_its_problem_alone(tmp_path: Path, status: str) -> None:
    state = TrackerState(status, 12, 9, "https://wandb.test/r", "3 rows lost")  # type: ignore[arg-type]
    found = analysed(tmp_path, wandb=state)
    assert trackers.standing(found) == []
    assert trackers.problems(found) == [
        f"000-large-single-r0: wandb {status}: 12 rows handed over, 9 read back; 3 rows lost"
    ]


def test_a_run_on_a_server_is_there(tmp_path: Path) -> None:
    found = analysed(tmp_path, wandb=whole("https://wandb.test/r"))
    assert trackers.standing(found) == ["wandb: 1 run on the server, read back from there"]

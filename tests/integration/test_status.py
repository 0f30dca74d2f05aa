"""``scalewise status`` beside a sweep that runs: what it says comes true."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.train_command import LEAN, Train, wait_for
from scalewise.records import SweepFolder

pytestmark = pytest.mark.timing


def status(train: Train, folder: Path) -> dict[str, Any]:
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "from scalewise.cli import main; raise SystemExit(main())",
            *("status", str(folder), "--json"),
        ],
        env=train.environment,
        capture_output=True,
        check=True,
    )
    return json.loads(run.stdout)  # type: ignore[no-any-return]


def under_way(cell: dict[str, Any]) -> bool:
    return cell["state"] == "running" and (cell["step"] or 0) >= 3


@pytest.mark.slow
def test_the_finishing_time_is_right_to_15_percent_at_half_way(
    train: Train, own_code: Path
) -> None:
    sweep = train.start(
        *LEAN,
        "model._target_=mine.Faulty",
        "dataset._target_=mine.Data",
        "batch_size=16",
        "+model.step_ms=70,140",
        "max_steps=60",
        "max_epochs=null",
        "repeats=2",
        "-m",
        cwd=own_code,
    )
    folder = SweepFolder(wait_for(lambda: train.sweeps(own_code), "the sweep's folder").pop())
    wait_for(lambda: len(list(folder.path.glob("*/result.json"))) == 2, "two results", 120)
    # A round is both configurations: half of the work is done, and the third cell makes steps.
    third = wait_for(
        lambda: next((c for c in status(train, folder.path)["cells"] if under_way(c)), None),
        "the third cell's steps",
    )
    assert third["total_steps"] == 60
    said = status(train, folder.path)
    assert said["count"] == {"done": 2, "running": 1, "waiting": 1}
    _, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, err
    results = [cell.load_result() for _, cell in folder.cells()]
    began, ended = min(r.started_at for r in results), max(r.finished_at for r in results)
    estimate = said["estimate"]
    predicted = said["time"] + estimate["seconds_left"]
    assert abs(predicted - ended) <= 0.15 * (ended - began), (estimate, said["time"] - ended)
    assert status(train, folder.path)["count"] == {"done": 4}

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

STEPS = 40
"""Of 70 or 140 ms: of a cell's time as much as its start, and time enough to ask in between."""


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


def while_under_way(said: dict[str, Any]) -> dict[str, Any] | None:
    """``said`` itself, if it was said while a cell made steps."""
    running = [cell for cell in said["cells"] if cell["state"] == "running"]
    stepping = [cell for cell in running if (cell["step"] or 0) >= 3]
    assert all(cell["total_steps"] == STEPS for cell in stepping)
    return said if stepping else None


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
        f"max_steps={STEPS}",
        "max_epochs=null",
        "repeats=2",
        "-m",
        cwd=own_code,
    )
    folder = SweepFolder(wait_for(lambda: train.sweeps(own_code), "the sweep's folder").pop())
    wait_for(lambda: len(list(folder.path.glob("*/result.json"))) == 2, "two results", 120)
    # A round is both configurations: half of the work is done, and the third cell makes steps.
    said = wait_for(lambda: while_under_way(status(train, folder.path)), "the third cell's steps")
    assert said["count"] == {"done": 2, "running": 1, "waiting": 1}
    _, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, err
    results = [cell.load_result() for _, cell in folder.cells()]
    began, ended = min(r.started_at for r in results), max(r.finished_at for r in results)
    estimate = said["estimate"]
    predicted = said["time"] + estimate["seconds_left"]
    assert abs(predicted - ended) <= 0.15 * (ended - began), (estimate, said["time"] - ended)
    assert status(train, folder.path)["count"] == {"done": 4}

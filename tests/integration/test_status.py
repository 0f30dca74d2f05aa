"""``scalewise status`` beside a sweep that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fakes.train_command import LEAN, Train, wait_for
from scalewise.records import SweepFolder

STEPS = 60
"""Of 70 ms: time enough to ask in between."""


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


def test_cells_are_counted_and_the_rest_is_estimated(train: Train, own_code: Path) -> None:
    sweep = train.start(
        *LEAN,
        "model._target_=mine.Faulty",
        "dataset._target_=mine.Data",
        "batch_size=16",
        "+model.step_ms=70",
        f"max_steps={STEPS}",
        "max_epochs=null",
        "repeats=2",
        "-m",
        cwd=own_code,
    )
    folder = SweepFolder(wait_for(lambda: train.sweeps(own_code), "the sweep's folder").pop())
    wait_for(lambda: len(list(folder.path.glob("*/result.json"))) == 1, "a result", 120)
    said = wait_for(lambda: while_under_way(status(train, folder.path)), "the second's steps")
    assert said["count"] == {"done": 1, "running": 1}
    assert said["seconds_left"] > 0
    _, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, err
    assert status(train, folder.path)["count"] == {"done": 2}

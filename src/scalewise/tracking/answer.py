"""The answer of a sweep in the trackers: one run a sweep, in the group of its cells.

``python -m scalewise.tracking.answer SWEEP_FOLDER``, after its report was written. The run holds
verdict, speedup, efficiency and cost of each comparison, and the report as an artifact. Asked for
again, it replaces what it said before.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.analysis import shown_on
from scalewise.config import in_one_line
from scalewise.host import say
from scalewise.records import RecordError, SweepFolder, load_or_none, read_plain
from scalewise.tracking.mirror import open_tracker, run_and_exit
from scalewise.tracking.tracker import Answer, RunInfo, SweepName, TrackerError, tracking_of

_WAIT_S = 90.0
_OURS = "scalewise: "
"""Begins a line that is meant for the user: trackers write lines of their own."""


def hand_over_answer(sweep: Path) -> bool:
    """Give the trackers of a sweep its answer, in a process of its own.

    False where one of them does not have it, which is said.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "scalewise.tracking.answer", str(sweep)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=_WAIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        say(f"tracking: the answer was not handed over within {_WAIT_S:g} s")
        return False
    lines = done.stderr.decode(errors="replace").splitlines()
    for line in lines:
        if line.startswith(_OURS):
            say(line.removeprefix(_OURS))
    if done.returncode and not any(line.startswith(_OURS) for line in lines):
        why = lines[-1] if lines else f"its process ended with {done.returncode}"
        say(f"tracking: the answer was not handed over: {why}")
    return done.returncode == 0


def read_answer(folder: Path) -> tuple[RunInfo, Answer] | None:
    """The run and what it is to hold; None for a sweep without a comparison.

    Raises RecordError for a folder without a report.
    """
    sweep = SweepFolder(folder)
    configs = (config for _, cell in sweep.cells() if (config := load_or_none(cell.load_config)))
    tracking = next(filter(None, (load_or_none(tracking_of, one) for one in configs)), None)
    report = sweep.report_path
    try:
        results = json.loads(read_plain(report / "results.json"))
        compared = [c for c in results["configurations"] if c["comparison"]]
        values = {k: v for config in compared for k, v in _values(config).items()}
        page = "".join(map(_line, compared))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{report}: no report to hand over: {in_one_line(error)}") from error
    if tracking is None or not values:
        return None
    path, called = folder.resolve(), SweepName.of(sweep, sweep.load_plan())
    run_id = hashlib.sha256(f"{path}\nanswer".encode()).hexdigest()[:12]
    info = RunInfo(
        run_id=run_id,
        # Two sweeps may begin in one minute; an answer takes the place of that of its name.
        name=f"{called} answer {run_id[:4]}",
        group=str(called),
        row="answer",
        tags=("answer", *tracking.tags),
        folder=folder,
        config={"command": results["sweep"]["command"], "folder": str(path)},
        tracking=tracking,
    )
    return info, Answer(values, page, report)


def _values(config: Mapping[str, Any]) -> dict[str, float | str]:
    """What the table of figures shows in trackers, with the ends of intervals."""
    label = config["configuration"]
    values: dict[str, float | str] = {}
    for figure in shown_on("trackers"):
        found = config[figure.key]
        if isinstance(found, Mapping):
            ends = found["interval"] or {}
            each = (found["value"], ends.get("low"), ends.get("high"))
            named = zip(figure.columns, each, strict=True)
            values |= {f"{label}/{name}": end for name, end in named if end is not None}
        elif found is not None:
            values[f"{label}/{figure.key}"] = found
    return values


def _line(config: Mapping[str, Any]) -> str:
    """A line of Markdown: Trackio knows neither its tables nor its code, and shows HTML."""
    words = f"**{config['configuration']}: {config['verdict']}.** {config['comparison']['reason']}"
    return f"- {' '.join(words.split()).replace('&', '&amp;').replace('<', '&lt;')}\n"


def main() -> int:
    """Hand over the answer of the folder on the command line; 1 if a tracker did not take it."""
    status = 0
    try:
        found = read_answer(Path(sys.argv[1]))
    except RecordError as error:
        say(f"{_OURS}tracking: {error}")
        return 1
    if found is None:
        return 0
    info, answer = found
    for name in info.tracking.trackers:
        try:
            open_tracker(name)(info).log_answer(answer)
        except Exception as error:  # the seam to third-party trackers
            words = in_one_line(error, with_class=not isinstance(error, TrackerError))
            say(f"{_OURS}{name}: {words} (the report is not affected)")
            status = 1
    return status


if __name__ == "__main__":
    run_and_exit(main)

"""Standard output and standard error on a full disk, around a sweep that does not mind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = Path(__file__).resolve().parents[2] / "docs" / "results" / "h200x2_small"
ENDING = """
import sys
from pathlib import Path
from scalewise import entry
from scalewise.sweep.job import Outcome
from scalewise.sweep.sweep_report import SweepReport, sweeps_run

folder = Path(sys.argv.pop())

def run():
    for _ in range(3):
        sys.stderr.write("a cell\\n")
    outcomes = {{"a": Outcome("done"), "b": Outcome("{state}")}}
    sweeps_run.append(SweepReport(folder, outcomes))

entry._run_hydra = run
sys.exit(entry.train())
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Done, and without a report."""
    folder = tmp_path / "small"
    shutil.copytree(SMALL, folder, ignore=shutil.ignore_patterns("report"))
    return folder


def end(sweep: Path, redirection: str, state: str) -> subprocess.CompletedProcess[str]:
    """What ``train.py`` does once its cells have ended, one of them as ``state``."""
    command = f'"$0" -c "$1" "$2" {redirection}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, ENDING.format(state=state), str(sweep)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("state", "rest", "status"),
    [("done", "all else is done", 74), ("skipped", "what was finished is kept", 3)],
)
def test_a_table_without_room_leaves_the_report(
    sweep: Path, state: str, rest: str, status: int
) -> None:
    done = end(sweep, ">/dev/full", state)
    assert (
        f"error: standard output: No space left on device: the table is not shown, {rest} "
        f"in {sweep}\nreport: {sweep}/report/report.md\n"
    ) in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == status
    assert (sweep / "report" / "report.md").is_file()


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_messages_without_room_stop_nothing(sweep: Path, redirection: str) -> None:
    done = end(sweep, redirection, "done")
    assert done.returncode == 0
    assert "samples/s" in done.stdout
    assert (sweep / "report" / "report.md").is_file()

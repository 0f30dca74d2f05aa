"""A cell whose processes are stopped and go on: by SLURM, with a container, or by a user."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fakes.train_command import SMALL, Train, wait_for
from scalewise.analysis.load import load_sweep
from scalewise.analysis.standstill import standstills
from scalewise.analysis.throughput import measure_throughput
from scalewise.records import CellFolder, SweepFolder, read_heartbeat

pytestmark = [pytest.mark.slow, pytest.mark.alone]

STEPS = 600
STOP_S = 6.5
HANG_S = 5.5
"""Shorter than the stop."""
LOOK_S = 1.2
"""A supervisor looks once in such a time."""
COMMAND = (
    *SMALL,
    "-m",
    "hardware=cpu",
    "strategy=ddp",
    "strategy.devices=2",
    f"max_steps={STEPS}",
    "validation=never",
    f"sweep.hang_timeout_s={HANG_S}",
    "sweep.retries=0",
)


def training(train: Train) -> CellFolder:
    """The only cell of a sweep, once its ranks make steps."""
    sweep = SweepFolder(wait_for(train.sweeps, "a sweep").pop())
    wait_for(sweep.plan_path.exists, "its plan")
    ((_, folder),) = sweep.cells()

    def beyond_start() -> bool:
        beats = [read_heartbeat(folder.heartbeat_path(rank)) for rank in (0, 1)]
        return all(beat is not None and beat.step > 20 for beat in beats)

    wait_for(beyond_start, "steps", 90)
    return folder


def suspend(supervisor: int, ranks: Sequence[int]) -> None:
    """As SLURM does it: one after the other, so that the supervisor may see stopped ranks."""
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(LOOK_S)
    os.kill(supervisor, signal.SIGSTOP)
    time.sleep(STOP_S)
    for pid in (supervisor, *ranks):
        os.kill(pid, signal.SIGCONT)


def test_a_suspended_cell_goes_on_and_its_figures_are_of_the_time_in_which_it_ran(
    train: Train,
) -> None:
    head = train.start(*COMMAND)
    folder = training(train)
    processes = train.processes()
    ranks = [pid for pid, line in processes.items() if "scalewise.sweep.worker" in line]
    assert len(ranks) == 2
    suspend(train.find("scalewise.sweep.supervisor"), ranks)
    _, err = head.communicate(timeout=60)
    assert head.returncode == 0, err
    result = folder.load_result()
    paused_s = result.finished_at - result.started_at - result.took_s
    assert STOP_S - 0.1 < paused_s < STOP_S + LOOK_S
    for rank in result.ranks:
        (found,) = rank.standstills
        assert STOP_S + LOOK_S - 0.6 < found.seconds < STOP_S + LOOK_S + 1
    (loaded,) = load_sweep(folder.path.parent).cells
    (told,) = standstills(loaded.steps)
    assert told.rank is None
    assert told.seconds > STOP_S + LOOK_S - 0.1
    assert (
        f"suspended in step{'s' if len(told.steps) > 1 else ''} {told.steps[0]}"
        in (folder.path.parent / "report" / "report.md").read_text()
    )
    measured = measure_throughput(loaded.steps, 2)
    assert measured.steps == STEPS - 2 - len(told.steps)


def test_a_rank_that_stays_stopped_is_named(train: Train) -> None:
    head = train.start(*COMMAND)
    folder = training(train)
    rank1 = next(
        pid
        for pid, line in train.processes().items()
        if "scalewise.sweep.worker" in line and environment(pid)["RANK"] == "1"
    )
    os.kill(rank1, signal.SIGSTOP)
    _, err = head.communicate(timeout=60)
    assert head.returncode == 1, err
    (attempt,) = folder.attempts()
    assert (attempt.cause, attempt.rank) == ("hang", 1)
    assert attempt.message.startswith("rank 1 was stopped (SIGSTOP, or a debugger): no rank made")


def environment(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)

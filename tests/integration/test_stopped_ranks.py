"""A rank that is stopped while it trains."""

import os
import signal
import time

import psutil
import pytest

from fakes.step_files import common_steps
from fakes.train_command import SMALL, Train
from scalewise.analysis import load_sweep
from scalewise.analysis.steps import find_long_steps, measure_throughput, timed_steps

pytestmark = pytest.mark.slow

STEPS = 600
STOP_S = 3.0
COMMAND = (
    *SMALL, "-m", "hardware=cpu", "strategy=ddp", "strategy.devices=2", f"max_steps={STEPS}",
    "validation=never", "sweep.retries=0",
)  # fmt: skip


def test_a_pause_of_a_rank_is_a_long_step_that_is_set_aside_and_said(train: Train) -> None:
    head = train.start(*COMMAND)
    folder = train.training(beyond=20)
    (pid,) = (one for one in train.ranks() if psutil.Process(one).name() == "rank 1")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(STOP_S)
    os.kill(pid, signal.SIGCONT)
    _, err = head.communicate(timeout=60)
    assert head.returncode == 0, err
    (cell,) = load_sweep(folder.path.parent).cells
    long = find_long_steps(timed_steps(cell.steps, 2))
    assert long.are_set_aside
    longest = max(long.found, key=lambda one: one.seconds)
    assert STOP_S - 0.5 < longest.seconds < STOP_S + 2
    measured = measure_throughput(common_steps(cell.steps, 2))
    assert measured.steps == len(cell.steps[0].timed()) - len(long.found)
    whole_s = max(one.timed().column("step").sum() for one in cell.steps) / 1e3
    assert measured.seconds < whole_s - STOP_S + 0.5
    report = (folder.path.parent / "report" / "details.md").read_text()
    assert f"single steps took seconds: step {longest.step} took" in report

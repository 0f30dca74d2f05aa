"""Hangs, by heartbeats and a steady clock; stopped ranks; kills for memory."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.settings import SETTINGS
from scalewise.records import CellFolder, Ending, HeartbeatWriter
from scalewise.supervisor import Retries
from scalewise.supervisor.failures import mendable, name_memory_kill
from scalewise.supervisor.supervisor import Liveness


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def said(ending: Ending | None) -> str | None:
    return None if ending is None else ending.message


def test_imports_are_no_hang_and_have_a_limit_of_their_own(tmp_path: Path) -> None:
    folder, clock = CellFolder(tmp_path), Clock()
    liveness = Liveness(folder, replace(SETTINGS, hang_timeout_s=5, start_timeout_s=60), clock)
    clock.now = 50
    assert liveness.hang([0, 1]) is None
    HeartbeatWriter(folder.heartbeat_path(0)).close()
    clock.now = 61
    assert said(liveness.hang([0, 1])) == (
        "rank 1 had not begun after 61 s (sweep.start_timeout_s=60); "
        "the stacks of all ranks are in logs/"
    )


def test_a_script_that_never_trains_is_told_what_it_lacks(tmp_path: Path) -> None:
    clock, settings = Clock(), replace(SETTINGS, start_timeout_s=60, script=("python", "mine.py"))
    liveness = Liveness(CellFolder(tmp_path), settings, clock)
    clock.now = 61
    assert "rank 0 stepped no optimizer of torch.optim in 61 s" in str(liveness.hang([0]))


def test_a_hang_is_counted_from_the_last_beat_of_any_rank(tmp_path: Path) -> None:
    folder, clock = CellFolder(tmp_path), Clock()
    ranks = [HeartbeatWriter(folder.heartbeat_path(rank)) for rank in (0, 1)]
    liveness = Liveness(folder, replace(SETTINGS, hang_timeout_s=5), clock)
    for step in range(4):
        ranks[1].beat(step, step)
        assert liveness.hang([0, 1]) is None
        clock.now += 4
    clock.now += 2
    ending = liveness.hang([0, 1])
    assert ending.cause == "hang"
    assert ending.message.startswith("no rank made a step for 6 s (sweep.hang_timeout_s=5)")
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize(
    ("cause", "exit_code", "before", "now", "named"),
    [
        ("signal", -9, 3, 4, "oom"),
        ("signal", -9, 3, 3, "signal"),
        ("signal", -9, None, None, "signal"),
        ("exception", 1, 3, 4, "exception"),
    ],
)
def test_the_kernels_killer_is_told_from_other_senders_of_sigkill(
    cause: Any, exit_code: int, before: int | None, now: int | None, named: str
) -> None:
    ending = Ending("failed", cause, "rank 1 ended", 1, exit_code)
    assert name_memory_kill(ending, before, now).cause == named


# Which faults another try can mend, and how often one is tried.
FAILED = Ending("failed", "exception", "rank 0: ValueError: x", 0, 1, None, (), 1, 0.0, 1.0)


def attempt(**changes: Any) -> Ending:
    return replace(FAILED, **changes)


FROM_OUTSIDE = ("supervisor_lost", "host", "peer", "port", "device_broken", "device_busy", "late")
COMES_BACK = ("exception", "oom", "config", "disk", "hang", "timeout", "exit", "supervisor",
              "uneven_epochs")  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        *(({"cause": cause}, True) for cause in FROM_OUTSIDE),
        *(({"cause": cause}, False) for cause in COMES_BACK),
        *(({"cause": "signal", "exit_code": -number}, number in (signal.SIGKILL, signal.SIGTERM))
          for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT)),
        ({"cause": "oom", "exit_code": -signal.SIGKILL}, False),
        ({"outcome": "skipped", "cause": "host"}, False),
        ({"outcome": "interrupted", "cause": "interrupted"}, False),
    ],
)  # fmt: skip
def test_only_what_came_from_outside_is_tried_again(changes: dict[str, Any], again: bool) -> None:
    assert (mendable(attempt(**changes)) is not None) is again


def test_there_is_a_limit_and_every_cell_has_its_own() -> None:
    retries, lost = Retries(), attempt(cause="signal", exit_code=-9)
    assert retries.grant("one", lost, 2) == "ended from outside; retry 1 of 2"
    assert retries.grant("one", lost, 2) == "ended from outside; retry 2 of 2"
    assert retries.grant("one", lost, 2) is None
    assert retries.grant("other", lost, 2) is not None
    assert retries.grant("other", lost, 0) is None
    assert retries.grant("other", FAILED, 9) is None

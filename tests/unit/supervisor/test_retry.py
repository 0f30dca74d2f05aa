"""Which faults another try can mend, and how often one is tried."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewise.records import CellFolder, Ending
from scalewise.supervisor import Retries
from scalewise.supervisor.failures import mendable

FAILED = Ending("failed", "exception", "rank 0: ValueError: x", 0, 1, None, (), 1, 0.0, 1.0)


def attempt(**changes: Any) -> Ending:
    return replace(FAILED, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"cause": "signal", "exit_code": -signal.SIGKILL},
        {"cause": "signal", "exit_code": -signal.SIGTERM},
        {"cause": "supervisor_lost"},
        {"cause": "host", "message": "SLURM job 7 ended as NODE_FAIL without a result"},
        {"cause": "peer"},
        {"cause": "port"},
        {"cause": "device_broken"},
        {"cause": "device_busy"},
    ],
)
def test_what_came_from_outside_is_tried_again(changes: dict[str, Any]) -> None:
    assert mendable(attempt(**changes)) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cause": "oom", "message": "rank 0: OutOfMemoryError: CUDA out of memory"},
        {"cause": "oom", "exit_code": -9},
        {"cause": "config"},
        {"cause": "disk"},
        {"cause": "hang"},
        {"cause": "timeout"},
        {"cause": "exit", "exit_code": 7},
        {"cause": "signal", "exit_code": -signal.SIGSEGV},
        {"cause": "signal", "exit_code": -signal.SIGABRT},
        {"cause": "supervisor"},
        {"cause": "uneven_epochs", "last_lines": ("RuntimeError: Connection closed by peer",)},
        {"outcome": "skipped", "cause": "host"},
        {"outcome": "interrupted", "cause": "interrupted"},
    ],
)
def test_what_comes_back_is_not(changes: dict[str, Any]) -> None:
    assert mendable(attempt(**changes)) is None


def test_there_is_a_limit_and_every_cell_has_its_own(tmp_path: Path) -> None:
    retries = Retries()
    lost = attempt(cause="signal", exit_code=-9)
    one, other = CellFolder(tmp_path / "one"), CellFolder(tmp_path / "other")
    assert retries.grant(one, 2) is None, "nothing was recorded"
    for folder in (one, other):
        folder.save_attempt(lost)
    assert retries.grant(one, 2) == "ended from outside; retry 1 of 2"
    assert retries.grant(one, 2) == "ended from outside; retry 2 of 2"
    assert retries.grant(one, 2) is None
    assert retries.grant(other, 2) is not None
    assert retries.grant(other, 0) is None
    other.save_attempt(attempt(number=2))
    assert retries.grant(other, 9) is None, "the last try decides"

"""Who is named when ranks give up waiting for one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.records import CellFolder, Ending
from scalewise.supervisor import failures
from scalewise.supervisor.failures import name_absent
from scalewise.supervisor.ranks import RankProcess

GLOO = "rank 0: RuntimeError: [unbound_buffer.cc:81] Timed out waiting 8000ms for recv operation"
NCCL = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE"


class Ranks:
    """One that gave up, and others that do so when they are looked at, or never."""

    def __init__(self, count: int, give_up: tuple[int, ...] = (), first: int = 0) -> None:
        self.processes = [RankProcess(first + rank, 10 + rank) for rank in range(count)]
        self.processes[0].exit_code = 1
        self._give_up = give_up

    @property
    def alive(self) -> list[RankProcess]:
        return [process for process in self.processes if process.exit_code is None]

    def collect(self) -> None:
        for process in self.processes:
            if process.rank in self._give_up:
                process.exit_code = 1


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_OTHERS_GIVE_UP_S", 0.15)


def judged(folder: Path, ranks: Ranks, ending: Ending, world_size: int) -> Ending:
    cell = CellFolder(folder)
    return name_absent(ending, ranks, cell, 8.0, world_size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "ending", "world_size", "blamed", "words"),
    [
        (Ranks(4, (1, 3)), Ending("failed", "exception", GLOO, 0, 1), 4, 2,
         "for rank 2, which did not enter it"),
        (Ranks(2, (3,), first=2), Ending("failed", "exception", GLOO, 2, 1), 4, 2,
         "for ranks of other hosts (0, 1), which did not answer"),
        (Ranks(2, (1,)), Ending("failed", "exception", GLOO, 0, 1), 2, 0,
         "the ranks do not make the same calls"),
    ],
    ids=["neither waits nor fails", "of another host", "all wait, in different calls"],
)  # fmt: skip
def test_who_did_not_come_is_named(
    tmp_path: Path, ranks: Ranks, ending: Ending, world_size: int, blamed: int, words: str
) -> None:
    found = judged(tmp_path, ranks, ending, world_size)
    assert (found.cause, found.rank) == ("hang", blamed)
    assert words in found.message


def test_nccl_says_it_in_the_log_and_aborts(tmp_path: Path) -> None:
    log = CellFolder(tmp_path).log_path(0, "err")
    log.parent.mkdir()
    log.write_text(NCCL + "\n" + "frame #1: somewhere in libtorch\n" * 100)
    ended = Ending("failed", "signal", "rank 0 was ended by SIGABRT", 0, -6)
    found = judged(tmp_path, Ranks(2), ended, 2)
    assert (found.cause, found.rank) == ("hang", 1)


def test_any_other_failure_keeps_its_name(tmp_path: Path) -> None:
    ending = Ending("failed", "exception", "rank 0: RuntimeError: a timeout of my own", 0, 1)
    assert judged(tmp_path, Ranks(2), ending, 2) is ending

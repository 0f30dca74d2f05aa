"""The rank that failed first is blamed, not the one that missed it."""

import signal
from pathlib import Path

import pytest

from scalewise.records import CellFolder, Ending
from scalewise.supervisor import failures
from scalewise.supervisor.failures import first_failure, last_lines, name_absent
from scalewise.supervisor.ranks import RankProcess
from scalewise.train.length import TooLateError


class Ended:
    """Ranks of which everything is known."""

    def __init__(self, *processes: RankProcess) -> None:
        self.processes = list(processes)

    def collect(self) -> None: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellFolder:
    monkeypatch.setattr(failures, "_SETTLE_S", 0)
    return CellFolder(tmp_path)


def found_in(folder: CellFolder, *processes: RankProcess) -> Ending:
    return first_failure(Ended(*processes), folder)  # type: ignore[arg-type]


PEER_CLOSED = Ending("failed", "exception", "RuntimeError: peer closed", 0, finished_at=12.0)
OUT_OF_MEMORY = Ending("failed", "oom", "MemoryError: no more", 1, finished_at=11.9)


@pytest.mark.parametrize(
    ("errors", "first", "second", "cause", "blamed", "words"),
    [
        ([PEER_CLOSED, OUT_OF_MEMORY], (1, 12.1), (1, 12.2), "oom", 1, "rank 1: MemoryError"),
        ([PEER_CLOSED], (1, 12.1), (-9, 12.2), "signal", 1, "SIGKILL (the kernel's out-of-memory"),
        ([PEER_CLOSED], (1, 12.1), (-signal.SIGABRT, 12.2), "exception", 0, "peer closed"),
        ([], (None, None), (7, 12.2), "exit", 1, "rank 1 exited with status 7; see logs/"),
        ([PEER_CLOSED], (1, 12.1), (0, 11.0), "exit", 1, "status 0 before it had finished"),
    ],
    ids=["earliest", "killed", "a library gave up on a peer", "no word", "os._exit(0)"],
)
def test_the_rank_that_failed_first_is_blamed(
    folder: CellFolder,
    errors: list[Ending],
    first: tuple[int | None, float | None],
    second: tuple[int | None, float | None],
    cause: str,
    blamed: int,
    words: str,
) -> None:
    for error in errors:
        folder.save_rank_error(error)
    found = found_in(folder, RankProcess(0, 10, *first), RankProcess(1, 11, *second))
    assert (found.cause, found.rank) == (cause, blamed)
    assert words in found.message


@pytest.mark.parametrize(
    ("message", "line", "cause"),
    [
        ("DistBackendError: NCCL error: ncclRemoteError: remote process exited", "", "peer"),
        ("RuntimeError: ... Connection reset by peer", "", "peer"),
        ("RuntimeError: ...", "The server socket has failed to listen: EADDRINUSE", "port"),
        ("CUDA error: uncorrectable ECC error encountered", "", "device_broken"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "", "device_busy"),
        ("CUDA error: an illegal memory access was encountered", "", "exception"),
        (f"{TooLateError.__name__}: rank 0 was past step 9, the last of all ranks", "", "late"),
    ],
)
def test_words_of_libraries_tell_what_came_from_outside(
    folder: CellFolder, message: str, line: str, cause: str
) -> None:
    folder.save_rank_error(Ending("failed", "exception", message, 0))
    log = folder.log_path(0, "err")
    log.parent.mkdir()
    log.write_text(line)
    assert found_in(folder, RankProcess(0, 10, 1, 12.0)).cause == cause


def test_a_torn_error_record_leaves_the_exit_status(folder: CellFolder) -> None:
    path = folder.path / "ranks" / "rank0.err"
    path.parent.mkdir()
    path.write_text('{"schema_version": 1, "ra')
    assert found_in(folder, RankProcess(0, 10, 1, 12.0)).cause == "exit"


def test_last_lines_are_the_blamed_ranks(folder: CellFolder) -> None:
    log = folder.log_path(1, "err")
    log.parent.mkdir()
    log.write_bytes(b"\n".join(b"line %d" % i for i in range(30)) + b"\n\xff torn")
    lines = last_lines(folder, 1)
    assert len(lines) == 20
    assert lines[-2:] == ("line 29", "\N{REPLACEMENT CHARACTER} torn")
    assert last_lines(folder, None) == ()


# Who is named when ranks give up waiting for one another.
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

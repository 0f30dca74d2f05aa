"""The rank that failed first is blamed, not the one that missed it; a script in its own words."""

import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.recorded import rank_summary
from scalewise import records
from scalewise.config import ConfigError, ending_of
from scalewise.records import CellFolder, DeviceInfo, Ending, HeartbeatWriter, SweepFolder
from scalewise.supervisor import failures
from scalewise.supervisor.failures import asked_for_torchrun, first_failure, last_lines, name_absent
from scalewise.supervisor.ranks import RankProcess
from scalewise.train.length import TooLateError


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_SETTLE_S", 0)
    monkeypatch.setattr(failures, "_OTHERS_GIVE_UP_S", 0.15)


@pytest.fixture
def folder(tmp_path: Path) -> CellFolder:
    return CellFolder(tmp_path)


def found_in(folder: CellFolder, *processes: RankProcess) -> Ending:
    known: Any = SimpleNamespace(processes=processes, collect=lambda: None)
    return first_failure(known, folder)


PEER_CLOSED = Ending("failed", "exception", "RuntimeError: peer closed", 0, finished_at=12.0)
RESET = Ending("failed", "exception", "RuntimeError: Connection reset by peer", 0, finished_at=10.9)
OUT_OF_MEMORY = Ending("failed", "oom", "MemoryError: no more", 1, finished_at=11.9)


@pytest.mark.parametrize(
    ("errors", "first", "second", "cause", "blamed", "words"),
    [
        ([PEER_CLOSED, OUT_OF_MEMORY], (1, 12.1), (1, 12.2), "oom", 1, "rank 1: MemoryError"),
        ([PEER_CLOSED], (1, 12.1), (-9, 12.2), "signal", 1, "SIGKILL (the kernel's out-of-memory"),
        ([PEER_CLOSED], (1, 12.1), (-signal.SIGABRT, 12.2), "exception", 0, "peer closed"),
        ([], (None, None), (7, 12.2), "exit", 1, "rank 1 exited with status 7; see logs/"),
        ([RESET], (1, 12.1), (0, 11.0), "exit", 1, "status 0 before it had finished"),
        ([PEER_CLOSED], (1, 12.1), (0, 11.0), "exit", 1, "status 0 before it had finished"),
        ([RESET, OUT_OF_MEMORY], (1, 12.1), (1, 12.2), "oom", 1, "rank 1: MemoryError"),
    ],
    ids=["earliest", "killed", "a peer is gone", "no word", "exit 0", "own exit 0", "slower"],
)
def test_the_rank_that_failed_first_is_blamed(
    folder: CellFolder, errors: list[Ending], first: tuple[int | None, float | None],
    second: tuple[int | None, float | None], cause: str, blamed: int, words: str,
) -> None:  # fmt: skip
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
    first, second = RankProcess(0, 10, 1, 12.0), RankProcess(1, 11, 1, 12.1)
    assert found_in(folder, first).cause == "exit"
    (log := folder.log_path(0, "err")).parent.mkdir()
    for frames, blamed in ((15, 1), (25, 0)):
        log.write_text(f"{PEER_GONE}\n" + "frame\n" * frames)
        assert found_in(folder, first, second).rank == blamed, "by the end of its log"


def test_last_lines_are_the_blamed_ranks(folder: CellFolder) -> None:
    log = folder.log_path(1, "err")
    log.parent.mkdir()
    log.write_bytes(b"\n".join(b"line %d" % i for i in range(30)) + b"\n\xff torn")
    lines = last_lines(folder, 1)
    assert (len(lines), lines[-2:]) == (20, ("line 29", "\N{REPLACEMENT CHARACTER} torn"))
    assert last_lines(folder, None) == ()


IN_A_STEP = 'File ".../pytorch_lightning/loops/optimization/automatic.py", line 241, in backward_fn'
PEER_GONE = "RuntimeError: Connection closed by peer [127.0.0.1]:65221"


def rank_0_ended_after(steps: int, folder: CellFolder) -> None:
    folder.save_rank(rank_summary(0, DeviceInfo("cpu", "Example CPU"), steps, 8, metric_rows=0))


def rank_1_misses_a_peer(folder: CellFolder, at_step: int, traceback: str = IN_A_STEP) -> None:
    error = Ending("failed", "exception", PEER_GONE, 1, last_lines=(traceback,), finished_at=12.0)
    folder.save_rank_error(error)
    heartbeat = HeartbeatWriter(folder.heartbeat_path(1))
    heartbeat.begin(40)
    heartbeat.beat(at_step, 16 * at_step)
    heartbeat.close()


@pytest.mark.parametrize("peer", [RankProcess(0, 10, 0, 11.9), RankProcess(0, 10)])
def test_a_peer_that_had_no_more_batches_is_told_from_one_that_was_lost(
    folder: CellFolder, peer: RankProcess
) -> None:
    rank_0_ended_after(20, folder)
    rank_1_misses_a_peer(folder, at_step=20)
    found = found_in(folder, peer, RankProcess(1, 11, 1, 12.1))
    assert (found.cause, found.rank) == ("uneven_epochs", 1)
    assert found.message == (
        "rank 0 had ended its epoch after 20 steps while rank 1 went on: epochs differ in length; "
        "give every rank as many batches"
    )


@pytest.mark.parametrize(
    ("ended", "at_step", "traceback", "exit_code"),
    [
        (20, 19, IN_A_STEP, 0),
        (20, 20, "File .../loops/evaluation_loop.py", 0),
        (20, 20, IN_A_STEP, -9),
        (None, 20, IN_A_STEP, 0),
    ],
    ids=["a step that both had", "after training", "killed", "left early"],
)
def test_other_lost_peers_are_not(
    folder: CellFolder, ended: int | None, at_step: int, traceback: str, exit_code: int
) -> None:
    if ended is not None:
        rank_0_ended_after(ended, folder)
    rank_1_misses_a_peer(folder, at_step, traceback)
    found = found_in(folder, RankProcess(0, 10, exit_code, 11.9), RankProcess(1, 11, 1, 12.1))
    assert found.cause != "uneven_epochs"


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


def judged(folder: Path, ranks: Ranks, ending: Ending, world_size: int) -> Ending:
    return name_absent(ending, ranks, CellFolder(folder), 8.0, world_size)  # type: ignore[arg-type]


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


# How a script ended, in its own words.
RAISED = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in <module>\n'
OURS = "scalewise.config.errors.ConfigError: "
TORCHRUN = f"{RAISED}KeyError: 'LOCAL_RANK'\n"
ENDED = Ending("failed", "exit", "rank 0 exited with status 1; see logs/", 0, 1)
DONE = Ending("done")

OWN = ("+script.command='python mine.py 1'",)


@pytest.fixture
def script(tmp_path: Path) -> CellFolder:
    """Of the first of three runs, two on one device."""
    cells = tuple(
        records.PlannedCell(name, "config", name, OWN, repeat, devices)
        for repeat, (name, devices) in enumerate([("mine", 1), ("wide", 2), ("other", 1)])
    )
    sweep = SweepFolder(tmp_path)
    sweep.save_plan(records.SweepPlan(0.0, (), 0, cells))
    return sweep.cell("mine")


def named(
    script: CellFolder, ending: Ending, log: str = "", world_size: int = 1, again: bool = False
) -> Ending:
    path = script.log_path(0, "err")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    job: Any = SimpleNamespace(world_size=world_size, settings=SimpleNamespace(script=["of=RANK"]))
    processes = [RankProcess(0, 1, ending.exit_code), RankProcess(1, 2, 0)][:world_size]
    ranks: Any = SimpleNamespace(processes=processes, as_torchrun=again)
    return failures.name_script_end(ending, job, script, ranks)


@pytest.mark.parametrize(
    ("log", "said", "cause"),
    [
        ("usage: train.py\ntrain.py: error: no --data\n", "train.py: error: no --data", "config"),
        (f"{RAISED}ValueError: two\nlines of it\n", "ValueError: two ...", "exit"),
        (f"{RAISED}[rank0]: ValueError: two\n[rank0]: lines\n", "1: ValueError: two ...", "exit"),
        (f"{RAISED}[rank0]: ValueError: one\n[rank0]:[W1127 c10] left\n", "Error: one", "exit"),
        ("", "rank 0 exited with status 1 and said nothing", "config"),
        (f"{RAISED}{OURS}rehearse: found send", "rehearse: found send", "config"),
        (f"{RAISED}ValueError: of=RANK\nor so", "of=RANK ...", "exit"),
    ],
)
def test_its_last_words_are_the_reason(script: CellFolder, log: str, said: str, cause: str) -> None:
    ending = named(script, ENDED, log)
    assert ending.cause == cause
    assert ending.message.endswith(said)


def test_one_that_wants_torchrun_is_tried_again_with_its_variables(script: CellFolder) -> None:
    assert named(script, ENDED, TORCHRUN).cause == "launcher"
    assert named(script, ENDED, TORCHRUN, world_size=2).cause == "exit"
    assert named(script, ENDED, TORCHRUN, again=True).cause == "exit", "it has them"
    HeartbeatWriter(script.heartbeat_path(0)).close()
    assert named(script, ENDED, TORCHRUN).cause == "exit"


def test_one_that_trains_nothing_is_named_although_it_ended_well(
    script: CellFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = named(script, DONE)
    assert (ending.outcome, ending.cause, ending.exit_code) == ("failed", "config", 0)
    assert "no optimizer of torch.optim was stepped;" in ending.message
    script.log_path(0, "out").write_text("too few GPUs\n\n")
    assert "was stepped: 'too few GPUs';" in named(script, DONE).message
    monkeypatch.setattr(CellFolder, "is_done", lambda self, _: self.name == "wide")
    assert "it may go on from what that left" in named(script, DONE).message


def test_the_first_cell_on_one_device_tells_who_needs_torchrun(
    script: CellFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def is_done(folder: CellFolder, cell_id: str) -> bool:
        asked.append(folder.name)
        return True

    monkeypatch.setattr(CellFolder, "is_done", is_done)
    sweep = SweepFolder(script.path.parent)
    _, wide, _ = sweep.load_plan().cells
    assert not asked_for_torchrun(script, wide)
    assert asked == ["mine"]
    sweep.cell("mine").save_attempt(replace(ENDED, cause="launcher"))
    assert asked_for_torchrun(script, wide)
    other = ("+script.command='python other.py'", "seed=1")
    assert not asked_for_torchrun(script, replace(wide, overrides=other)), "another script"
    again = "+script.command='python mine.py 2'"
    assert asked_for_torchrun(script, replace(wide, overrides=("devices=2", again)))


def test_a_rank_that_has_ended_before_the_others_is_named(script: CellFolder) -> None:
    script.save_rank(rank_summary(1, DeviceInfo("cpu", "a CPU"), 60, 16, metric_rows=0))
    lost = Ending("failed", "peer", "rank 0: Connection closed by peer", 0, 1)
    ending = named(script, lost, world_size=2)
    assert ending.message.startswith("rank 1 ended by itself after 60 steps, and rank 0 went on")
    assert ending.cause == "config"


def test_one_that_left_by_os_exit_is_told_how_far_it_came(script: CellFolder) -> None:
    heart = HeartbeatWriter(script.heartbeat_path(0))
    heart.beat(28, 56)
    heart.close()
    assert "left by os._exit after 28 steps or more" in named(script, DONE).message


def test_what_a_process_of_its_own_died_of_goes_before(script: CellFolder) -> None:
    script.save_rank_error(ending_of(ConfigError("it starts ranks itself"), 0))
    ending = named(script, DONE)
    assert (ending.cause, ending.message) == ("config", "rank 0: it starts ranks itself")
    script.save_rank(rank_summary(0, DeviceInfo("cpu", "a CPU"), 60, 16, metric_rows=0))
    assert named(script, DONE).cause == "config", "its parent trained too"
    long = ending_of(ValueError("x" * 30_000), 0)
    assert len(long.message) == 500 and [len(line) for line in long.last_lines] == [19_999]

"""How one supervisor watches a cell, and what it records of its end."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any, Literal, cast
from unittest.mock import Mock

import psutil
import pytest

from fakes.nvml.scenario import Scenario, gpu_uuid
from fakes.settings import SETTINGS, SLOT, job_in
from scalewise import records
from scalewise.host import ENV_LISTENER, ENV_SCRIPT, ENV_SUPERVISOR, end_orphans, host_id
from scalewise.supervisor import Nodes, NodesApart, Settings, announce, meet, ranks
from scalewise.supervisor import supervisor as supervisor_module
from scalewise.supervisor.failures import mendable, name_memory_kill
from scalewise.supervisor.job import Wakeup
from scalewise.supervisor.others import conclude
from scalewise.supervisor.ranks import Ranks, RankStart
from scalewise.supervisor.supervisor import Liveness, Supervisor

LATER = records.RunningAttempt(2, 1.0, (SLOT,))
FAILED = records.Ending("failed", "exception", "rank 0 failed", 0, 1)


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return supervised(tmp_path)


def supervised(tmp_path: Path, settings: Settings = SETTINGS, wakeup: Any = None) -> Supervisor:
    folder = records.CellFolder(tmp_path / "sweep" / "cell")
    folder.path.mkdir(parents=True)
    return Supervisor(job_in(folder.path, settings), cast(Wakeup, wakeup))


MAIN, NET = '  File "/mine/main.py", line 1, in f\n', '  File "/mine/net.py", line 12, in forward\n'
RAISED = f"Traceback (most recent call last):\n{MAIN}{NET}    x.y\n"
FRAMES = NET + MAIN * 40
DUMP = f"Thread 0x7e:\n{FRAMES}\nCurrent thread 0x7f (most recent call first):\n{FRAMES}\nModules:"
ABORT = "Fatal Python error: Aborted\n\nThread 0x7e:\n"  # in a thread that runs no Python
GONE = f"{ABORT.replace('Thread', 'Current thread')}  <no Python frame>\n"


@pytest.mark.parametrize(
    ("cause", "log", "at"),
    [
        ("exception", RAISED, "/mine/net.py:12"), ("config", RAISED, None),
        ("signal", DUMP, "/mine/net.py:12"), ("exception", DUMP + RAISED, "/mine/net.py:12"),
        ("signal", f"{ABORT}{FRAMES}\nThread 0x7f:\n{FRAMES}", "/mine/net.py:12"),
        ("signal", RAISED + GONE, "/mine/net.py:12"),
        ("exception", f"Current thread 0x7f:\n{MAIN}\n{RAISED}", "/mine/net.py:12"),
    ],
)  # fmt: skip
def test_the_line_that_raised_is_told_but_of_what_was_refused(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, cause: records.Cause, log: str,
    at: str | None,
) -> None:  # fmt: skip
    path = supervisor.folder.log_path(0, "err")
    path.parent.mkdir()
    path.write_text(log)
    begun: list[records.RunningAttempt | None] = []

    def train() -> records.Ending:
        begun.append(supervisor.folder.find_running_attempt())
        return replace(FAILED, cause=cause)

    monkeypatch.setattr(supervisor, "_train", train)
    assert supervisor.run().raised_at == at
    (attempt,) = supervisor.folder.attempts()
    assert (attempt.raised_at, attempt.message) == (at, "rank 0 failed")
    assert records.source_line(attempt) == ("x.y" if RAISED in log and at else "")
    assert begun == [records.RunningAttempt(1, supervisor.started_at, (SLOT,))]
    assert supervisor.folder.find_running_attempt() is None


def test_what_a_supervisor_left_is_ended_wherever_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = subprocess.Popen(["sleep", "60"], env={ENV_SUPERVISOR: "1234567"})
    leads = subprocess.Popen(["sleep", "60"], start_new_session=True)
    # Whatever goes wrong here, nobody else's process is looked at.
    ours = [psutil.Process(one.pid) for one in (marked, leads)]
    monkeypatch.setattr(psutil, "process_iter", lambda: ours)
    end_orphans(1234567)
    marked.wait(5)
    assert leads.poll() is None, "it is nobody's here"
    end_orphans(leads.pid)
    leads.wait(5)


@pytest.mark.parametrize(
    ("settings", "woken", "alive", "ended"),
    [
        ({}, {}, [], ("done", None)),
        ({}, {"stop_asked": True}, [7], ("interrupted", "interrupted")),
        ({}, {"sweep_gone": True}, [7], ("interrupted", "interrupted")),
        ({"timeout_s": 0.0}, {}, [7], ("failed", "timeout")),
        ({"start_timeout_s": 0.0}, {}, [7], ("failed", "hang")),
    ],
)
def test_what_ends_a_cell_whose_ranks_have_not_failed(
    tmp_path: Path, settings: dict[str, Any], woken: dict[str, bool], alive: list[int], ended: Any
) -> None:
    one = supervised(tmp_path, replace(SETTINGS, **settings))
    said = {"stop_asked": False, "sweep_gone": False, **woken}
    one.wakeup = cast(Any, SimpleNamespace(wait=lambda seconds: None, **said))
    one.folder.save_running(LATER)
    living = [SimpleNamespace(rank=0, pid=pid) for pid in alive]
    ranks: Any = SimpleNamespace(collect=lambda: None, failed=[], alive=living)
    found = one._watch(ranks)
    assert (found.outcome, found.cause) == ended


def test_an_end_that_could_not_be_written_is_told_with_its_reason(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(supervisor, "_train", Mock(side_effect=full))
    told = supervisor.run()
    assert (told.outcome, told.is_recorded) == ("failed", False)
    assert told.message == f"{supervisor.folder.path}: No space left on device"


@pytest.mark.parametrize(
    ("ending", "left", "outcome"),
    [
        (records.Ending("done"), (), "done"),
        (records.Ending("done"), (7,), "failed"),
        (records.Ending("interrupted"), (7,), "interrupted"),
    ],
)
def test_a_cell_whose_processes_live_on_is_not_done_and_its_sampler_takes_none_of_its_time(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, ending: records.Ending,
    left: tuple[int, ...], outcome: str,
) -> None:  # fmt: skip
    ranks: Any = SimpleNamespace(start=lambda: None, processes=[])
    monkeypatch.setattr(supervisor_module, "Ranks", lambda *_: ranks)
    monkeypatch.setattr(supervisor_module, "end_descendants", lambda _: left)
    monkeypatch.setattr(supervisor, "_watch", lambda _: ending)
    hung = ExitStack()
    hung.callback(time.sleep, 0.2)
    monkeypatch.setattr(supervisor, "_sampling", lambda _: hung)
    began_s = supervisor.began_s
    supervisor.folder.save_running(records.RunningAttempt(1, 1.0, (SLOT,)))
    assert supervisor._train().outcome == outcome
    assert supervisor.began_s - began_s == pytest.approx(0.2, abs=0.1)


@pytest.mark.parametrize(
    ("nodes", "every_s", "rank"),
    [(None, None, None), (None, 0.1, 0), (Nodes(1, 2, "node0", 4000), 0.1, 1)],
)
def test_the_devices_of_this_hosts_ranks_are_sampled_where_the_cell_wants_it(
    tmp_path: Path, fake_nvml: Callable[[Scenario], Path], nodes: Nodes | None,
    every_s: float | None, rank: int | None,
) -> None:  # fmt: skip
    fake_nvml(Scenario().h200(2))
    one = supervised(tmp_path, replace(SETTINGS, sample_every_s=every_s, seed_format=True))
    slot = records.DeviceInfo("cuda", "NVIDIA H200", gpu_uuid(1), 1)
    one.job = replace(one.job, nodes=nodes, slots=(slot,))
    ranks: Any = SimpleNamespace(trainers=dict)
    with one._sampling(ranks):
        time.sleep(0.15)
    series = [records.read_device_series(path) for path in one.folder.device_series_paths()]
    told = [[(d.id, d.rank) for d in each.devices] for each in series]
    assert told == ([] if rank is None else [[(gpu_uuid(1), rank)]])
    assert all(len(each.times) >= 2 for each in series), "from its start to its end"
    stats = {
        f"gpu_stats_cell{f'_{host_id()}' if rank else ''}{of}.json" for of in ("", "_multi_gpu")
    }
    assert {path.name for path in one.folder.path.glob("gpu_stats*")} == (stats if told else set())


PEER_GONE = "Connection closed by peer"


def failed(cause: Any, at: float, rank: int | None = 0) -> records.Ending:
    return records.Ending("failed", cause, f"{cause} of {rank}", rank, 1, finished_at=at)


@pytest.mark.parametrize(
    ("own", "other", "blamed"),
    [
        (failed("exception", 2.0, 0), failed("exception", 1.0, 1), 1),
        (failed("exception", 1.0, 0), failed("exception", 2.0, 1), 0),
        (failed("exception", 1.0, 0), failed("signal", 2.0, 1), 1),
        (failed("peer", 1.0, 0), failed("exit", 2.0, 1), 1),
        (replace(failed("exit", 1.0), message=PEER_GONE), failed("exit", 2.0, 1), 1),
        (failed("exception", 1.0, 0), replace(failed("signal", 2.0, 1), exit_code=-6), 0),
        (failed("interrupted", 0.0, None), failed("exception", 2.0, 1), 1),
        (records.Ending("done"), failed("exception", 2.0, 1), 1),
        (records.Ending("done"), records.Ending("done"), None),
    ],
)
def test_of_several_hosts_the_first_failure_is_blamed(
    tmp_path: Path, own: records.Ending, other: records.Ending, blamed: int | None
) -> None:
    folder = records.CellFolder(tmp_path)
    first = announce(folder, "12.0", 2, "node0", 4000)
    for stale in ("11.0", "13.0"):
        with pytest.raises(NodesApart):
            meet(folder, stale, 1, 2, go_on=iter([True, False]).__next__)
    second = meet(folder, "12.0", 1, 2)
    assert (second, conclude(folder, second, other)) == (Nodes(1, 2, "node0", 4000), other)
    found = conclude(folder, first, own)
    assert (found.rank, found.outcome == "done") == (blamed, blamed is None)


def test_a_third_host_is_waited_for_where_the_second_merely_lost_a_peer(tmp_path: Path) -> None:
    first, second, third = (Nodes(i, 3, "node0", 4000) for i in range(3))
    folder = records.CellFolder(tmp_path)
    conclude(folder, second, failed("peer", 1.0, 1))
    Timer(0.5, conclude, (folder, third, failed("exception", 2.0, 2))).start()
    assert conclude(folder, first, failed("peer", 0.5, 0)).rank == 2


def test_ranks_of_a_later_host_go_on_counting_and_each_has_its_device(tmp_path: Path) -> None:
    starter = Mock(side_effect=[71, 72])
    job = replace(supervised(tmp_path).job, slots=(SLOT, SLOT), nodes=Nodes(1, 3, "node0", 4000))
    assert (job.world_size, job.first_rank, job.errors.name) == (6, 2, "supervisor1.err")
    first = replace(job, nodes=Nodes(0, 3, "node0", 4000))
    assert first.errors == replace(job, nodes=None).errors == Path(job.folder) / "supervisor.err"
    ranks = Ranks(job, records.CellFolder(tmp_path), starter)
    ranks.start()
    assert [(one.rank, one.pid) for one in ranks.processes] == [(2, 71), (3, 72)]
    started = [call.args[0] for call in starter.call_args_list]
    assert all(None not in start.environment.values() for start in started)
    assert "lo" not in [start.environment.get("GLOO_SOCKET_IFNAME") for start in started]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
    assert [[start.environment[name] for name in names] for start in started] == [
        ["2", "0", "6", "4000"], ["3", "1", "6", "4000"],
    ]  # fmt: skip
    assert [start.out.name for start in started] == ["rank2.out", "rank3.out"]
    asked = Ranks(job, records.CellFolder(tmp_path), starter, as_torchrun=True)
    assert not asked.as_torchrun, "several ranks get its variables in any case"


@pytest.mark.parametrize(
    ("kind", "count", "script", "typed", "threads"),
    [
        ("cpu", 2, True, "5", "3"), ("cuda", 1, True, None, "3"), ("cuda", 2, False, None, "3"),
        ("cuda", 2, True, None, "1"), ("cuda", 2, True, "5", "5"), ("cuda", 2, False, "5", "5"),
    ],
)  # fmt: skip
def test_a_rank_has_the_threads_that_torchrun_and_lightning_would_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    kind: Literal["cpu", "cuda"], count: int, script: bool, typed: str | None, threads: str,
) -> None:  # fmt: skip
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if typed is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", typed)
    started: list[RankStart] = []
    job = supervised(tmp_path).job
    slot = replace(SLOT, kind=kind, cores=(0, 1, 2), uuid="GPU-1")
    settings = replace(job.settings, script=("python", "a.py") if script else ())
    job = replace(job, slots=(slot,) * count, settings=settings)
    Ranks(job, records.CellFolder(tmp_path), lambda one: started.append(one) or 1).start()
    assert {one.environment["OMP_NUM_THREADS"] for one in started} == {threads}
    assert {"NCCL_SOCKET_IFNAME" in one.environment for one in started} == {kind == "cuda"}
    plain = script and count == 1  # with a rank of its own, many a script wraps its model in DDP
    assert [one.environment.get("RANK") for one in started] == [None if plain else "0", "1"][:count]
    assert [ENV_SCRIPT in one.environment for one in started] == [script] * count
    listens = [count == 2 and not script, False][:count]
    assert [ENV_LISTENER in one.environment for one in started] == listens
    assert [len(one.inherited) == 1 for one in started] == listens


def test_streams_are_closed_under_their_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "dup2", duplicate := Mock())
    monkeypatch.setattr(os, "close", close := Mock())
    ranks.redirect(5, 6, 6)
    ranks.redirect(0, 1, 2)
    assert [each.args for each in duplicate.call_args_list[:3]] == [(5, 0), (6, 1), (6, 2)]
    assert sorted(each.args for each in close.call_args_list) == [(5,), (6,)]


@pytest.mark.parametrize(("pid", "trains"), [(0, True), (1, False), (7, False)])
def test_only_the_fork_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int, trains: bool
) -> None:
    ran: list[object] = []
    monkeypatch.setattr(ranks, "fork_hindrance", lambda _: None)
    monkeypatch.setattr(os, "fork", lambda: pid)
    monkeypatch.setattr(ranks, "run_and_exit", ran.append)
    start = RankStart([], {}, ".", tmp_path / "out", tmp_path / "err", ())
    assert ranks.fork(lambda: 0, start) == pid
    assert bool(ran) is trains


# Hangs, by heartbeats and a steady clock; kills for memory.
@pytest.mark.parametrize(
    ("script", "lacks"),
    [((), "had not begun after"), (("python", "a.py"), "stepped no optimizer of torch.optim in")],
)
def test_imports_are_no_hang_and_have_a_limit_of_their_own(
    tmp_path: Path, script: tuple[str, ...], lacks: str
) -> None:
    folder, now_s = records.CellFolder(tmp_path), [5.0, 55.0, 66.0]
    settings = replace(SETTINGS, hang_timeout_s=5, start_timeout_s=60, script=script)
    liveness = Liveness(folder, settings, iter(now_s).__next__)
    assert liveness.hang([0, 1]) is None
    records.HeartbeatWriter(folder.heartbeat_path(0)).close()
    assert liveness.hang([0, 1]).message == (
        f"rank 1 {lacks} 61 s (sweep.start_timeout_s=60); the stacks of all ranks are in logs/"
    )


def test_a_hang_is_counted_from_the_last_beat_of_any_rank(tmp_path: Path) -> None:
    folder, now_s = records.CellFolder(tmp_path), [0.0, 0.0, 4.0, 8.0, 12.0, 18.0]
    ranks = [records.HeartbeatWriter(folder.heartbeat_path(rank)) for rank in (0, 1)]
    liveness = Liveness(folder, replace(SETTINGS, hang_timeout_s=5), iter(now_s).__next__)
    for step in range(4):
        ranks[1].beat(step, step)
        assert liveness.hang([0, 1]) is None
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
    ending = records.Ending("failed", cause, "rank 1 ended", 1, exit_code)
    assert name_memory_kill(ending, before, now).cause == named


# Which faults another try can mend.
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
    assert (mendable(replace(FAILED, **changes)) is not None) is again

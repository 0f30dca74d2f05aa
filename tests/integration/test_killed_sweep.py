"""What is left of a sweep that was killed ends by itself, and keeps all others out until then."""

import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

import psutil
import pytest

from fakes.train_command import Train, listening, wait_for
from scalewise.host import FileLock, usable_cores
from scalewise.records import SweepFolder
from scalewise.sweep.status import CellStatus, StatusReader

pytestmark = pytest.mark.skipif(len(usable_cores()) < 2, reason="two devices need two cores")

GRACE_S = 3
ENDLESS = (
    *("tracking=none", "monitor.devices=false", "batch_size=16"),
    *("max_epochs=null", "max_steps=1000000", "warmup_steps=2", f"sweep.grace_s={GRACE_S}"),
    *("strategy=ddp", "strategy.devices=2", "hardware=cpu", "hardware.cores_per_device=1"),
)


class Started:
    """A sweep whose first cell trains on two ranks."""

    def __init__(self, train: Train, folder: Path, *arguments: str) -> None:
        self.folder = SweepFolder(folder)
        self.process = train.start("-m", *ENDLESS, f"hydra.sweep.dir={folder}", *arguments)
        self.supervisor, self.ranks = wait_for(self.training, "two ranks that train", 120)
        self.family = self.living()

    def living(self) -> list[int]:
        """The sweep and those that it started."""
        return [self.process.pid, *(c.pid for c in psutil.Process(self.process.pid).children())]

    def training(self, but: int = 0) -> tuple[int, list[int]] | None:
        """Supervisor, other than ``but``, and ranks, once all have taken steps."""
        assert self.process.poll() is None, self.process.communicate()
        if len(list(self.folder.path.glob("*/heartbeat/*"))) < 2:
            return None
        for child in psutil.Process(self.process.pid).children():
            try:
                ranks = [one.pid for one in child.children()]
            except psutil.NoSuchProcess:  # what forked a supervisor and ended at once
                continue
            if len(ranks) == 2 and child.pid != but:
                return child.pid, ranks
        return None


PF_EXITING = 0x4
"""Linux's flag of a process that the kernel takes apart: none of its code runs any more."""


def alive(pids: Collection[int]) -> list[int]:
    """Those that can still compute. One that is being taken apart lets go of its locks before it
    waits to be reaped."""
    found = []
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, flags = fields[0], int(fields[6])
        if state not in "ZX" and not flags & PF_EXITING:
            found.append(pid)
    return found


def kill(*pids: int, number: int = signal.SIGKILL) -> None:
    for pid in pids:
        os.kill(pid, number)


def locks_of(train: Train, folder: SweepFolder) -> list[FileLock]:
    runtime = Path(train.environment["SCALEWISE_RUNTIME_DIR"])
    return [FileLock(path) for path in (folder.lock_path, *sorted(runtime.glob("cpu-*.lock")))]


def freed(locks: Collection[FileLock], ranks: Collection[int], seconds: float) -> float:
    """How long it takes until all locks are free. None may be while one of the ranks lives."""
    begun = time.monotonic()
    waiting = list(locks)
    while waiting:
        for lock in list(waiting):
            if lock.try_acquire():
                assert alive(ranks) == [], f"{lock.path.name} was free before"
                waiting.remove(lock)
        time.sleep(0.001)
        assert time.monotonic() - begun < seconds, [lock.path.name for lock in waiting]
    for lock in locks:
        lock.release()
    return time.monotonic() - begun


def test_a_sweep_resumed_at_once_waits_for_what_was_killed(train: Train, tmp_path: Path) -> None:
    first = Started(train, tmp_path / "sweep")
    assert listening(first.ranks[:1]) == {"127.0.0.1"}, "no other host can join"
    assert listening(train.processes()) <= {"127.0.0.1", "::1"}
    locks = locks_of(train, first.folder)
    assert len(locks) == 3, "the folder's and one for each core"
    assert not any(lock.try_acquire() for lock in locks)
    # It does not answer when it is asked to end, and lives until it is made to.
    kill(first.ranks[1], number=signal.SIGSTOP)
    kill(first.process.pid)
    killed = time.time()
    resumed = train.start("-m", *ENDLESS, f"sweep.resume={first.folder.path}")
    both: list[tuple[list[int], list[int]]] = []
    seen_alive = time.time()

    def trains() -> bool:
        nonlocal seen_alive
        assert resumed.poll() is None, resumed.communicate()
        new = [pid for pid in train.ranks() if pid not in first.ranks]
        old = alive(first.ranks)
        if old:
            seen_alive = time.time()
            both.extend([(old, new)] if new else [])
        return len(new) == 2 and all(psutil.Process(pid).create_time() for pid in new)

    wait_for(trains, "the ranks of the resumed sweep")
    new = train.ranks()
    assert min(psutil.Process(pid).create_time() for pid in new) >= seen_alive - 0.02
    assert both == []
    assert seen_alive - killed > GRACE_S - 0.5
    ((_, cell),) = first.folder.cells()
    assert [attempt.cause for attempt in cell.attempts()] == ["interrupted"]
    kill(resumed.pid, number=signal.SIGINT)
    resumed.communicate(timeout=30)


def end_all_above(train: Train, sweep: Started, ranks: Collection[int]) -> None:
    """Nobody is left to end the ranks: only the kernel can."""
    family = sweep.living()
    # Stopped first: none of them can act on the end of another.
    kill(*family, number=signal.SIGSTOP)
    kill(*reversed(family))
    freed(locks_of(train, sweep.folder), ranks, 5)


def test_ranks_end_with_everyone_above_them(train: Train, tmp_path: Path) -> None:
    """Those that start freshly; forked ones at the end of the next test."""
    sweep = Started(train, tmp_path / "sweep", "hydra.launcher.warm=false")
    assert sweep.family == [sweep.process.pid, sweep.supervisor]
    end_all_above(train, sweep, sweep.ranks)


def test_no_rank_outlives_any_one_of_those_above_it(train: Train, tmp_path: Path) -> None:
    """One after the other is killed: who forks, the supervisor, a rank; then all at once."""
    sweep = Started(train, tmp_path / "sweep", "repeats=4", "sweep.retries=0")
    servers = {*sweep.family} - {sweep.process.pid, sweep.supervisor}
    assert len(servers) == 2, "of this round and the next"
    status = StatusReader(sweep.folder.path)

    def stepping() -> CellStatus | None:
        return next((cell for cell in status.read().cells if cell.step), None)

    running = wait_for(stepping, "steps in the status")
    assert (running.state, running.total_steps) == ("running", 1_000_000)
    assert status.read().count() == {"running": 1, "waiting": 3}
    kill(*servers)
    time.sleep(0.5)
    assert len(alive(sweep.ranks)) == 2, "they are no children of what they were forked from"
    kill(sweep.supervisor)
    wait_for(lambda: alive(sweep.ranks) == [], "the end of the ranks", 10)
    cell = sweep.folder.cell(running.name)
    attempt = wait_for(lambda: next(cell.attempts(), None), "the attempt", 15)
    assert (attempt.cause, attempt.message) == (
        "supervisor_lost", "the supervisor was ended by SIGKILL",
    )  # fmt: skip
    supervisor, ranks = wait_for(lambda: sweep.training(sweep.supervisor), "the next cell", 120)
    # A fork has its name first: its command follows.
    worker = "scalewise.sweep.worker"
    told = {("rank 0", True), ("rank 1", True)}
    forks = [psutil.Process(one) for one in ranks]
    wait_for(lambda: {(one.name(), worker in one.cmdline()) for one in forks} == told, "names", 10)
    kill(ranks[0])
    wait_for(lambda: alive(ranks) == [], "the end of the other rank", 30)
    _, ranks = wait_for(lambda: sweep.training(supervisor), "the next cell", 120)
    end_all_above(train, sweep, ranks)
    wait_for(lambda: train.processes() == {}, "the end of all", 10)
    count = StatusReader(sweep.folder.path).read().count()
    assert (count["failed"], count["waiting"]) == (2, 1)

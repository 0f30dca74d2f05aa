"""Runs a sweep, wherever its cells run: folder lock, mirror, plan, stages, retries, records.

Where cells wait, how they start and how they are watched is the business of each engine:
``local_engine`` for this host, ``slurm_engine`` and its like for others. The process of an engine
never touches a GPU and never trains: whatever happens to a cell happens to other processes.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from scalewise.config import ConfigError
from scalewise.gpu import HostMismatch
from scalewise.host import FileLock, become_subreaper
from scalewise.records import CellFolder, RecordError, SweepFolder, state_of
from scalewise.supervisor import Outcome, Retries
from scalewise.sweep.auto import (
    Stages,
    adaptive_requests,
    interleaved,
    is_open,
    later_cells,
    next_rounds,
    reruns,
    split,
)
from scalewise.sweep.display import Display, Progress, Tally
from scalewise.sweep.plan import Cell, Request, add_to_plan
from scalewise.sweep.progress import Budget, Durations, Remaining, budget_of
from scalewise.sweep.resume import refuse_newer, set_unreadable_aside
from scalewise.sweep.running_cells import attempt_until_now, done


@dataclass
class SweepReport:
    """The outcome of a sweep."""

    folder: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By cell id."""
    cells: list[Cell] = field(default_factory=list)
    """Those asked for, and those that ``repeats``, ``strategy`` and ``batch_size=auto`` added."""
    chosen: dict[str, str] = field(default_factory=dict)
    """``config_id`` of a request that a first stage decided to that of what was trained for it."""

    def cells_of(self, config_id: str) -> list[Cell]:
        """The cells that answer a request."""
        answered_by = self.chosen.get(config_id, config_id)
        return [cell for cell in self.cells if cell.planned.config_id == answered_by]

    def outcomes_of(self, config_id: str) -> list[Outcome]:
        """How each of these cells ended."""
        return [self.outcomes[cell.planned.cell_id] for cell in self.cells_of(config_id)]

    def count(self, state: str) -> int:
        return sum(o.state == state for o in self.outcomes.values())


sweeps_run: list[SweepReport] = []
"""Every sweep this process has run: the entry reports on them and derives its exit status."""


def remember(report: SweepReport) -> None:
    """Add a sweep to :data:`sweeps_run`; a sweeper that asks in batches fills one folder."""
    earlier = next((r for r in sweeps_run if r.folder == report.folder), None)
    if earlier is None:
        sweeps_run.append(report)
    else:
        earlier.outcomes.update(report.outcomes)
        earlier.cells += report.cells


Policy = Literal["exclusive", "packed"]
_END_S = 9.0


class Engine(ABC):
    """One sweep.

    Args:
        folder: the sweep's folder.
        policy: ``exclusive`` runs one cell at a time on a host, ``packed`` fills it.
        display: where progress is said.
    """

    def __init__(self, folder: Path, policy: Policy, display: Display) -> None:
        self.folder = SweepFolder(folder)
        self.policy: Policy = policy
        self.display = display
        self.report = SweepReport(folder)
        """Outcomes so far; they stay when :meth:`run` is interrupted."""
        self.again: frozenset[str] = frozenset()
        """Ids of done cells that are to run once more; their results are set aside."""
        self.remarks: list[str] = []
        """Said first, once the folder is ours."""
        self.left_open: tuple[Request, ...] = ()
        """Requests for ``strategy=auto`` or ``batch_size=auto``, whose short runs or searches are
        among the cells to run."""
        self.budget = Budget(None)
        self.lock = FileLock(self.folder.lock_path)
        """Held while :meth:`run` does."""
        self._stages = Stages(self.folder, display.note)
        self._tally = Tally(total=0)
        self._durations = Durations()
        self._retries = Retries()

    def run(self, cells: Sequence[Cell]) -> SweepReport:
        """Run every cell that is not done. Raises KeyboardInterrupt after ending all of them."""
        with held(self.folder, self.lock):
            for line in self.remarks:
                self.display.note(line)
            become_subreaper()
            try:
                self._run_mirrored(cells)
            finally:
                self.display.close()
        return self.report

    def _run_mirrored(self, cells: Sequence[Cell]) -> None:
        """Run all stages, beside a mirror if a tracker is to hear of them."""
        mirror = None
        try:
            waiting = self._begin(cells)
            if self._has_trackers(cells, waiting):
                mirror = Mirror(self.folder.path, self.display.note)
            self._loop(self.report)
            self._second_stage(filter(is_open, self.left_open), waiting)
            self._second_stage((one for one in self.left_open if not is_open(one)), ())
            self._repeat_until_decided()
            if mirror is not None:
                mirror.finish()
            self._check_folder()
        except BaseException as error:
            self._break_off(mirror)
            if isinstance(error, (OSError, RecordError)):
                self._check_folder()
            raise

    def _begin(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Queue the cells of the first stage, and return those that wait for it."""
        self._tally.total = len(cells)
        self.report.cells += cells
        self.budget = budget_of(self.folder, [c.request.cell.sweep for c in cells])
        first, waiting = split(cells)
        self._admit_all(first, alone=len(cells) == 1)
        # After they were admitted: only then does an engine know its host's slots.
        add_to_plan(self.folder, cells, self.policy, self._slots())
        return waiting

    def _has_trackers(self, cells: Sequence[Cell], waiting: Sequence[Cell]) -> bool:
        """Whether anything of what is still to run is handed to a tracker."""
        pending = [*self._to_run(), *waiting]
        pending += [c for c in cells if c.request.cell.repeats == "auto"]
        later = [c.request for c in pending] + list(self.left_open)
        return any(one.cell.tracking.trackers for one in later)

    def _break_off(self, mirror: Mirror | None) -> None:
        """End whatever runs, within :data:`_END_S` s: an interrupt, or an error of our own."""
        deadline = time.monotonic() + _END_S
        if mirror is not None:
            mirror.let_go()
        # A second Ctrl-C must not leave processes behind.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._end_all(self.report, deadline)
        finally:
            signal.signal(signal.SIGINT, previous)
        if mirror is not None:
            mirror.abandon(deadline)

    # What each engine does in its own way

    @abstractmethod
    def _ask_for(self, cell: Cell) -> None:
        """Queue a cell. Raises :class:`HostMismatch` where it cannot be run."""

    def _take_over(self, cell: Cell, folder: CellFolder) -> bool:
        """Whether an earlier sweep process left the cell running: then it is watched."""
        return False

    @abstractmethod
    def _to_run(self) -> list[Cell]:
        """The cells that are queued or run."""

    @abstractmethod
    def _loop(self, report: SweepReport) -> None:
        """Run what is queued to its end."""

    @abstractmethod
    def _end_all(self, report: SweepReport, deadline: float) -> None:
        """End every running cell: they record themselves as interrupted.

        They have until ``deadline`` of ``time.monotonic``; SIGINT is ignored meanwhile.
        """

    def _slots(self) -> int | None:
        """Devices of the host that runs the cells; None where that is not one host."""
        return None

    # The plan

    def _admit_all(self, cells: Sequence[Cell], alone: bool = False) -> None:
        """Queue cells; what is to run once more is set aside first."""
        refuse_newer(self.folder, cells)
        for cell in cells:
            folder = self.folder.cell(cell.planned.name)
            if cell.planned.cell_id in self.again:
                folder.set_aside()
            elif (aside := set_unreadable_aside(folder, cell.planned)) is not None:
                self.display.note(aside)
            self._stages.write_evidence(cell)
            self._admit(cell, alone)

    def _admit(self, cell: Cell, alone: bool) -> None:
        """Queue a cell, unless it is done, runs already, or cannot be run.

        Raises :class:`ConfigError` for the last, where it is the only one.
        """
        folder = self.folder.cell(cell.planned.name)
        result = state_of(self.folder, cell.planned).result
        if result is not None:
            self._tally.already_done += 1
            self._durations.add(cell.planned.config_id, result.took_s)
            self._end(self.report, cell, Outcome("done"), None)
            return
        try:
            if self._take_over(cell, folder):
                return
            self._ask_for(cell)
        except HostMismatch as mismatch:
            if alone:
                raise ConfigError(str(mismatch)) from None
            folder.save_config(cell.request.plain)
            self._skip([cell], self.report, str(mismatch))
            return
        folder.save_config(cell.request.plain)

    # Later stages

    def _second_stage(self, asked: Iterable[Request], waiting: Sequence[Cell]) -> None:
        """Run what is decided for ``asked``, its repeats interleaved with those of ``waiting``."""
        requests = self._stages.decide(asked)
        self.report.chosen.update(self._stages.chosen)
        known = {cell.planned.config_id for cell in self.report.cells}
        new = later_cells(self.folder, requests, known)
        self.again |= reruns(self.folder, new)
        if new:
            self._join(new)
        if new or waiting:
            self._admit_all(interleaved([*waiting, *new]))
            self._loop(self.report)

    def _repeat_until_decided(self) -> None:
        """Stage two of ``repeats=auto``: rounds are added as long as the records are undecided."""
        requests = adaptive_requests(self.report.cells)
        while requests:
            cells, looked_at = next_rounds(self.folder, requests, self.report.outcomes.keys())
            for repeats in looked_at:
                self.display.note(f"repeats  {repeats}")
            if not cells:
                return
            self._join(cells)
            self._admit_all(cells)
            self._loop(self.report)

    def _join(self, cells: Sequence[Cell]) -> None:
        """Count cells of a later stage among the sweep's.

        Before they run, so that a sweep that is resumed knows of them.
        """
        self.report.cells += cells
        self._tally.total += len(cells)
        add_to_plan(self.folder, cells, self.policy, self._slots())

    # What may start

    def _expected_s(self, cell: Cell) -> float | None:
        """How long a cell will take, by those that have ended; None while nothing tells."""
        return self._durations.of(cell.planned.config_id)

    def _affords(self, cell: Cell, width: int, beside: Iterable[tuple[Cell, int, float]]) -> bool:
        """Whether ``sweep.max_gpu_hours`` lets a cell start now on ``width`` devices.

        ``beside``: each running cell, its devices, and for how many seconds it has run.
        """
        if self.budget.limit_hours is None:
            return True
        running = [(w, max(age_s, self._expected_s(c) or 0.0)) for c, w, age_s in beside]
        return self.budget.allows(width, self._expected_s(cell), running)

    def _leave_out(self, cell: Cell, report: SweepReport) -> None:
        """``sweep.max_gpu_hours`` has no room for a cell: it keeps its place for a larger one."""
        self._end(report, cell, Outcome("unstarted", str(self.budget)), None)

    # How cells end

    def _end(
        self,
        report: SweepReport,
        cell: Cell,
        outcome: Outcome,
        seconds: float | None,
        final: bool = False,
    ) -> None:
        """A try has ended: for good if it is ``final`` or no other may end better."""
        folder = self.folder.cell(cell.planned.name)
        if outcome.state == "done":
            objective = cell.request.cell.sweep.objective
            outcome = done(folder, cell.planned.cell_id, objective, told_before=seconds is None)
        if outcome.state == "failed" and not final:
            retry = self._retries.grant(folder, cell.request.cell.sweep.retries)
            if retry is not None:
                with suppress(HostMismatch):  # it cannot be run any longer
                    self._ask_for(cell)
                    self.display.note(f"again    {cell.planned.name}: {outcome.message} ({retry})")
                    return
        if outcome.state == "done" and seconds is not None:
            self._durations.add(cell.planned.config_id, seconds)
        if not outcome.is_recorded:
            outcome = self._record_failure(cell, outcome, seconds)
        self._tally.count(outcome)
        report.outcomes[cell.planned.cell_id] = outcome
        self.display.ended(cell, outcome, seconds)

    def _record_failure(self, cell: Cell, outcome: Outcome, seconds: float | None) -> Outcome:
        """Write down what ended a cell, now that its ranks are gone; as it is where that fails.

        The disk may have room by then, and a cell's folder that was deleted is made anew. Raises
        FileNotFoundError where the sweep's own is gone.
        """
        self._check_folder()
        folder = self.folder.cell(cell.planned.name)
        began_at = time.time() - (seconds or 0.0)
        attempt = attempt_until_now(folder, "failed", "supervisor", outcome.message, (), began_at)
        try:
            folder.save_config(cell.request.plain)
            folder.save_attempt(attempt)
        except OSError:
            return outcome  # the last lines of the command say what no record does
        return replace(outcome, is_recorded=True)

    def _check_folder(self) -> None:
        """Raises FileNotFoundError where the sweep's folder, which held its lock, is gone."""
        if not self.folder.lock_path.exists():
            what = "the sweep's folder is gone: deleted or moved while the sweep ran"
            raise FileNotFoundError(errno.ENOENT, what, str(self.folder.path))

    def _skip(self, cells: Sequence[Cell], report: SweepReport, why: str) -> None:
        for cell in cells:
            folder = self.folder.cell(cell.planned.name)
            folder.save_attempt(attempt_until_now(folder, "skipped", "host", why))
            self._end(report, cell, Outcome("skipped", why), None)

    def _tick(self, progress: Sequence[Progress], remaining: Sequence[Remaining]) -> None:
        """Say how far the sweep is; ``remaining`` is what runs and what waits."""
        packed = self.policy == "packed"
        left_s = self._durations.seconds_left(remaining, self._slots(), packed)
        self.display.tick(self._tally, progress, left_s)


_FINISH_S = 90.0


class Mirror:
    """Runs ``scalewise.tracking.mirror`` beside a sweep.

    It takes idle processor time only, ends with this process whatever happens to it, and every
    line it says about a problem is passed on.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scalewise.tracking.mirror", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._pass_on, name="mirror-stderr", daemon=True)
        self._reader.start()

    def finish(self) -> None:
        """Let it hand over what is left; says so if it cannot within :data:`_FINISH_S`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone already; its exit status says how
            self._process.stdin.write(b"finish\n")
            self._process.stdin.close()
        why = f"tracking: not everything was mirrored within {_FINISH_S:g} s"
        if self._ends_within(_FINISH_S):
            why = f"tracking: the mirror was ended by signal {-self._process.returncode}"
        if self._process.returncode < 0:
            self._say(f"{why}; scalewise mirror FOLDER finishes it")

    def let_go(self) -> None:
        """The sweep was interrupted: it hands over what it can within seconds, and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def abandon(self, deadline: float) -> None:
        """Wait for its end until ``deadline`` of ``time.monotonic``, then end it."""
        self._ends_within(max(0.5, deadline - time.monotonic()))

    def _ends_within(self, timeout_s: float) -> bool:
        """Whether it ends in time; otherwise it is killed."""
        try:
            self._process.wait(timeout_s)
            return True
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            self._reader.join(timeout=2)

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._say(text)


_ASK_S = 0.2
"""``scalewise status`` has the lock of a sweep for far less than this."""
_RANKS_END_S = 15.0
"""Ranks of a sweep that was killed are ended within ``sweep.grace_s``, which is at most 8."""
_LOOK_S = 0.05


class SweepBusy(ConfigError):  # noqa: N818 - it says what is wrong
    """Another process is running a sweep in this folder, or what it left has not ended."""


@contextmanager
def held(folder: SweepFolder, lock: FileLock | None = None) -> Iterator[None]:
    """Make the folder, and keep every other sweep out of it by its ``lock``.

    Processes that a killed sweep has left are waited for. Raises :class:`SweepBusy` where a sweep
    runs in it already or something is left for too long, :class:`ConfigError` where it cannot be
    made.
    """
    lock = lock or FileLock(folder.lock_path)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"hydra.sweep.dir: {folder.path} cannot be made: {error}") from error
    if not lock.try_acquire():
        _wait_for(lock, folder.path)
    try:
        _sign(lock)
        yield
    finally:
        lock.release()


def _sign(lock: FileLock) -> None:
    """Write into the lock who took it last: into the very file that is locked, never by its name,
    which somebody else may by now have given to another file."""
    with suppress(OSError):  # a full disk: whoever waits is told less, and nothing else
        for descriptor in lock.descriptors:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _wait_for(lock: FileLock, folder: Path) -> None:
    """Take a lock that others have, once they have ended. Raises :class:`SweepBusy`."""
    begun = time.monotonic()
    while True:
        # Looked up before the lock is tried: none of these can have let go unnoticed.
        pids = _processes_with(lock.path)
        if lock.try_acquire():
            return
        waited_s = time.monotonic() - begun
        # Where nobody is seen, the sweep runs on another host or for another user.
        runs = not pids or _last_holder(lock.path) in pids
        if runs and waited_s > _ASK_S:
            raise SweepBusy(
                f"sweep.resume: another process is running a sweep in {folder}; "
                "wait for it or choose another folder"
            )
        if waited_s > _RANKS_END_S:
            raise SweepBusy(
                f"sweep.resume: the sweep in {folder} was killed, and what it left still runs "
                f"(process ids: {', '.join(map(str, pids))}); end it first"
            )
        time.sleep(_LOOK_S)


def _last_holder(path: Path) -> int | None:
    """The process that took the lock last, dead or alive."""
    text = path.read_text(encoding="ascii", errors="replace").strip()
    return int(text) if text.isdecimal() else None


def _processes_with(path: Path) -> list[int]:
    """The processes of this host, as far as we may look, that have a file open."""
    import psutil  # only a folder that somebody has asks

    wanted, pids = str(path.resolve()), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # another user's, or it has just ended
            if any(file.path == wanted for file in process.open_files()):
                pids.append(process.pid)
    return sorted(pids)

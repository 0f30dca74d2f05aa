"""Runs the cells of a sweep: leases devices, starts supervisors, takes their answers.

This process never touches a GPU and never trains: whatever happens to a cell happens to other
processes.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scalewise.config import ConfigError
from scalewise.gpu.election import FileLock
from scalewise.hardware import HardwareConfig
from scalewise.records import Attempt, CellFolder, SweepFolder, SweepPlan
from scalewise.sweep.display import Display, Tally, progress_of
from scalewise.sweep.estimate import Durations, Measured, Remaining
from scalewise.sweep.job import Job, Outcome
from scalewise.sweep.lease import (
    Host,
    HostMismatch,
    Lease,
    Leases,
    check_precision,
    discover,
    width,
)
from scalewise.sweep.mirror import Mirror
from scalewise.sweep.plan import Cell
from scalewise.sweep.processes import become_subreaper, end_orphans
from scalewise.sweep.repeats import adaptive_requests, next_rounds
from scalewise.sweep.schedule import Busy, Waiting, starts_now

Policy = Literal["exclusive", "packed"]

_POLL_S = 0.5
_END_S = 9.0


class SweepBusy(ConfigError):  # noqa: N818 - it says what is wrong
    """Another process is running a sweep in this folder."""


@dataclass
class SweepReport:
    """What became of a sweep."""

    folder: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By cell id."""
    cells: list[Cell] = field(default_factory=list)
    """Those asked for, and those that ``repeats=auto`` added."""

    def count(self, state: str) -> int:
        return sum(o.state == state for o in self.outcomes.values())


@dataclass
class _Running:
    cell: Cell
    folder: CellFolder
    lease: Lease
    process: subprocess.Popen[bytes]
    started: float


class Engine:
    """One sweep on this host.

    Args:
        folder: the sweep's folder.
        policy: ``exclusive`` runs one cell at a time, ``packed`` fills the host.
        display: where progress is said.
    """

    def __init__(self, folder: Path, policy: Policy, display: Display) -> None:
        self.folder = SweepFolder(folder)
        self.policy: Policy = policy
        self.display = display
        self.report = SweepReport(folder)
        """What has ended so far; it stays when :meth:`run` is interrupted."""
        self.again: frozenset[str] = frozenset()
        """Ids of done cells that are to run once more; their results are set aside."""
        self._leases = Leases()
        self._running: list[_Running] = []
        self._waiting: list[tuple[Cell, int, Host]] = []
        self._hosts: dict[str, Host | HostMismatch] = {}
        self._said_waiting = False
        self._measured: list[Measured] = []
        """Durations of the folder's done cells, earlier ones first."""
        self._chosen: list[str] | None = None
        """What ``packed`` is to start next; None once a cell has ended since it was decided."""

    def run(self, cells: Sequence[Cell]) -> SweepReport:
        """Run every cell that is not done. Raises KeyboardInterrupt after ending all of them."""
        lock = FileLock(self._prepared_lock())
        if not lock.try_acquire():
            raise SweepBusy(
                f"sweep.resume: another process is running a sweep in {self.folder.path}; "
                "wait for it or choose another folder"
            )
        become_subreaper()
        report = self.report
        mirror = None
        try:
            self._tally = Tally(total=len(cells))
            report.cells += cells
            for cell in cells:
                if cell.planned.cell_id in self.again:
                    self.folder.cell(cell.planned.name).set_aside()
                self._admit(cell, report, alone=len(cells) == 1)
            self._save_plan(cells)
            pending = self._to_run()
            pending += [c for c in cells if c.request.cell.repeats == "auto"]
            if any(c.request.cell.tracking.trackers for c in pending):
                mirror = Mirror(self.folder.path, self.display.note)
            self._loop(report)
            self._repeat_until_decided(report)
            if mirror is not None:
                mirror.finish()
        except BaseException:
            deadline = time.monotonic() + _END_S
            if mirror is not None:
                mirror.let_go()
            self._end_all(report, deadline)
            if mirror is not None:
                mirror.abandon(deadline)
            raise
        finally:
            self.display.close()
            lock.release()
        return report

    # Before anything starts

    def _to_run(self) -> list[Cell]:
        return [cell for cell, _, _ in self._waiting]

    def _prepared_lock(self) -> Path:
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"hydra.sweep.dir: {self.folder.path} cannot be made: {error}"
            ) from error
        return self.folder.lock_path

    def _save_plan(self, cells: Sequence[Cell]) -> None:
        """Add the cells to the folder's plan; those it already has keep their place."""
        planned = {c.planned.cell_id: c.planned for c in cells}
        earlier = self.folder.load_plan() if self.folder.plan_path.exists() else None
        before = earlier.cells if earlier is not None else ()
        known = {p.cell_id for p in before}
        new = tuple(p for i, p in planned.items() if i not in known)
        seed = cells[0].request.cell.sweep.order_seed if cells else 0
        created_at = time.time() if earlier is None else earlier.created_at
        hosts = [host for host in self._hosts.values() if isinstance(host, Host)]
        slots = max((len(host.slots) for host in hosts), default=None)
        if slots is None and earlier is not None:
            slots = earlier.slots
        self.folder.save_plan(
            SweepPlan(created_at, tuple(sys.argv), seed, (*before, *new), self.policy, slots)
        )

    def _admit(self, cell: Cell, report: SweepReport, alone: bool) -> None:
        """Queue a cell, unless it is done or this host cannot run it."""
        folder = self.folder.cell(cell.planned.name)
        if folder.is_done():
            result = folder.load_result()
            if result.cell_id == cell.planned.cell_id:
                self._tally.already_done += 1
                seconds = result.finished_at - result.started_at
                self._measured.append(Measured(result.config_id, seconds))
                self._end(report, cell, Outcome("done", objective=result.objective), None)
                return
        try:
            host = self._host(cell.request.cell.hardware)
            check_precision(cell.request.cell, host)
            wanted = width(cell.request.cell, len(host.slots))
        except HostMismatch as mismatch:
            if alone:
                raise ConfigError(str(mismatch)) from None
            folder.save_config(cell.request.plain)
            self._record(folder, "skipped", "host", str(mismatch))
            self._end(report, cell, Outcome("skipped", str(mismatch)), None)
            return
        folder.save_config(cell.request.plain)
        self._waiting.append((cell, wanted, host))

    def _host(self, hardware: HardwareConfig) -> Host:
        key = repr(hardware)
        if key not in self._hosts:
            try:
                self._hosts[key] = discover(hardware)
            except HostMismatch as mismatch:
                self._hosts[key] = mismatch
            for warning in hardware.warnings():
                self.display.note(f"hardware={hardware.name}: {warning}")
        found = self._hosts[key]
        if isinstance(found, HostMismatch):
            raise found
        return found

    # While cells run

    def _loop(self, report: SweepReport) -> None:
        with selectors.DefaultSelector() as selector:
            while self._waiting or self._running:
                self._start_what_fits(selector)
                for key, _ in selector.select(_POLL_S):
                    running: _Running = key.data
                    selector.unregister(key.fileobj)
                    self._take_answer(running, report)
                self._show()

    def _repeat_until_decided(self, report: SweepReport) -> None:
        """Stage two of ``repeats=auto``: rounds are added as long as the records are undecided."""
        requests = adaptive_requests(report.cells)
        while requests:
            step = next_rounds(self.folder, requests, report.outcomes.keys())
            for repeats in step.repeats:
                self.display.note(f"repeats  {repeats}")
            if not step.cells:
                return
            report.cells += step.cells
            self._tally.total += len(step.cells)
            # Before they run, so that a sweep that is resumed knows of them.
            self._save_plan(step.cells)
            for cell in step.cells:
                self._admit(cell, report, alone=False)
            self._loop(report)

    def _start_what_fits(self, selector: selectors.BaseSelector) -> None:
        for entry in self._next_up():
            cell, wanted, host = entry
            lease = self._leases.try_lease(host.slots, wanted)
            if lease is None:
                if not self._running and not self._said_waiting:
                    self._said_waiting = True
                    self.display.note("waiting: another sweep holds this host's devices")
                # A wide cell is not overtaken for ever: what comes after it waits with it.
                return
            self._waiting.remove(entry)
            running = self._start(cell, lease, host)
            assert running.process.stdout is not None
            selector.register(running.process.stdout, selectors.EVENT_READ, running)

    def _next_up(self) -> list[tuple[Cell, int, Host]]:
        """The cells that are to start now, as soon as their devices can be leased."""
        if self.policy == "exclusive":
            return [] if self._running else self._waiting[:1]
        if self._chosen is None:
            self._chosen = self._choose()
        waiting = {entry[0].planned.cell_id: entry for entry in self._waiting}
        return [waiting[key] for key in self._chosen if key in waiting]

    def _choose(self) -> list[str]:
        """Ids of the cells to start beside those that run, by what earlier ones have taken."""
        if not self._waiting:
            return []
        known = Durations(self._measured)
        waiting = []
        for cell, wanted, _ in self._waiting:
            expected = known.of(cell.planned.config_id)
            seconds = None if expected is None else expected.seconds
            waiting.append(Waiting(cell.planned.cell_id, wanted, seconds))
        slots = max(len(host.slots) for _, _, host in self._waiting)
        slots = max(slots, sum(len(r.lease.slots) for r in self._running))
        return starts_now(waiting, [self._busy(r, known) for r in self._running], slots)

    def _busy(self, running: _Running, known: Durations) -> Busy:
        width = len(running.lease.slots)
        progress = progress_of(running.cell.planned.name, running.folder, width)
        planned, age = running.cell.planned, time.monotonic() - running.started
        left = known.left_of(
            Remaining(planned.cell_id, planned.config_id, width, age, progress.seconds_left)
        )
        # Nothing to go by: as long again as it has taken.
        return Busy(width, age if left is None else left.seconds)

    def _start(self, cell: Cell, lease: Lease, host: Host) -> _Running:
        folder = self.folder.cell(cell.planned.name)
        job = Job(
            folder=str(folder.path.resolve()),
            cell=cell.planned,
            slots=lease.slots,
            cwd=str(Path.cwd()),
            python_path=tuple(str(Path(p or ".").resolve()) for p in sys.path),
            command=tuple(sys.argv),
            driver=host.driver,
            topology=host.topology,
            co_tenants=tuple(r.cell.planned.name for r in self._running),
        )
        with (folder.path / "supervisor.err").open("wb") as errors:
            process = subprocess.Popen(
                # -P: a queue.py where the user stands must not replace the library's.
                [sys.executable, "-P", "-m", "scalewise.sweep.supervisor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert process.stdin is not None
        try:
            process.stdin.write(job.to_line())
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at birth: its empty answer is handled like any other death
        for neighbour in self._running:
            self._tell(neighbour, cell.planned.name)
        running = _Running(cell, folder, lease, process, time.monotonic())
        self._running.append(running)
        self.display.started(cell, len(lease.slots))
        return running

    def _tell(self, running: _Running, neighbour: str) -> None:
        """Let a cell that runs know who shares the host with it from now on."""
        assert running.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is ending: nobody disturbs it any more
            running.process.stdin.write(f"{neighbour}\n".encode())
            running.process.stdin.flush()

    def _take_answer(self, running: _Running, report: SweepReport) -> None:
        """The supervisor has answered or died; either way its cell is over."""
        assert running.process.stdout is not None and running.process.stdin is not None
        answer = running.process.stdout.read()
        running.process.wait()
        running.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # a job line that was never read
            running.process.stdin.close()
        if answer.endswith(b"\n"):
            outcome = Outcome.from_line(answer)
        else:
            outcome = self._supervisor_died(running)
        # Its session is its own: whoever is still in it is an orphan of this cell.
        end_orphans(running.process.pid)
        self._leases.release(running.lease)
        self._running.remove(running)
        self._chosen = None
        seconds = time.monotonic() - running.started
        if outcome.state == "done":
            self._measured.append(Measured(running.cell.planned.config_id, seconds))
        self._end(report, running.cell, outcome, seconds)

    def _supervisor_died(self, running: _Running) -> Outcome:
        code = running.process.returncode
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        errors = (running.folder.path / "supervisor.err").read_text(errors="replace")
        message = f"the supervisor was {how}"
        if code >= 0:
            message += "; see supervisor.err"
        self._record(running.folder, "failed", "supervisor", message, errors.splitlines()[-20:])
        running.folder.clear_running()
        return Outcome("failed", message)

    def _show(self) -> None:
        now = time.monotonic()
        ages = [now - r.started for r in self._running]
        progress = [
            progress_of(r.cell.planned.name, r.folder, len(r.lease.slots)) for r in self._running
        ]
        self.display.tick(self._tally, progress, self._tally.seconds_left(ages))

    # How cells end

    def _end(
        self, report: SweepReport, cell: Cell, outcome: Outcome, seconds: float | None
    ) -> None:
        report.outcomes[cell.planned.cell_id] = outcome
        self._tally.count(outcome, seconds)
        self.display.ended(cell, outcome, seconds)

    def _record(
        self,
        folder: CellFolder,
        outcome: Literal["failed", "skipped", "interrupted"],
        cause: Literal["host", "supervisor", "interrupted"],
        message: str,
        lines: Sequence[str] = (),
    ) -> None:
        now = time.time()
        number = folder.next_attempt_number()
        folder.save_attempt(
            Attempt(number, outcome, cause, message, None, None, tuple(lines), now, now)
        )

    def _end_all(self, report: SweepReport, deadline: float) -> None:
        """End every running cell: they record themselves as interrupted, until ``deadline``."""
        # A second Ctrl-C must not leave processes behind.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for running in self._running:
                running.process.terminate()
            for running in self._running:
                try:
                    running.process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    running.process.kill()
                    running.process.wait()
                end_orphans(running.process.pid)
                self._leases.release(running.lease)
                report.outcomes[running.cell.planned.cell_id] = Outcome("interrupted")
            self._running.clear()
            for cell, _, _ in self._waiting:
                report.outcomes[cell.planned.cell_id] = Outcome("interrupted")
        finally:
            signal.signal(signal.SIGINT, previous)

"""Runs the cells of a sweep on this host: leases devices, starts supervisors, takes answers."""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence
from pathlib import Path

from scalewise.gpu import Host, HostMismatch, Hosts, Lease, Leases, Occupancy
from scalewise.records import CellFolder, DeviceInfo
from scalewise.supervisor import Outcome
from scalewise.sweep.device_health import DeviceQuarantine
from scalewise.sweep.display import Display, progress_of
from scalewise.sweep.engine import Engine, Policy, SweepReport
from scalewise.sweep.fork_server import NotWarmError, WarmServer, may_fork
from scalewise.sweep.plan import Cell
from scalewise.sweep.preflight import devices_for, differs_here
from scalewise.sweep.running_cells import RunningCell, attempt_until_now, start, start_sampler
from scalewise.sweep.schedule import DeviceWait, Line, Turn, remaining_of

_POLL_S = 0.5
_SETTLING_POLL_S = 0.1


class LocalEngine(Engine):
    """One sweep on this host: see :class:`Engine`.

    Args:
        occupancy: who else uses its GPUs.
        warm: fork the ranks of cells that may be, from one process that has imported everything.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        display: Display,
        occupancy: Occupancy | None = None,
        warm: bool = False,
    ) -> None:
        super().__init__(folder, policy, display)
        self._hosts = Hosts(display.note)
        self._leases = Leases(occupancy or Occupancy())
        self._line = Line(policy == "packed", self._durations)
        self._device_wait = DeviceWait(display.note)
        self._device_quarantine = DeviceQuarantine(folder)
        self._running: list[RunningCell] = []
        self._warm = warm
        self._server: WarmServer | None = None
        self._settling = False
        """Whether a cell waits for devices only until a process has vanished from there."""
        self._said: set[str] = set()

    def run(self, cells: Sequence[Cell]) -> SweepReport:
        try:
            return super().run(cells)
        finally:
            self._end_server()

    def _to_run(self) -> list[Cell]:
        return [turn.cell for turn in self._line.waiting]

    def _slots(self) -> int | None:
        return self._hosts.slots()

    # Before anything starts

    def _ask_for(self, cell: Cell) -> None:
        # Last in line: whatever disturbed an earlier try may have passed by then.
        self._line.waiting.append(self._turn(cell))

    def _turn(self, cell: Cell) -> Turn:
        """Raises :class:`HostMismatch` where the cell cannot run here."""
        host = self._hosts.of(cell.request.cell.hardware)
        wanted = devices_for(cell.request.cell, host)
        for note in differs_here(cell.request.cell, wanted, host):
            if note not in self._said:
                self._said.add(note)
                self.display.note(note)
        turn = Turn(cell, wanted, host)
        refusal = self._refusal(turn)
        if refusal is not None:
            raise HostMismatch(refusal)
        return turn

    # While cells run

    def _loop(self, report: SweepReport) -> None:
        with selectors.DefaultSelector() as selector:
            while self._line.waiting or self._running:
                while self._start_what_fits(selector, report):
                    continue  # a cell has left without a try: the next one's turn
                for key, _ in selector.select(_SETTLING_POLL_S if self._settling else _POLL_S):
                    running: RunningCell = key.data
                    selector.unregister(key.fileobj)
                    self._take_answer(running, report)
                self._show()

    def _start_what_fits(self, selector: selectors.BaseSelector, report: SweepReport) -> bool:
        """Start cells; True if one left the line without a try, so that others may go."""
        before = len(report.outcomes)
        self._settling = False
        for queue in self._line.next_up(self._running, self._usable):
            for turn in queue:
                if not self._try_to_start(turn, selector, report):
                    # A wide cell is not overtaken for ever: what comes after it waits with it.
                    break
        return len(report.outcomes) > before

    def _try_to_start(
        self, turn: Turn, selector: selectors.BaseSelector, report: SweepReport
    ) -> bool:
        """False for a cell that goes on waiting for its devices."""
        beside = [(one.cell, one.width, one.age_s) for one in self._running]
        if not self._affords(turn.cell, turn.width, beside):
            self._leave(turn)
            self._leave_out(turn.cell, report)
            return True
        lease = self._leases.try_lease(self._usable(turn), turn.width)
        if lease is None:
            waits = self._wait(turn, report)
            self._settling = self._settling or (waits and self._leases.foreign_settles)
            return not waits
        self._device_wait.end()
        self._line.waiting.remove(turn)
        self._start(turn, lease, selector)
        return True

    def _start(self, turn: Turn, lease: Lease, selector: selectors.BaseSelector) -> None:
        neighbours = tuple(r.name for r in self._running)
        folder = self.folder.cell(turn.cell.planned.name)
        sampler = start_sampler(turn.cell.request.cell, folder, lease.slots)
        running = self.start_cell(turn.cell, folder, lease, turn.host, neighbours)
        running.sampler = sampler
        for neighbour in self._running:
            neighbour.tell(running.name)
        self._running.append(running)
        self.display.started(turn.cell, running.width)
        assert running.process.stdout is not None
        selector.register(running.process.stdout, selectors.EVENT_READ, running)

    def start_cell(
        self,
        cell: Cell,
        folder: CellFolder,
        lease: Lease,
        host: Host,
        neighbours: tuple[str, ...],
    ) -> RunningCell:
        """Start a cell's supervisor, which starts its ranks on the leased devices."""
        asked = (cell, folder, lease, host, neighbours, self.lock.descriptors)
        if self._warm and may_fork(cell.request.plain, cell.request.cell):
            self._server = self._server or WarmServer(self.folder.path)
            try:
                return start(*asked, self._server)
            except NotWarmError as error:
                self.display.note(f"warm     {error}; from here on, cells start without it")
                self._end_server()
                self._warm = False
        return start(*asked)

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _wait(self, turn: Turn, report: SweepReport) -> bool:
        """Whether a cell whose devices cannot be leased goes on waiting for them."""
        verdict = self._device_wait.with_(turn.cell, self._leases, bool(self._running))
        if isinstance(verdict, bool):
            return verdict
        self._leave(turn)
        folder = self.folder.cell(turn.cell.planned.name)
        assert verdict.state in ("failed", "skipped")
        folder.save_attempt(attempt_until_now(folder, verdict.state, "host", verdict.message))
        self._end(report, turn.cell, verdict, None, final=True)
        return False

    def _leave(self, turn: Turn) -> None:
        self._line.waiting.remove(turn)
        self._line.forget_choice()

    def _take_answer(self, running: RunningCell, report: SweepReport) -> None:
        """The supervisor has answered or died; either way its try is over."""
        outcome = running.take_answer()
        if outcome is None:
            message, lines = running.how_it_died()
            began_at = time.time() - running.age_s
            tried = attempt_until_now(
                running.folder, "failed", "supervisor", message, lines, began_at
            )
            running.folder.save_attempt(tried)
            running.folder.clear_running()
            outcome = Outcome("failed", message)
        self._leases.release(running.lease)
        self._running.remove(running)
        self._line.forget_choice()
        seconds = running.age_s
        self.budget.spend(running.width, seconds)
        if running.cell.request.cell.sweep.quarantine:
            self._examine(running, outcome, report)
        self._end(report, running.cell, outcome, seconds)

    def _show(self) -> None:
        progress = [progress_of(r.name, r.folder, r.width) for r in self._running]
        waiting = [remaining_of(turn.cell, turn.width) for turn in self._line.waiting]
        running = [
            remaining_of(r.cell, r.width, r.age_s, p)
            for r, p in zip(self._running, progress, strict=True)
        ]
        self._tick(progress, waiting + running)

    # Bad devices

    def _usable(self, turn: Turn) -> Sequence[DeviceInfo]:
        slots, quarantines = turn.host.slots, turn.cell.request.cell.sweep.quarantine
        return self._device_quarantine.usable(slots) if quarantines else slots

    def _refusal(self, turn: Turn) -> str | None:
        """Why too few devices are left for a cell; None where enough are."""
        if not turn.cell.request.cell.sweep.quarantine:
            return None
        return self._device_quarantine.refusal(turn.width, turn.host.slots)

    def _examine(self, running: RunningCell, outcome: Outcome, report: SweepReport) -> None:
        """Put aside the devices that the cell's records speak against, and what needs them."""
        config_id = running.cell.planned.config_id
        for device in self._device_quarantine.examine(
            running.folder, config_id, running.lease.slots, outcome
        ):
            self.display.note(f"quarantine {device}; it gets no more cells of this sweep")
        for turn in list(self._line.waiting):
            refusal = self._refusal(turn)
            if refusal is not None:
                self._leave(turn)
                self._skip([turn.cell], report, refusal)

    # When the sweep is interrupted

    def _end_all(self, report: SweepReport, deadline: float) -> None:
        """End every running cell: they record themselves as interrupted, until ``deadline``."""
        for running in self._running:
            running.process.terminate()
        for running in self._running:
            running.end(deadline)
            self._leases.release(running.lease)
            report.outcomes[running.cell.planned.cell_id] = Outcome("interrupted")
        self._running.clear()
        for turn in self._line.waiting:
            report.outcomes[turn.cell.planned.cell_id] = Outcome("interrupted")

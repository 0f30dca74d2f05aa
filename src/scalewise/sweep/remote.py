"""Cells on hosts that answer, each reached through a link that dies with the sweep.

SLURM takes jobs and runs them when it likes; here a cell has a link to each of its hosts.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from scalewise.sweep.demand import Demand
from scalewise.sweep.display import Display, progress_of
from scalewise.sweep.ended_elsewhere import result_of
from scalewise.sweep.engine import Engine, Policy
from scalewise.sweep.host_agent import SILENCE_S
from scalewise.sweep.job import Origin, Outcome
from scalewise.sweep.lease import HostMismatch
from scalewise.sweep.line import remaining_of
from scalewise.sweep.order import Order, forwarded
from scalewise.sweep.plan import Cell
from scalewise.sweep.remote_cell import HostLink, Lost, RemoteCell
from scalewise.sweep.sweep_report import SweepReport

_LOOK_S = 0.5
_ALIVE_EVERY_S = 5.0
_OTHERS_S = 15.0
"""How long the other hosts of a cell may take to end once one of them has failed."""
_LOST_S = SILENCE_S + 10.0
"""After so long, a host that cannot be reached has ended its part of a cell. A second try that
started earlier would share the cell's folder with the first."""


class RemoteEngine(Engine):
    """One sweep over links to hosts.

    ``exclusive`` gives a cell its hosts to itself, in the plan's order; ``packed`` fills them,
    widest cells first. In neither does a cell overtake one that waits for room.
    """

    def __init__(self, folder: Path, policy: Policy, display: Display, env: dict[str, str]) -> None:
        super().__init__(folder, policy, display)
        self._env = env
        self._queue: list[tuple[Cell, Demand]] = []
        self._cells: list[RemoteCell] = []
        self._told = time.monotonic()
        self._not_before: dict[str, float] = {}
        """By cell id: when one that was lost with its host may start again (monotonic time)."""

    @abstractmethod
    def _links(self, orders: Sequence[Order], wanted: Demand) -> Sequence[HostLink] | None:
        """Start a cell, one order a host; None while there is no room for it.

        Raises :class:`HostMismatch` where there never will be.
        """

    def _to_run(self) -> list[Cell]:
        return [cell for cell, _ in self._queue]

    # While cells run

    def _loop(self, report: SweepReport) -> None:
        if self.policy == "packed":
            self._sort_widest_first()
        while self._queue or self._cells:
            self._start_what_has_room(report)
            for running in list(self._cells):
                self._look(running, report)
            self._say_alive()
            self._show()
            if self._queue or self._cells:
                time.sleep(_LOOK_S)

    def _sort_widest_first(self) -> None:
        """Narrow cells fit into what wide ones leave; among equals, the longest first."""

        def key(entry: tuple[Cell, Demand]) -> tuple[int, float]:
            return -entry[1].width, -(self._expected_s(entry[0]) or 0.0)

        self._queue.sort(key=key)

    def _start_what_has_room(self, report: SweepReport) -> None:
        while self._queue:
            cell, wanted = self._queue[0]
            if time.monotonic() < self._not_before.get(cell.planned.cell_id, 0.0):
                return
            if self._is_too_dear(cell, wanted):
                self._queue.pop(0)
                self._leave_out(cell, report)
                continue
            try:
                running = self._start_remote(cell, wanted)
            except HostMismatch as mismatch:
                self._queue.pop(0)
                self._skip([cell], report, str(mismatch))
                continue
            if running is None:
                return
            self._queue.pop(0)
            self._meet_neighbours(running)
            self._cells.append(running)
            self.display.started(cell, wanted.width)

    def _is_too_dear(self, cell: Cell, wanted: Demand) -> bool:
        beside = [(r.cell, r.wanted.width, r.age_s) for r in self._cells]
        return not self._affords(cell, wanted.width, beside)

    def _start_remote(self, cell: Cell, wanted: Demand) -> RemoteCell | None:
        folder = self.folder.cell(cell.planned.name)
        first, now, key = folder.next_attempt_number(), time.time(), uuid.uuid4().hex
        orders = [
            Order(
                folder=str(folder.path.resolve()),
                cell=cell.planned,
                wanted=wanted,
                origin=Origin.of_this_process(),
                key=key,
                index=index,
                environment=forwarded(os.environ, self._env),
            )
            for index in range(wanted.nodes)
        ]
        links = self._links(orders, wanted)
        return None if links is None else RemoteCell(cell, folder, wanted, links, first, now)

    def _meet_neighbours(self, running: RemoteCell) -> None:
        """Tell cells that share a host of each other."""
        for other in self._cells:
            for link in other.links:
                if link.host in running.hosts:
                    link.tell(running.cell.planned.name)
            for link in running.links:
                if link.host in other.hosts:
                    link.tell(other.cell.planned.name)

    def _say_alive(self) -> None:
        now = time.monotonic()
        if now - self._told > _ALIVE_EVERY_S:
            self._told = now
            for running in self._cells:
                for link in running.links:
                    link.tell("")

    def _look(self, running: RemoteCell, report: SweepReport) -> None:
        running.take_answers()
        if running.ended:
            self._finish_cell(running, report)
        elif running.failed_at is not None:
            waited = time.monotonic() - running.failed_at
            if (running.loss is not None or waited > _OTHERS_S) and not running.stopped:
                running.stopped = True
                for link in running.links:
                    link.stop()
            if waited > 2 * _OTHERS_S:
                for index, link in enumerate(running.links):
                    running.answers.setdefault(index, Lost(f"{link.host} did not end its ranks"))
                    link.drop()

    def _finish_cell(self, running: RemoteCell, report: SweepReport) -> None:
        for link in running.links:
            link.drop()
        self._cells.remove(running)
        self.budget.spend(running.wanted.width, running.age_s)
        if running.lost_a_host:
            self._not_before[running.cell.planned.cell_id] = time.monotonic() + _LOST_S
        if running.folder.result_of(running.cell.planned.cell_id) is not None:
            outcome, seconds = result_of(running.folder)
        else:
            outcome, seconds = running.outcome_without_result(), running.age_s
        self._end(report, running.cell, outcome, seconds)

    def _show(self) -> None:
        progress = [progress_of(r.cell.planned.name, r.folder, r.wanted.width) for r in self._cells]
        waiting = [remaining_of(cell, wanted.width) for cell, wanted in self._queue]
        running = [
            remaining_of(r.cell, r.wanted.width, r.age_s, p)
            for r, p in zip(self._cells, progress, strict=True)
        ]
        self._tick(progress, waiting + running)

    # When the sweep is interrupted

    def _end_all(self, report: SweepReport, deadline: float) -> None:
        """End every running cell: their hosts record it, until ``deadline``."""
        for running in self._cells:
            for link in running.links:
                link.stop()
        while time.monotonic() < deadline and not all(r.ended for r in self._cells):
            for running in self._cells:
                running.take_answers()
            time.sleep(0.1)
        for running in self._cells:
            for link in running.links:
                with contextlib.suppress(OSError):
                    link.drop()
            done = running.folder.result_of(running.cell.planned.cell_id) is not None
            outcome = result_of(running.folder)[0] if done else Outcome("interrupted")
            report.outcomes[running.cell.planned.cell_id] = outcome
        self._cells.clear()
        for cell, _ in self._queue:
            report.outcomes[cell.planned.cell_id] = Outcome("interrupted")

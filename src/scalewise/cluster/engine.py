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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from scalewise.cluster.hosts import SILENCE_S, Demand, Order, forwarded
from scalewise.gpu import HostMismatch
from scalewise.records import Attempt, Cause, CellFolder
from scalewise.supervisor import Origin, Outcome, misses_a_peer
from scalewise.sweep import (
    Cell,
    Display,
    Engine,
    Policy,
    SweepReport,
    attempt_until_now,
    progress_of,
    remaining_of,
)

# How cells ended whose hosts are not the sweep's own, told by the folders they share with it.
#
# Where a host or a supervisor was lost, the sweep puts its own word into the attempt that the cell
# itself recorded.


def result_of(folder: CellFolder) -> tuple[Outcome, float]:
    """How a cell that is done ended, and the seconds it took."""
    return Outcome("done"), folder.load_result().took_s


def attempt_since(folder: CellFolder, first: int) -> Attempt | None:
    """The last attempt with a number of ``first`` or more."""
    attempts = [attempt for attempt in folder.attempts() if attempt.number >= first]
    return attempts[-1] if attempts else None


def record_loss(
    folder: CellFolder, first: int, cause: Cause, message: str, began_at: float
) -> Outcome:
    """Record that a cell lost its host or its supervisor, and return that as its outcome.

    Where a supervisor lived to record that the sweep was gone, or that a peer was, which is all it
    could see, its attempt (number ``first`` or later) gets the true reason.
    """
    recorded = attempt_since(folder, first)
    if recorded is None:
        recorded = attempt_until_now(folder, "failed", cause, message, (), began_at)
    elif recorded.cause == "interrupted" or misses_a_peer(recorded):
        recorded = replace(recorded, outcome="failed", cause=cause, message=message, rank=None)
    folder.save_attempt(recorded)
    folder.clear_running()
    return Outcome("failed", recorded.message)


# A cell that runs on other hosts: a link to each of them, and what they have answered.


@dataclass(frozen=True)
class Lost:
    """A link broke before its host had answered."""

    reason: str
    """One line."""
    is_host: bool = True
    """False where the host lives and only the processes of the cell are gone."""


class HostLink(Protocol):
    """One host's part of one running cell."""

    host: str

    def answer(self) -> Outcome | Lost | None:
        """How it ended; None while it runs. Does not wait."""

    def tell(self, line: str) -> None:
        """Say that the sweep is there, and who shares the host from now on (if not empty)."""

    def stop(self) -> None:
        """Have the host end and record its part."""

    def drop(self) -> None:
        """Break the link, and free what it holds."""


@dataclass
class RemoteCell:
    """A cell that runs."""

    cell: Cell
    folder: CellFolder
    wanted: Demand
    links: Sequence[HostLink]
    first_attempt: int
    began_at: float
    """Unix time."""
    started: float = field(default_factory=time.monotonic)
    answers: dict[int, Outcome | Lost] = field(default_factory=dict)
    """By the index of the host."""
    failed_at: float | None = None
    stopped: bool = False

    @property
    def hosts(self) -> set[str]:
        return {link.host for link in self.links}

    def take_answers(self) -> None:
        for index, link in enumerate(self.links):
            if index in self.answers:
                continue
            answer = link.answer()
            if answer is not None:
                self.answers[index] = answer
                if isinstance(answer, Lost) or answer.state != "done":
                    self.failed_at = self.failed_at or time.monotonic()

    @property
    def ended(self) -> bool:
        return len(self.answers) == len(self.links)

    @property
    def loss(self) -> Lost | None:
        return next((a for a in self.answers.values() if isinstance(a, Lost)), None)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def lost_a_host(self) -> bool:
        """False where all answered or only processes died."""
        return any(isinstance(a, Lost) and a.is_host for a in self.answers.values())

    def outcome_without_result(self) -> Outcome:
        """Record why there is no result, where the hosts themselves could not."""
        lost = self.loss
        if lost is not None:
            cause: Cause = "host" if lost.is_host else "supervisor"
            return self._record(cause, lost.reason)
        answers = [a for a in self.answers.values() if isinstance(a, Outcome)]
        failed = [a for a in answers if a.state == "failed"]
        # Who was merely told to stop knows nothing.
        return self._record("host", failed[0].message) if self.stopped and failed else answers[0]

    def _record(self, cause: Cause, message: str) -> Outcome:
        return record_loss(self.folder, self.first_attempt, cause, message, self.began_at)


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

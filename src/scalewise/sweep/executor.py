"""The interface between a sweep and the hosts that run its cells.

The engine owns the queue, the budget, the retries and the display. An executor knows what a cell
demands, starts it where there is room, and tells how it ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from scalewise.records import CellFolder, SweepFolder
from scalewise.supervisor import Outcome
from scalewise.sweep.plan import Cell

Policy = Literal["exclusive", "packed"]


class Sized(Protocol):
    """A demand of any executor."""

    @property
    def width(self) -> int:
        """Number of devices of the cell."""


@dataclass(frozen=True, eq=False)
class Turn:
    """A cell that waits, and what it demands."""

    cell: Cell
    demand: Any
    """As :meth:`Executor.demand` made it; it has a ``width``, the number of devices."""

    @property
    def width(self) -> int:
        return int(self.demand.width)


class RunningCell(ABC):
    """One try at a cell, from its start to its ending."""

    cell: Cell
    folder: CellFolder

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of devices."""

    @property
    @abstractmethod
    def age_s(self) -> float | None:
        """Seconds since its start; None while it waits in a queue of the cluster."""

    @property
    def hosts(self) -> frozenset[str]:
        """Hosts on which it is told of its neighbours."""
        return frozenset()

    def tell(self, neighbour: RunningCell) -> None:  # noqa: B027 - not every cluster can
        """Let the cell know that another one shares a host with it from now on."""


@dataclass(frozen=True)
class Ending:
    """The end of one try."""

    outcome: Outcome
    seconds: float | None
    """The time for which it had its devices; None where nobody knows."""
    lost_s: float = 0.0
    """The same of earlier runs of the same job, which its cluster has requeued."""
    is_preempted: bool = False
    """The cell made way for another job: it runs again, and no retry is counted."""


R = TypeVar("R", bound=RunningCell)


class Executor(ABC, Generic[R]):
    """The hosts of one sweep."""

    policy: Policy
    """``exclusive`` runs one cell at a time on a host, ``packed`` fills it."""
    limit_s: float | None = None
    """No cell runs longer; None where no limit is known."""

    def open(
        self, folder: SweepFolder, locks: tuple[int, ...], note: Callable[[str], None]
    ) -> None:
        """Get ready to run the cells of ``folder``.

        Args:
            folder: the sweep's, which exists.
            locks: descriptors that supervisors and ranks on this host inherit.
            note: takes lines for the user.
        """

    def close(self) -> None:
        """Give back whatever was opened."""

    def slots(self) -> int | None:
        """Devices of the host that runs the cells; None where that is not one host."""
        return None

    @abstractmethod
    def demand(self, cell: Cell) -> Sized:
        """Raises :class:`HostMismatch` where the cell can never run."""

    def find_running(self, cell: Cell, folder: CellFolder) -> R | None:
        """The try that an earlier sweep process has left running; None where there is none."""
        return None

    def order(
        self,
        waiting: Sequence[Turn],
        running: Sequence[R],
        expected_s: Callable[[Cell], float | None],
    ) -> Sequence[Turn]:
        """Those of ``waiting`` that may start now, in the order in which they are tried."""
        return waiting

    @abstractmethod
    def start(self, turn: Turn, folder: CellFolder) -> R | Outcome | None:
        """Start a cell; None while it has no room, an outcome where it ends without a try.

        Raises :class:`HostMismatch` where it can no longer run.
        """

    @abstractmethod
    def poll(self, running: Sequence[R]) -> list[tuple[R, Ending]]:
        """Wait for a moment, and return the tries that have ended."""

    def examine(self, running: R, outcome: Outcome) -> None:
        """Learn from a try that has ended."""

    @abstractmethod
    def cancel(self, running: Sequence[R], deadline: float) -> None:
        """End every try: each records itself as interrupted.

        They have until ``deadline`` of ``time.monotonic``; SIGINT is ignored meanwhile.
        """

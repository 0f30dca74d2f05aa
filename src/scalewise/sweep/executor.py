"""The interface between a sweep and the hosts that run its cells.

The engine owns the queue, the retries and the display. An executor knows the demand of
a cell, starts it when there is room, and reports how it ended.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from scalewise.config import refuse_as
from scalewise.records import CellFolder, Ending, SweepFolder, build
from scalewise.sweep.plan import Cell
from scalewise.sweep.preflight import Cluster, ThisHost

Policy = Literal["exclusive", "packed"]
Note = Callable[[str], None]
"""Takes a line for the user."""


@dataclass(frozen=True)
class LauncherConfig:
    """The keys of ``hydra.launcher`` that all executors have in common."""

    policy: Policy = "exclusive"
    """``exclusive``: each cell has its host, or its nodes, to itself; ``packed``: they share."""
    wrap: str | None = None
    """Command around each rank's own: ``nsys profile -o {folder}/rank{rank}``."""


@dataclass(eq=False)
class QueuedCell:
    """A cell that waits, with its demand."""

    cell: Cell
    folder: CellFolder
    demand: Any
    """What :meth:`Executor.demand` returned."""

    @property
    def world_size(self) -> int:
        return int(self.demand.world_size)


@dataclass(eq=False)
class RunningCell(QueuedCell):
    """One try at a cell, from its start to its ending."""

    started: float | None = field(default_factory=time.monotonic, kw_only=True)
    """By ``time.monotonic``; None while it waits in a queue of the cluster."""
    is_announced: bool = field(default=False, kw_only=True)
    """Whether its start was shown."""

    @property
    def age_s(self) -> float | None:
        """Seconds since its start."""
        return None if self.started is None else time.monotonic() - self.started


R = TypeVar("R", bound=RunningCell)


class Executor(ABC, Generic[R]):
    """Runs the cells of one sweep on its hosts."""

    CONFIG: ClassVar[type[LauncherConfig]]
    """The keys of ``hydra.launcher`` that choose it."""

    def __init__(self, config: LauncherConfig) -> None:
        self.config = config
        self.policy = config.policy
        self.host: ThisHost = Cluster()
        """Where its cells would run."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The executor with these options of ``hydra.launcher``. Raises :class:`ConfigError`."""
        with refuse_as("hydra.launcher"):
            return cls(build(cls.CONFIG, dict(options)))

    def open(self, folder: SweepFolder, locks: tuple[int, ...], note: Note) -> None:
        """Get ready to run the cells of ``folder``; its notes go to ``note``.

        ``locks`` are descriptors that supervisors and ranks on this host inherit.
        """

    def close(self) -> None:
        """Release what :meth:`open` acquired."""

    @abstractmethod
    def demand(self, cell: Cell) -> Any:
        """The resources that a cell needs, as this executor describes them; ``world_size`` is its
        number of devices. Raises :class:`HostMismatch` if it can never run."""

    def find_running(self, cell: Cell, folder: CellFolder) -> R | None:
        """A try that an earlier process of the sweep left running; None if there is none."""
        return None

    def order(self, waiting: Sequence[QueuedCell], running: Sequence[R]) -> Sequence[QueuedCell]:
        """The queued cells that may start now, in the order in which to try them.

        ``waiting`` is round by round, each in the order of the plan.
        """
        return waiting

    @abstractmethod
    def start(self, queued: QueuedCell) -> R | Ending | None:
        """Start a cell. Returns None if it has no room, an ending if it ends without a try.

        Raises :class:`HostMismatch` if it can no longer run.
        """

    @abstractmethod
    def poll(self, running: Sequence[R]) -> list[tuple[R, Ending]]:
        """Wait briefly. Returns the tries that have ended. The engine records what nobody has.

        ``elapsed_s`` is how long each had its devices, None if unknown. A cell whose devices were
        ``preempted`` runs again, and no retry is counted.
        """

    @abstractmethod
    def cancel(self, running: Sequence[R], deadline: float) -> None:
        """End every try by ``deadline`` of ``time.monotonic``: each records itself as interrupted.

        SIGINT is ignored meanwhile.
        """

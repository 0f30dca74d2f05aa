"""How the cells of a sweep on this host get their supervisors: forked where that can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from scalewise.records import CellFolder
from scalewise.sweep.lease import Host, Lease
from scalewise.sweep.plan import Cell
from scalewise.sweep.running import RunningCell, start
from scalewise.sweep.warm_start import NotWarmError, WarmServer, may_fork


class Supervisors:
    """Starts them for one sweep.

    Args:
        folder: the sweep's.
        warm: fork the ranks too, of cells that may be.
        note: where it is said that a server cannot be used.
    """

    def __init__(self, folder: Path, warm: bool, note: Callable[[str], None]) -> None:
        self._warm = WarmServer(folder, "forked") if warm else None
        self._lean = WarmServer(folder, "fresh")
        self._note = note
        self._lost: set[WarmServer] = set()
        self._several = False

    def prepare(self, cells: int) -> None:
        """Be ready for as many more; for one, a process to fork from would come too late to pay.

        Call it while nothing runs: a server's own start takes a core for a moment.
        """
        self._several = self._several or cells > 1
        if self._several and self._warm is None and self._lean not in self._lost:
            self._lean.begin()

    def start(
        self,
        cell: Cell,
        folder: CellFolder,
        lease: Lease,
        host: Host,
        neighbours: tuple[str, ...],
        locks: tuple[int, ...],
    ) -> RunningCell:
        """Start a cell's supervisor, which starts its ranks on the leased devices.

        ``locks``: descriptors that all of them inherit, beside those of the lease.
        """
        locks = (*lease.descriptors, *locks)
        for server in self._servers(cell):
            try:
                return start(cell, folder, lease, host, neighbours, locks, server)
            except NotWarmError as error:
                self._note(f"warm     {error}; from here on, cells start without it")
                server.stop()
                self._lost.add(server)
        return start(cell, folder, lease, host, neighbours, locks)

    def stop(self) -> None:
        """End the processes to fork from; supervisors that run are not touched."""
        self._lean.stop()
        if self._warm is not None:
            self._warm.stop()

    def _servers(self, cell: Cell) -> Iterator[WarmServer]:
        """Those that may start the cell, the most useful one first."""
        wanted = []
        if self._warm is not None and may_fork(cell.request.plain, cell.request.cell):
            wanted.append(self._warm)
        if self._several:
            wanted.append(self._lean)
        return (server for server in wanted if server not in self._lost)

"""Runs the cells of a sweep on this host: leases devices, starts supervisors, reads outcomes.

Which cells start next is decided anew whenever one starts or ends: of the present round whatever
fits, in the order of the plan. The next round waits until all of this one have started, so that
what is compared within a round ran in one stretch of time.
"""

from __future__ import annotations

import math
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from scalewise.gpu import Host, Lease, Leases, Occupancy, units
from scalewise.host import end_child, end_orphans, wrap_command
from scalewise.records import DeviceInfo, Ending, RecordError, SweepFolder
from scalewise.supervisor import Job, Origin
from scalewise.sweep.executor import Executor, LauncherConfig, Note, QueuedCell, RunningCell
from scalewise.sweep.fork_server import NotWarmError, WarmServer, cell_hindrance
from scalewise.sweep.plan import Cell
from scalewise.sweep.preflight import ThisHost, devices_for, explain_differences
from scalewise.sweep.running_cells import SupervisorProcess, settings_of, start_supervisor
from scalewise.sweep.status_view import duration
from scalewise.train import is_ours

_POLL_S = 0.5
_AT_ONCE = 2
"""Warm servers that import beside one another: one took 2.0 s of CPU time, two cores are usual."""
_SETTLING_POLL_S = 0.1


@dataclass(eq=False)
class LocalCell(RunningCell):
    lease: Lease
    supervisor: SupervisorProcess

    def end(self, deadline: float) -> None:
        """Wait until ``deadline`` for a supervisor that was told to stop, then kill it."""
        process = self.supervisor.process
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
            end_child(process)
        end_orphans(process.pid)


@dataclass(frozen=True)
class LocalConfig(LauncherConfig):
    """The config group ``hydra/launcher``, option ``local``."""

    warm: bool = True
    """Fork supervisors and ranks from a process that has imported everything, where every cell
    allows it. Times of forks and of fresh processes are not compared."""

    def __post_init__(self) -> None:
        program = None if self.wrap is None else wrap_command(self.wrap, 0, 0, "")[0]
        if program is not None and shutil.which(program) is None:
            raise ValueError(
                f"wrap: found {program!r}, which is not on this host's PATH; allowed: "
                "a command that runs the one after it, e.g. 'nsys profile -o {folder}/rank{rank}'"
            )


class LocalExecutor(Executor[LocalCell]):
    """Runs cells on this host; ``occupancy`` finds other processes on its GPUs."""

    CONFIG = LocalConfig

    def __init__(self, config: LocalConfig, occupancy: Occupancy | None = None) -> None:
        super().__init__(config)
        self.host = ThisHost()
        self._leases = Leases(occupancy or Occupancy())
        self._not_forked = None if config.warm else "hydra.launcher.warm=false"
        """Why cells are started freshly; None while they are forked."""
        self._servers: dict[int, WarmServer] = {}
        """By the repeat whose cells each forks."""
        self._rounds = 0
        """How many the sweep may have, by the cells that were admitted."""
        self._lean = True
        """Whether no cell has classes of the user's own."""
        self._selector = selectors.DefaultSelector()
        self._settling = False
        """Whether a cell waits only for a process that is vanishing from its devices."""
        self._notes_shown: set[str] = set()

    def open(self, folder: SweepFolder, locks: tuple[int, ...], note: Note) -> None:
        self._folder, self._locks, self._note = folder.path, locks, note
        self._leases.name = f"the sweep in {folder.path.resolve()} (process {os.getpid()})"
        self._device_wait = DeviceWait(note)
        if self._not_forked is None and _began_freshly(folder):
            self._not_forked = "earlier cells of this sweep were started freshly"

    def close(self) -> None:
        self._selector.close()
        self._end_servers()

    def demand(self, cell: Cell) -> LocalDemand:
        host = self.host.of(cell.request.cell.hardware)
        demand = LocalDemand(devices_for(cell.request, host), host)
        self._not_forked = self._not_forked or cell_hindrance(cell.request.cell)
        self._lean = self._lean and is_ours(cell.request.plain)
        more_may_come = cell.request.cell.repeats == "auto"
        self._rounds = max(self._rounds, cell.planned.repeat + 1 + more_may_come)
        for line in explain_differences(cell.request.cell, demand.world_size, host):
            if line not in self._notes_shown:
                self._notes_shown.add(line)
                self._note(line)
        return demand

    # While cells run

    def order(
        self, waiting: Sequence[QueuedCell], running: Sequence[LocalCell]
    ) -> Sequence[QueuedCell]:
        self._settling = False
        if self.policy == "exclusive":
            return [] if running else waiting[:1]
        return choose_cells(waiting, [cell.lease.slots for cell in running])

    def start(self, queued: QueuedCell) -> LocalCell | Ending | None:
        lease = self._leases.try_lease(queued.demand.host.slots, queued.world_size)
        if lease is None:
            others_run = bool(self._selector.get_map())
            ending = self._device_wait.ending(queued.cell, self._leases, others_run)
            self._settling |= ending is None and self._leases.foreign_settles
            return ending
        self._device_wait.end()
        leased = time.monotonic()  # the first of a round waits for imports
        supervisor = self.start_supervisor(queued, lease)
        running = LocalCell(
            queued.cell, queued.folder, queued.demand, lease, supervisor, started=leased
        )
        assert running.supervisor.process.stdout is not None
        self._selector.register(running.supervisor.process.stdout, selectors.EVENT_READ, running)
        return running

    def start_supervisor(self, queued: QueuedCell, lease: Lease) -> SupervisorProcess:
        """Start a cell's supervisor, which starts its ranks on the leased devices."""
        cell, host, path = queued.cell, queued.demand.host, str(queued.folder.path.resolve())
        locks, origin = (*lease.descriptors, *self._locks), Origin.of_this_process()
        settings = settings_of(cell.request.cell, queued.world_size)
        job = Job(path, cell.planned, settings, lease.slots, origin, host.driver, host.topology)
        if self._not_forked is None:
            try:
                server = self._server_of(cell.planned.repeat, origin.python_path)
                return SupervisorProcess(job, server.fork_supervisor(job.errors, locks))
            except NotWarmError as error:
                self._note(f"warm     {error}; from here on, cells start without it")
                self._end_servers()
                self._not_forked = str(error)
        job = replace(job, not_forked=self._not_forked)
        return start_supervisor(job, locks, start_new_session=True)

    def _server_of(self, repeat: int, python_path: Sequence[str]) -> WarmServer:
        """A new one for each round, and where one was killed. Raises :class:`NotWarmError`.

        Servers of rounds that follow import beside it, and are ready before anything is timed.
        """
        self._end_servers(before=repeat)
        known = self._servers.get(repeat)
        if known is not None and known.process.poll() is None and known.lean <= self._lean:
            return known
        self._end_servers()
        for later in range(repeat, max(repeat + 1, min(repeat + _AT_ONCE, self._rounds))):
            self._servers[later] = WarmServer(self._folder, python_path, lean=self._lean)
        for server in self._servers.values():
            server.wait_ready()
        return self._servers[repeat]

    def _end_servers(self, before: float = math.inf) -> None:
        for repeat in [one for one in self._servers if one < before]:
            self._servers.pop(repeat).stop()

    def poll(self, running: Sequence[LocalCell]) -> list[tuple[LocalCell, Ending]]:
        ended = []
        for key, _ in self._selector.select(_SETTLING_POLL_S if self._settling else _POLL_S):
            cell: LocalCell = key.data
            self._selector.unregister(key.fileobj)
            ending = replace(cell.supervisor.ending(), elapsed_s=cell.age_s)
            end_orphans(cell.supervisor.process.pid)
            self._leases.release(cell.lease)
            ended.append((cell, ending))
        return ended

    def cancel(self, running: Sequence[LocalCell], deadline: float) -> None:
        for cell in running:
            cell.supervisor.process.terminate()
        for cell in running:
            cell.end(deadline)
            self._leases.release(cell.lease)


def _began_freshly(folder: SweepFolder) -> bool:
    """Whether the first cell that an earlier run of the sweep finished is not a fork."""
    for planned, cell in folder.cells() if folder.plan_path.exists() else ():
        with suppress(RecordError):  # it has no result, or compares with nothing
            if cell.load_result(planned.cell_id):
                return cell.load_provenance().started != "forked"
    return False


@dataclass(frozen=True)
class LocalDemand:
    world_size: int
    host: Host


def choose_cells(
    waiting: Sequence[QueuedCell], leased: Sequence[Sequence[DeviceInfo]]
) -> list[QueuedCell]:
    """The queued cells to start now beside the running ones.

    A narrow cell fills what a wider one before it cannot use yet, but only one of its round: so a
    wide cell waits for no more than that. ``waiting`` are in the order of the plan, ``leased`` the
    devices of each running cell.
    """
    busy = {unit for slots in leased for slot in slots for unit in units(slot)}
    present = min((queued.cell.planned.repeat for queued in waiting), default=0)
    chosen: list[QueuedCell] = []
    for queued in waiting:
        free = [slot for slot in queued.demand.host.slots if busy.isdisjoint(units(slot))]
        if queued.cell.planned.repeat == present and len(free) >= queued.world_size:
            busy.update(unit for slot in free[: queued.world_size] for unit in units(slot))
            chosen.append(queued)
    return chosen


class DeviceWait:
    """Decides about a cell whose devices others have; ``note`` is told once what is waited for."""

    def __init__(self, note: Note, clock: Callable[[], float] = time.monotonic) -> None:
        self._note = note
        self._clock = clock
        self._since: float | None = None
        self._waits_since: float | None = None

    def end(self) -> None:
        """Something could be leased; says how long was waited."""
        if self._waits_since is not None:
            self._note(f"waited   {duration(self._clock() - self._waits_since)} for devices")
        self._since = self._waits_since = None

    def ending(self, cell: Cell, leases: Leases, others_run: bool) -> Ending | None:
        """How the cell ends without a try; None while it waits.

        ``others_run`` tells whether cells of this sweep hold devices that they will give back.
        """
        who = "; ".join(leases.foreign.values())
        if not who:
            if not others_run:
                self._say(f"waiting: {leases.holder or 'another sweep'} holds this host's devices")
            return None
        if leases.foreign_settles:
            return None
        sweep = cell.request.cell.sweep
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since >= sweep.foreign_wait_s:
            self.end()
            why = f"{who}, for longer than sweep.foreign_wait_s={sweep.foreign_wait_s:g}"
            return Ending("skipped", "host", why)
        self._say(f"waiting: {who}; sweep.foreign_wait_s=0 would not wait")
        return None

    def _say(self, text: str) -> None:
        if self._waits_since is None:
            self._waits_since = self._clock()
            self._note(text)

"""A cell that runs on this host: its supervisor, as the sweep sees it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from scalewise.records import CellFolder
from scalewise.sweep.cell_settings import settings_of
from scalewise.sweep.job import Job, Origin, Outcome, supervisor_command
from scalewise.sweep.lease import Host, Lease
from scalewise.sweep.plan import Cell
from scalewise.sweep.process_tree import end_orphans
from scalewise.sweep.warm import ForkedSupervisor, WarmServer


@dataclass
class RunningCell:
    """One try at a cell, from the start of its supervisor to its answer."""

    cell: Cell
    folder: CellFolder
    lease: Lease
    process: subprocess.Popen[bytes] | ForkedSupervisor
    started: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return self.cell.planned.name

    @property
    def width(self) -> int:
        return len(self.lease.slots)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    def tell(self, neighbour: str) -> None:
        """Let the cell know who shares the host with it from now on."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is ending: nobody disturbs it any more
            self.process.stdin.write(f"{neighbour}\n".encode())
            self.process.stdin.flush()

    def take_answer(self) -> Outcome | None:
        """How it ended, once its supervisor has; None if that died without an answer.

        Whoever is left of the cell's processes is killed.
        """
        assert self.process.stdout is not None and self.process.stdin is not None
        answer = self.process.stdout.read()
        self.process.wait()
        self.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # a job line that was never read
            self.process.stdin.close()
        # Its session is its own: whoever is still in it is an orphan of this cell.
        end_orphans(self.process.pid)
        return Outcome.from_line(answer) if answer.endswith(b"\n") else None

    def how_it_died(self) -> tuple[str, list[str]]:
        """Of a supervisor without an answer: one line, and the last lines it wrote."""
        code = self.process.wait()
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        message = f"the supervisor was {how}" if code < 0 else f"the supervisor {how}"
        if code >= 0:
            message += "; see supervisor.err"
        errors = (self.folder.path / "supervisor.err").read_text(errors="replace")
        return message, errors.splitlines()[-20:]

    def end(self, deadline: float) -> None:
        """Wait until ``deadline`` for a supervisor that was told to stop, then kill."""
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        end_orphans(self.process.pid)


def start(
    cell: Cell,
    folder: CellFolder,
    lease: Lease,
    host: Host,
    neighbours: tuple[str, ...],
    locks: tuple[int, ...],
    warm: WarmServer | None = None,
) -> RunningCell:
    """Start a cell's supervisor, which starts its ranks.

    With ``warm`` both are forks of it. Raises NotWarmError where that cannot fork. ``locks`` are
    descriptors that supervisor and ranks inherit, beside those of the lease.
    """
    locks = (*lease.descriptors, *locks)
    origin = Origin.of_this_process()
    job = Job(
        folder=str(folder.path.resolve()),
        cell=cell.planned,
        settings=settings_of(cell.request.cell, len(lease.slots)),
        slots=lease.slots,
        cwd=origin.cwd,
        python_path=origin.python_path,
        command=origin.command,
        driver=host.driver,
        topology=host.topology,
        co_tenants=neighbours,
    )
    errors = folder.path / "supervisor.err"
    process = _spawned(errors, locks) if warm is None else warm.supervisor(errors, locks)
    assert process.stdin is not None
    # It may die at birth: its empty answer is handled like any other death.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(job.to_line())
        process.stdin.flush()
    return RunningCell(cell, folder, lease, process)


def _spawned(errors: Path, locks: tuple[int, ...]) -> subprocess.Popen[bytes]:
    with errors.open("wb") as file:
        return subprocess.Popen(
            supervisor_command(locks),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
            pass_fds=locks,
        )

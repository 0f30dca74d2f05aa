"""A process that has imported what ranks train with, and becomes supervisors of cells by forking.

    python -m scalewise.sweep.fork_server <process id of the sweep> lean|whole <padding> < socket

The supervisor is a child of the sweep and the parent of its ranks, as with fresh processes; its
ranks are forks of it. This process trains nothing: it never computes on a tensor nor asks for a
GPU, because a fork of a process that ever ran a parallel region hangs in its first matrix product,
and one that touched CUDA cannot use it. It imports no class of the user's own: the forks do. Each
round of repeats has a server of its own: forks of one share its addresses and its hash seed, which
are to differ from run to run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from scalewise.host import die_with_parent, end_child, fork_hindrance, rename

if TYPE_CHECKING:
    from scalewise.config import CellConfig


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A pool of threads must not begin with an import: forks would wait for it for ever."""
_LONGEST_COMMAND = 4096
"""Bytes; a fork shows its own command in their place."""
_MOST_DESCRIPTORS = 250
"""In one message; the kernel takes 253."""
_READY = b"ready"
_ANSWER_S = 60.0
"""Imports included, on a slow disk."""


class NotWarmError(Exception):
    """The server did not start a supervisor; the message says why."""


def cell_hindrance(cell: CellConfig) -> str | None:
    """Why a cell is to be started freshly; None if a fork does what a fresh start would."""
    if cell.sweep.wrap is not None:
        return "hydra.launcher.wrap starts the ranks"
    return None if cell.script is None else "a script of one's own is started as it is"


class ForkedSupervisor(psutil.Process):
    """A child of this process that it did not start: what the sweep asks of a ``Popen``."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        super().__init__(pid)
        self.stdin = stdin
        self.stdout = stdout

    def terminate(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):  # as of a Popen that was waited for
            super().terminate()


class WarmServer:
    """The sweep's side; ``warm.err`` in ``folder`` takes its errors, and is removed if empty.

    ``lean``: it forks cells of our own classes alone.
    """

    def __init__(self, folder: Path, python_path: Sequence[str], *, lean: bool = True) -> None:
        self.lean = lean
        self._log = folder / "warm.err"
        self._is_ready = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_ANSWER_S)
        command = [sys.executable, "-P", "-m", "scalewise.sweep.fork_server", str(os.getpid())]
        with theirs, self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "lean" if lean else "whole", "-" * _LONGEST_COMMAND],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(python_path)},
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until it has imported everything. Raises :class:`NotWarmError`."""
        if not self._is_ready:
            self._is_ready = self._receive() == _READY

    def fork_supervisor(self, errors: Path, locks: tuple[int, ...] = ()) -> ForkedSupervisor:
        """A new supervisor that waits for its job. Raises :class:`NotWarmError`.

        ``locks``: descriptors that it and its ranks inherit, and the server does not keep.
        """
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            job_read, job_write = os.pipe()
            answer_read, answer_write = os.pipe()
            errors.unlink(missing_ok=True)  # it may be a link to another file
            error_write = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            for descriptor in (job_read, answer_write, error_write):
                theirs.callback(os.close, descriptor)
            for descriptor in (job_write, answer_read):
                ours.callback(os.close, descriptor)
            pid = self._ask([job_read, answer_write, error_write, *locks])
            ours.pop_all()
        return ForkedSupervisor(pid, os.fdopen(job_write, "wb"), os.fdopen(answer_read, "rb"))

    def stop(self) -> None:
        """End the server; supervisors that it forked are not touched."""
        self._channel.close()
        end_child(self.process)
        if self._log.exists() and not self._log.stat().st_size:
            self._log.unlink()

    def _ask(self, descriptors: list[int]) -> int:
        if len(descriptors) > _MOST_DESCRIPTORS:
            raise NotWarmError(f"the warm server takes no {len(descriptors)} locks at once")
        self.wait_ready()
        try:
            socket.send_fds(self._channel, [b"supervisor"], descriptors)
        except OSError as error:
            raise self._lost(error) from None
        answer = self._receive()
        if not answer.isdigit():
            raise NotWarmError(f"the warm server started no supervisor: {answer.decode()}")
        return int(answer)

    def _receive(self) -> bytes:
        try:
            if answer := self._channel.recv(256):
                return answer
        except OSError as error:
            raise self._lost(error) from None
        raise self._lost("it ended")

    def _lost(self, why: object) -> NotWarmError:
        return NotWarmError(f"the warm server did not answer ({why}); see {self._log}")


def main() -> int:
    """Fork supervisors until the sweep closes its end of the socket."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's to handle
    from scalewise.train import import_training

    typed = {name: os.environ[name] for name in _ONE_THREAD if name in os.environ}
    # Who asks whether there are GPUs asks the driver, and not CUDA, which no fork could use then.
    # It stays, as Lightning leaves it in fresh ranks.
    os.environ.update({**_ONE_THREAD, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
    import_training(lean=sys.argv[2] == "lean")
    for name in _ONE_THREAD:
        del os.environ[name]
    os.environ.update(typed)
    with socket.socket(fileno=os.dup(0)) as channel:
        channel.send(_READY)
        while True:
            request, descriptors, _, _ = socket.recv_fds(channel, 16, _MOST_DESCRIPTORS)
            if not request:
                return 0
            channel.send(answer(channel, descriptors))
            for descriptor in descriptors:  # a lock must not outlive its cell in here
                os.close(descriptor)


def answer(channel: socket.socket, descriptors: list[int]) -> bytes:
    """The process id of a new supervisor, or why there is none."""
    why = fork_hindrance(os.environ)
    if why is not None:
        return why.encode()[:200]
    from scalewise.supervisor import run_and_exit

    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        # Its own end makes the supervisor an orphan, which the sweep, a subreaper, adopts.
        pid = os.fork()
        if pid:
            os.write(write, str(pid).encode())
            os._exit(0)
        os.close(read)
        os.close(write)
        channel.close()
        run_and_exit(lambda: _supervise(descriptors))
    os.close(write)
    os.waitpid(between, 0)
    pid_text = os.read(read, 16)
    os.close(read)
    return pid_text


def _supervise(descriptors: list[int]) -> int:
    from scalewise.supervisor import fork, redirect, supervisor_command
    from scalewise.supervisor import main as supervisor_main
    from scalewise.sweep import worker

    os.setsid()
    rename("supervisor", supervisor_command(descriptors[3:]))
    redirect(*descriptors[:3])
    return supervisor_main(functools.partial(fork, worker.main), descriptors[3:])


if __name__ == "__main__":
    sys.exit(main())

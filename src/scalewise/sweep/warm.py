"""A process that has imported torch and Lightning, and becomes supervisors of cells by forking.

    python -m scalewise.sweep.warm <descriptor of a socket> <process id of the sweep>

For cells whose times do not matter. It trains nothing: it never computes on a tensor nor asks for
a GPU, because a fork of a process that ever ran a parallel region hangs in its first matrix
product, and one that touched CUDA cannot use it. Before every fork it counts its own threads, and
refuses if there is more than one. Of each cell it forks the supervisor, which forks the ranks:
the supervisor stays their parent, and the sweep the supervisor's, as with fresh processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from scalewise.lifetime import die_with_parent
from scalewise.sweep import supervisor, worker  # noqa: F401 - what a fork needs is here already
from scalewise.sweep.rank_start import fork, redirect

_LONGEST_ANSWER = 200
"""Bytes; the sweep reads no more than 256."""


def main() -> int:
    """Fork supervisors until the sweep closes its end of the socket."""
    die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's to handle
    from scalewise.train.imports import import_for_forks

    import_for_forks()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        while True:
            request, descriptors, _, _ = socket.recv_fds(channel, 16, 3)
            if not request:
                return 0
            channel.send(answer(channel, descriptors))
            for descriptor in descriptors:
                os.close(descriptor)


def threads() -> list[str]:
    """Names of the threads of this process, those of libraries included; this one's first."""
    tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    names = []
    for task in tasks:
        with contextlib.suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return names


def answer(channel: socket.socket, descriptors: list[int]) -> bytes:
    """The process id of a new supervisor, or why there is none."""
    running = threads()
    if len(running) != 1:
        told = f"{len(running)} threads run in the process to fork: {', '.join(running)}"
        return told.encode()[:_LONGEST_ANSWER]
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
        _supervise_and_exit(descriptors)
    os.close(write)
    os.waitpid(between, 0)
    pid_text = os.read(read, 16)
    os.close(read)
    return pid_text


def _supervise_and_exit(descriptors: list[int]) -> None:
    status = 1
    try:
        os.setsid()
        redirect(*descriptors)
        status = supervisor.main(fork)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(status)


if __name__ == "__main__":
    sys.exit(main())

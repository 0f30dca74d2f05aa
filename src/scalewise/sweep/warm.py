"""A process that has imported what supervisors need, and becomes supervisors of cells by forking.

    python -m scalewise.sweep.warm <descriptor of a socket> <process id of the sweep> fresh|forked

It sleeps until the sweep asks for a supervisor, so that devices do not lie idle while each cell's
supervisor starts an interpreter. The supervisor starts its ranks freshly, as ever.

With ``forked``, for cells whose times do not matter, torch and Lightning are imported too, and the
ranks are forks as well. It trains nothing: it never computes on a tensor nor asks for a GPU,
because a fork of a process that ever ran a parallel region hangs in its first matrix product, and
one that touched CUDA cannot use it.

Before every fork it counts its own threads, and refuses if there is more than one. The supervisor
is the parent of its ranks, and the sweep the supervisor's, as with fresh processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.lifetime import die_with_parent

if TYPE_CHECKING:
    from scalewise.sweep.rank_start import Starter

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A pool of threads must not begin with an import: forks would wait for it for ever."""

SUPERVISOR_NAME = "supervisor"
"""What ``ps -o comm`` shows of a fork, whose command line is this process's."""

MOST_DESCRIPTORS = 250
"""In one message; the kernel takes 253. The cores of a large host are a lock each."""

MORE = b"more"
"""The message of descriptors that others follow."""

_LONGEST_ANSWER = 200
"""Bytes; the sweep reads no more than 256."""


def main() -> int:
    """Fork supervisors until the sweep closes its end of the socket."""
    die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's to handle
    starter = _ready(sys.argv[3])
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        while True:
            descriptors: list[int] = []
            request = MORE
            while request == MORE:
                request, received, _, _ = socket.recv_fds(channel, 16, MOST_DESCRIPTORS)
                descriptors += received
            if not request:
                return 0
            channel.send(answer(channel, descriptors, starter))
            for descriptor in descriptors:  # a lock must not outlive its cell in here
                os.close(descriptor)


def _ready(ranks: str) -> Starter:
    """Import everything that a fork will need; how its supervisors start ranks."""
    with _one_thread():
        from scalewise.sweep import rank_start, supervisor, worker  # noqa: F401

        if ranks == "fresh":
            return rank_start.spawn
        from scalewise.train.imports import import_for_forks

        import_for_forks()
        return rank_start.fork


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Libraries that are loaded in here start no threads; ranks inherit what was there before."""
    before = dict(os.environ)
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name in ONE_THREAD.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def threads() -> list[str]:
    """Names of the threads of this process, those of libraries included; this one's first."""
    tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    names = []
    for task in tasks:
        with contextlib.suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return names


def answer(channel: socket.socket, descriptors: list[int], starter: Starter) -> bytes:
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
        _supervise_and_exit(descriptors, starter)
    os.close(write)
    os.waitpid(between, 0)
    pid_text = os.read(read, 16)
    os.close(read)
    return pid_text


def _supervise_and_exit(descriptors: list[int], starter: Starter) -> None:
    status = 1
    try:
        from scalewise.sweep import rank_start, supervisor

        os.setsid()
        Path("/proc/self/comm").write_text(SUPERVISOR_NAME)
        rank_start.redirect(*descriptors[:3])
        status = supervisor.main(starter, descriptors[3:])
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(status)


if __name__ == "__main__":
    sys.exit(main())

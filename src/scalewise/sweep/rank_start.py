"""The two ways in which a supervisor starts a rank: a fresh interpreter, or a fork of itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.train.rank import ENV_STARTED


@dataclass(frozen=True)
class RankStart:
    """What one rank process is to be."""

    command: Sequence[str]
    """As typed; its last word is the cell's folder."""
    environment: Mapping[str, str]
    cwd: str
    out: Path
    err: Path
    inherited: tuple[int, ...] = ()
    """Descriptors of locks that it holds as long as it lives, and of a socket."""


ENV_INHERITED = "SCALEWISE_INHERITED"
"""Descriptors that a rank was handed, with commas between them."""

Starter = Callable[[RankStart], "tuple[int, subprocess.Popen[bytes] | None]"]
"""Starts a rank as a child of this process: its id, and the object that is to be kept for it."""


def supervisor_command(locks: Sequence[int]) -> list[str]:
    """What starts a supervisor that inherits the descriptors ``locks``."""
    # -P: a queue.py where the user stands must not replace the library's.
    return [sys.executable, "-P", "-m", "scalewise.sweep.supervisor", *map(str, locks)]


def keep_from_children(inherited: Sequence[int]) -> None:
    """Close what was handed to this process in whatever it executes; its forks still have it."""
    for descriptor in inherited:
        os.set_inheritable(descriptor, False)


def spawn(start: RankStart) -> tuple[int, subprocess.Popen[bytes] | None]:
    """A fresh interpreter: what every timed run gets."""
    with start.out.open("wb") as out, start.err.open("wb") as err:
        child = subprocess.Popen(
            start.command,
            env=start.environment,
            cwd=start.cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=start.inherited,
        )
    return child.pid, child


def fork(start: RankStart) -> tuple[int, subprocess.Popen[bytes] | None]:
    """A fork of this process, which has imported torch and started no thread."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _train_and_exit(start)
    return pid, None


def redirect(stdin: int, stdout: int, stderr: int) -> None:
    """Make these the standard streams of this process, and close them under their own numbers."""
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
    for descriptor in {stdin, stdout, stderr} - {0, 1, 2}:
        os.close(descriptor)


def _train_and_exit(start: RankStart) -> None:
    status = 1
    try:
        _become(start)
        from scalewise.sweep import worker

        status = worker.main()
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Not back into the supervisor whose copy this is.
            os._exit(status)


def _become(start: RankStart) -> None:
    """Take on everything that a fresh process would have got from its start."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    logs = (os.open(path, flags, 0o666) for path in (start.out, start.err))
    redirect(os.open(os.devnull, os.O_RDONLY), *logs)
    os.environ.clear()
    os.environ.update({**start.environment, ENV_STARTED: "forked"})
    os.chdir(start.cwd)
    sys.argv[:] = [start.command[0], start.command[-1]]
    import torch

    # OpenMP read the variable long ago, in the process that this is a fork of.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

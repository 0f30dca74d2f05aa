"""The processes below this one, what a dead supervisor left, and a command around a rank's own."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import shlex
import signal
import sys
import time
from typing import Any

import psutil

from scalewise.host.rank_environment import STACKS_SIGNAL

ENV_SUPERVISOR = "SCALEWISE_SUPERVISOR_PID"
"""In the environment of every rank and of whatever it starts."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(expected_pid: int) -> None:
    """Let the kernel end this process when its parent's main thread ends.

    ``expected_pid`` is the parent that started it: if that has ended before the request is in
    place, this process ends at once, with status 1. Raises OSError where the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected_pid:
        os._exit(1)


def become_subreaper() -> None:
    """Adopt every orphan below this process, so that none can slip away.

    Raises OSError where the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``."""
    try:
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def worker_command(folder: str) -> list[str]:
    """The command of a rank of the cell in ``folder``, without a profiler around it."""
    return [sys.executable, "-P", "-m", "scalewise.sweep.worker", folder]


def find_below(pid: int, command: list[str]) -> int | None:
    """The process that runs ``command``, ``pid`` itself or below it; None while there is none."""
    return next((p for p in [pid, *descendants(pid)] if _command_line(p) == command), None)


def _command_line(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []  # it ended while we looked


def end_descendants(grace_s: float, limit_s: float = 9.0) -> list[int]:
    """End every process below this one: asked first, then made to. Returns what is left.

    Only processes stuck in the kernel can be left after ``limit_s``.
    """
    begun = time.monotonic()
    signalled: set[int] = set()
    while True:
        reap()
        alive = descendants(os.getpid())
        elapsed = time.monotonic() - begun
        if not alive or elapsed > limit_s:
            return alive
        for pid in alive:
            if elapsed >= grace_s:
                kill(pid, signal.SIGKILL)
            elif pid not in signalled:
                kill(pid, signal.SIGTERM)
                signalled.add(pid)
        time.sleep(0.02)


def reap() -> dict[int, int]:
    """Exit statuses of all children that have ended (negative: the signal), by process id."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def kill(pid: int, number: int) -> None:
    """Send a signal, unless the process has ended by now."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def end_orphans(supervisor: int) -> None:
    """Kill what a supervisor left behind, and reap what is ours by now.

    Its ranks and their children share its session or, where one of them made a session of its
    own, at least its mark in their environment.
    """
    for _ in range(100):
        left = [p.pid for p in psutil.process_iter() if _is_left_by(supervisor, p)]
        if not left:
            return
        for pid in left:
            kill(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue  # somebody else's child, or already gone
        time.sleep(0.02)


def _is_left_by(supervisor: int, process: psutil.Process) -> bool:
    try:
        if os.getsid(process.pid) == supervisor:
            return True
        return process.environ().get(ENV_SUPERVISOR) == str(supervisor)
    except (OSError, psutil.Error):
        return False  # another user's, or ended while we looked


def answer_requests() -> None:
    """Write the stacks of all threads to stderr at each STACKS_SIGNAL, whatever call hangs."""
    faulthandler.register(STACKS_SIGNAL)


def keep_answering(trainer: Any) -> None:
    """Let a ``pl.Trainer`` leave the signal alone.

    After each fit and each validation Lightning puts back the handlers of all signals as Python
    knows them. It does not know of faulthandler's: the next request would kill the rank.
    """
    connector = trainer._signal_connector
    current = connector._get_current_signal_handlers

    def others() -> dict[Any, Any]:
        return {number: handler for number, handler in current().items() if number != STACKS_SIGNAL}

    connector._get_current_signal_handlers = others


PLACEHOLDERS = ("rank", "local_rank", "folder")
"""In a command around a rank's own: ``nsys profile -o {folder}/rank{rank}``."""


# nsys has placeholders of its own, `%q{NAME}` and `%p`: they pass through as they are.
_BRACES = re.compile(r"(?<!%q)\{([^{}]*)\}")


def wrap_command(template: str, rank: int, local_rank: int, folder: str) -> list[str]:
    """The words to put before a rank's command; quoted as a shell would, but no shell runs it.

    Raises ValueError for a template that is empty, badly quoted or has an unknown placeholder.
    """
    values = {"rank": str(rank), "local_rank": str(local_rank), "folder": folder}
    unknown = [name for name in _BRACES.findall(template) if name not in values]
    if unknown:
        raise ValueError(
            f"wrap: found the placeholder {{{unknown[0]}}} in {template!r}; allowed: "
            f"{', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}"
        )
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise ValueError(f"wrap: found {template!r}: {error}; allowed: a command") from error
    if not words:
        raise ValueError(f"wrap: found {template!r}; allowed: a command, or null")
    return [_BRACES.sub(lambda found: values[found[1]], word) for word in words]


def main() -> int:
    """Become the command that is around a rank, so that it ends with its supervisor.

    A profiler does not ask the kernel to be ended with its parent; what is asked for here outlives
    the ``exec``. Returns 127, as a shell would, where the command cannot be run.
    """
    command = sys.argv[1:]
    die_with_parent(int(os.environ[ENV_SUPERVISOR]))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"hydra.launcher.wrap: {command[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main())

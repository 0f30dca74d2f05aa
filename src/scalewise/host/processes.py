"""The processes below this one, and what a dead supervisor left: found, ended and reaped."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

from scalewise.host.rank_environment import STACKS_SIGNAL

# A process that must not outlive the one that started it.


_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_pid: int) -> None:
    """Let the kernel end this process when its parent's main thread ends.

    ``expected_pid`` is the parent that started it: if that has ended before the request is in
    place, this process ends at once, with status 1. Raises OSError where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != expected_pid:
        os._exit(1)


ENV_SUPERVISOR = "SCALEWISE_SUPERVISOR_PID"
"""In the environment of every rank and of whatever it starts."""


_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Adopt every orphan below this process, so that none can slip away.

    Raises OSError where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, from one pass over ``/proc``."""
    children: dict[int, list[int]] = {}
    for child, (parent, _) in _process_table().items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def worker_command(folder: str) -> list[str]:
    """What a rank of the cell in ``folder`` runs, without anything around it."""
    return [sys.executable, "-P", "-m", "scalewise.sweep.worker", folder]


def find_below(pid: int, command: list[str]) -> int | None:
    """The process that runs ``command``, ``pid`` itself or below it; None while there is none."""
    wanted = [word.encode() for word in command]
    return next((p for p in [pid, *descendants(pid)] if command_line(p) == wanted), None)


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
        left = _left_behind(supervisor)
        if not left:
            return
        for pid in left:
            kill(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue  # somebody else's child, or already gone
        time.sleep(0.02)


def _left_behind(supervisor: int) -> list[int]:
    mark = f"{ENV_SUPERVISOR}={supervisor}".encode()
    return [
        pid
        for pid, (_, session) in _process_table().items()
        if session == supervisor or mark in _environment_of(pid)
    ]


def command_line(pid: int) -> list[bytes]:
    """The words that started a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []  # it ended while we looked


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # another user's, or ended while we looked


def _process_table() -> dict[int, tuple[int, int]]:
    """Every process with its parent and its session, from one pass over ``/proc``."""
    table = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended while we looked
        # The name in parentheses may itself hold spaces and parentheses.
        fields = stat.rpartition(")")[2].split()
        table[int(entry.name)] = (int(fields[1]), int(fields[3]))
    return table


# Starts the command around a rank so that it ends with its supervisor.
#
# python -m scalewise.sweep.wrapped COMMAND...
#
# A profiler does not ask the kernel to be ended with its parent; what is asked for here outlives
# the ``exec`` that turns this process into the profiler.


def main() -> int:
    """Become the command. Returns 127, as a shell would, where it cannot be run."""
    command = sys.argv[1:]
    die_with_parent(int(os.environ["SCALEWISE_SUPERVISOR_PID"]))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"hydra.launcher.wrap: {command[0]}: {error.strerror}\n")
        return 127


# Stacks of a rank that hangs: it writes those of all its threads when it gets SIGUSR1.


def answer_requests() -> None:
    """Write stacks to stderr whenever they are asked for, also while a library call hangs."""
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


# A command around a rank's own: ``nsys profile -o {folder}/rank{rank}``, and its placeholders.


PLACEHOLDERS = ("rank", "local_rank", "folder")


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


if __name__ == "__main__":
    sys.exit(main())

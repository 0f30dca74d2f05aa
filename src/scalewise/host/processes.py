"""The processes below this one: how they are forked, wrapped, found and ended.

Also what a dead supervisor left, and the mirror that runs beside a sweep.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

ENV_SUPERVISOR = "SCALEWISE_SUPERVISOR_PID"
"""In the environment of every rank and of whatever it starts."""
_END_ALL_S = 9.0
_STUCK_S = 5.0
"""A driver call that hangs keeps a process from ending, whatever it is sent."""
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
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def descendants(pid: int) -> list[int]:
    try:
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def worker_command(folder: str) -> list[str]:
    """The command of a rank of the cell in ``folder``, without a profiler around it."""
    return [sys.executable, "-P", "-m", "scalewise.sweep.worker", folder]


def find_below(pid: int, command: list[str]) -> int | None:
    """The process that runs ``command``, ``pid`` itself or below it; None while there is none."""
    for one in [pid, *descendants(pid)]:
        with suppress(psutil.Error):  # it ended while we looked
            if psutil.Process(one).cmdline() == command:
                return one
    return None


def end_descendants(grace_s: float) -> list[int]:
    """End every process below this one: asked first, then made to. Returns what is left.

    Only processes stuck in the kernel can be left after :data:`_END_ALL_S`.
    """
    begun = time.monotonic()
    signalled: set[int] = set()
    while True:
        reap()
        alive = descendants(os.getpid())
        elapsed = time.monotonic() - begun
        if not alive or elapsed > _END_ALL_S:
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
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_child(process: subprocess.Popen[bytes] | psutil.Process) -> None:
    """Kill a child and reap it; one that is stuck in the kernel is left to it after a while."""
    process.kill()
    with suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
        process.wait(_STUCK_S)


def exit_now(status: int) -> NoReturn:
    """End this process past the exit handlers of libraries, which may wait for what is gone."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


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
            with suppress(ChildProcessError):  # somebody else's child, or already gone
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _is_left_by(supervisor: int, process: psutil.Process) -> bool:
    try:
        if os.getsid(process.pid) == supervisor:
            return True
        return process.environ().get(ENV_SUPERVISOR) == str(supervisor)
    except (OSError, psutil.Error):
        return False  # another user's, or ended while we looked


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
            f"{', '.join(f'{{{name}}}' for name in values)}"
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


ENV_NOT_FORKED = "SCALEWISE_NOT_FORKED"
"""Why a rank is a fresh process, in its environment; absent where nobody thought of forking it."""
_READ_EARLY = (
    "GLIBC_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_",
    "TORCH",
)  # fmt: skip
"""How the names of variables begin that are read while a process starts or imports."""
_READ_LATER = ("TORCH_NCCL_", "PYTHONPATH", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Exceptions: NCCL's are read with a process group; the others a fork is told by other means."""
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE`` of Linux 5.14 and later."""


def fork_hindrance(environment: Mapping[str, str]) -> str | None:
    """Why this process may not be forked into one that has ``environment``; None if it may.

    A thread could hold a lock for ever in the fork, and CUDA does not work there. What is read
    on import was read here.
    """
    names = _thread_names()
    if len(names) != 1:
        return f"{len(names)} threads run in the process to fork: {', '.join(names)}"
    device = next(_open_devices(), None)
    if device is not None:
        return f"the process to fork has {device} open"
    changed = [
        name
        for name in sorted({*environment, *os.environ})
        if name.startswith(_READ_EARLY)
        and not name.startswith(_READ_LATER)
        and environment.get(name) != os.environ.get(name)
    ]
    return f"read on import, and other than there: {', '.join(changed)}" if changed else None


def _thread_names() -> list[str]:
    """Of this process, those of libraries included; this one's first."""
    tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    names = []
    for task in tasks:
        with suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return names


def _open_devices() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own is closed by now
            target = str(link.readlink())
            if target.startswith("/dev/nvidia"):
                yield target


def rename(name: str, command: Sequence[str]) -> None:
    """Make a fork appear under a name of its own, and with the command of a fresh process.

    The kernel shows what lies where this process once got its arguments: a command that is longer
    than those is left out.
    """
    Path("/proc/self/comm").write_text(name)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # of the arguments: see proc_pid_stat(5)
    title = " ".join(command).encode()
    padding = end - start - len(title) - 1
    if padding > 0:  # a last byte that is not 0 says that there is a title up to the first 0
        ctypes.memmove(start, title + bytes(padding) + b" ", end - start)


def own_memory() -> None:
    """Give a fork pages of its own, in memory near the cores that it is bound to.

    It has its parent's until it first writes to each: across NUMA nodes, and copied while steps
    are timed. A kernel that cannot do it at once leaves it at that.
    """
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access = line.split()[:2]
        if access == "rw-p":
            first, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _POPULATE_WRITE)


_FINISH_S = 90.0


class Mirror:
    """Runs ``scalewise.tracking.mirror`` beside this process.

    It takes idle processor time only, ends with this process whatever happens to it, and every
    line it says about a problem is passed on.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._process = subprocess.Popen(
            # -P: a queue.py where the user stands must not replace the library's.
            [sys.executable, "-P", "-m", "scalewise.tracking.mirror", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._pass_on, name="mirror-stderr", daemon=True)
        self._reader.start()

    def finish(self) -> None:
        """Let it hand over what is left; says so if it cannot within :data:`_FINISH_S`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone already; its exit status says how
            self._process.stdin.write(b"finish\n")
            self._process.stdin.close()
        why = f"tracking: not everything was mirrored within {_FINISH_S:g} s"
        if self._ends_within(_FINISH_S):
            if self._process.returncode >= 0:
                return
            why = f"tracking: the mirror was ended by signal {-self._process.returncode}"
        self._say(f"{why}; scalewise mirror FOLDER finishes it")

    def let_go(self) -> None:
        """What is recorded broke off: it hands over what it can within seconds, and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def abandon(self, deadline: float) -> None:
        """Wait for its end until ``deadline`` of ``time.monotonic``, then end it."""
        self._ends_within(max(0.5, deadline - time.monotonic()))

    def _ends_within(self, timeout_s: float) -> bool:
        """Whether it ends in time; otherwise it is killed."""
        try:
            self._process.wait(timeout_s)
            return True
        except subprocess.TimeoutExpired:
            end_child(self._process)
            return False
        finally:
            self._reader.join(timeout=2)

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._say(text)


if __name__ == "__main__":
    sys.exit(main())

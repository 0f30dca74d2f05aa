"""The sweep's side of a warm server, which has imported already what it forks processes for."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal

from scalewise.config import CellConfig, ConfigError
from scalewise.sweep.warm import MORE, MOST_DESCRIPTORS, ONE_THREAD
from scalewise.train.imports import is_ours
from scalewise.train.rank import scrubbed

_ANSWER_S = 60.0
"""Imports included, on a slow disk."""


class NotWarmError(Exception):
    """The server did not start a supervisor; the message says why."""


class ForkedSupervisor:
    """A child of this process that it did not start: what the sweep asks of a ``Popen``."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("supervisor", timeout or 0.0)
            finally:
                os.close(ended)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.returncode is None:  # until it is waited for, its id is nobody else's
            os.kill(self.pid, number)


class WarmServer:
    """Forks supervisors; one for a sweep.

    Args:
        folder: where its errors go, ``warm.err`` or ``supervisors.err``; a file that stays empty
            is removed.
        ranks: ``forked`` where they too are forks of it, which no timed run may be
            (``hydra.launcher.warm=true``); ``fresh`` where a supervisor starts an interpreter for
            each, as one that was started freshly does.
    """

    def __init__(self, folder: Path, ranks: Literal["fresh", "forked"]) -> None:
        self._log = folder / ("warm.err" if ranks == "forked" else "supervisors.err")
        self._ranks = ranks
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Let it import what it needs, without waiting for that; else the first cell does."""
        if self._channel is None:
            self._channel = self._begun()

    def supervisor(self, errors: Path, locks: tuple[int, ...] = ()) -> ForkedSupervisor:
        """A new supervisor that waits for its job. Raises :class:`NotWarmError`.

        ``locks``: descriptors that it and its ranks inherit, and the server does not keep.
        """
        self.begin()
        job_read, job_write = os.pipe()
        answer_read, answer_write = os.pipe()
        error_write = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        theirs = [job_read, answer_write, error_write]
        try:
            pid = self._ask([*theirs, *locks])
        except BaseException:
            os.close(job_write)
            os.close(answer_read)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return ForkedSupervisor(pid, os.fdopen(job_write, "wb"), os.fdopen(answer_read, "rb"))

    def stop(self) -> None:
        """End the server; supervisors that it forked are not touched."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            if self._log.exists() and not self._log.stat().st_size:
                self._log.unlink()

    def _begun(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_S)
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scalewise.sweep.warm",
                 str(theirs.fileno()), str(os.getpid()), self._ranks],
                env=self._environment(),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return ours

    def _environment(self) -> Mapping[str, str]:
        if self._ranks == "fresh":
            return os.environ  # what its supervisors are to hand on to the ranks, unchanged
        path = os.pathsep.join(str(Path(p or ".").resolve()) for p in sys.path)
        return {**scrubbed(os.environ), **ONE_THREAD, "PYTHONPATH": path}

    def _ask(self, descriptors: list[int]) -> int:
        assert self._channel is not None
        try:
            while len(descriptors) > MOST_DESCRIPTORS:
                socket.send_fds(self._channel, [MORE], descriptors[:MOST_DESCRIPTORS])
                descriptors = descriptors[MOST_DESCRIPTORS:]
            socket.send_fds(self._channel, [b"supervisor"], descriptors)
            answer = self._channel.recv(256)
        except OSError as error:
            raise NotWarmError(
                f"the warm server did not answer ({error}); see {self._log}"
            ) from None
        if not answer.isdigit():
            why = answer.decode() or f"it ended; see {self._log}"
            raise NotWarmError(f"the warm server started no supervisor: {why}")
        return int(answer)


def check_warm(launcher: Mapping[str, Any], cells: list[CellConfig]) -> None:
    """Raises :class:`ConfigError` for ``hydra.launcher.warm`` where times are what is asked for."""
    warm = launcher.get("warm", False)
    if not isinstance(warm, bool):
        raise ConfigError(f"hydra.launcher.warm: found {warm!r}; allowed: true | false")
    if warm and any(cell.repeats == "auto" for cell in cells):
        raise ConfigError(
            "hydra.launcher.warm: found true with repeats=auto, which decides by times; forked "
            "runs are no samples of a time: leave one of them out"
        )


def may_fork(plain: Mapping[str, Any], cell: CellConfig) -> bool:
    """Whether a fork does what a fresh start of the cell would, apart from its times.

    What reads its environment while it is imported, or imports more than our own code does, is
    started freshly all the same.
    """
    return (
        is_ours(plain)
        and cell.workload == "train"
        and cell.execution.kind == "eager"
        and cell.sweep.wrap is None
        and not cell.profile.profiles
    )

"""How long the training thread was ready to run and had no core: the mark of a crowded host."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class RunQueue:
    """Run-queue delay of the calling thread between two moments, from the kernel's own count.

    The kernel adds to it whenever the thread is put on a core, so that reading it costs nothing
    while training. A thread that waits for a lock, a device or a peer is not ready to run and
    counts for nothing here.

    Beside it stands the CPU time of the process's other threads: they too may have held the core
    that the training thread waited for, and then no other process is to blame.

    Args:
        path: the ``schedstat`` of the calling thread: time on a core, time ready and without one
            (both in ns), and how often it was put on one.
        cpu_ns: CPU time of the whole process and of the calling thread, in ns.
    """

    def __init__(
        self,
        path: Path = _SCHEDSTAT,
        cpu_ns: Callable[[], tuple[int, int]] = lambda: (
            time.process_time_ns(),
            time.thread_time_ns(),
        ),
    ) -> None:
        self.missing: str | None = None
        self._path = path
        self._cpu_ns = cpu_ns
        self._begin_ns: int | None = None
        self._begin_others_ns = 0
        self._begin_step = 0

    def begin(self, step: int) -> None:
        """From here on; ``step`` steps have been made."""
        self._begin_ns, self._begin_step = self._read(), step
        self._begin_others_ns = self._others()

    def ms_per_step(self, step: int) -> float | None:
        """Mean ms a step since :meth:`begin`; None where it is not known, said in ``missing``."""
        now_ns, steps = self._read(), step - self._begin_step
        if now_ns is None or self._begin_ns is None or steps <= 0:
            return None
        return (now_ns - self._begin_ns) / 1e6 / steps

    def other_threads_cpu_ms_per_step(self, step: int) -> float | None:
        """Mean CPU ms a step since :meth:`begin` of the threads beside the calling one."""
        steps = step - self._begin_step
        if self._begin_ns is None or steps <= 0:
            return None
        return max(0.0, (self._others() - self._begin_others_ns) / 1e6 / steps)

    def _others(self) -> int:
        process_ns, thread_ns = self._cpu_ns()
        return process_ns - thread_ns

    def _read(self) -> int | None:
        try:
            fields = self._path.read_text().split()
            return int(fields[1])
        except (OSError, ValueError, IndexError) as error:
            self.missing = f"{self._path}: {error or 'not in the format expected'}"
            return None

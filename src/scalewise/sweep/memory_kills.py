"""The kernel's out-of-memory killer, told from other senders of SIGKILL."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

from scalewise.host import memory_limit_mib, oom_kills
from scalewise.sweep.job import Verdict


class MemoryKills:
    """Notes how often this cgroup's processes had been killed for memory when a cell began."""

    def __init__(self, count: Callable[[], int | None] = oom_kills) -> None:
        self._count = count
        self._before = count()

    def name(self, verdict: Verdict) -> Verdict:
        """``verdict``, with the cause ``oom`` where the kernel has counted another such kill."""
        killed = verdict.cause == "signal" and verdict.exit_code == -signal.SIGKILL
        now = self._count()
        if not killed or now is None or self._before is None or now <= self._before:
            return verdict
        limit_mib = memory_limit_mib()
        limit = "" if limit_mib is None else f" (cgroup limit {limit_mib:.0f} MiB)"
        message = f"rank {verdict.rank} was ended by the kernel's out-of-memory killer{limit}"
        return replace(verdict, cause="oom", message=message)

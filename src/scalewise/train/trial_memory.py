"""The memory of one rank while it tries batch sizes: its limit, and what a trial took of it."""

from __future__ import annotations

import contextlib
import gc
import re
import resource
from pathlib import Path
from typing import Protocol

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CLEAR_PEAK = "5"
"""Sets ``VmHWM`` back to what is resident now: see proc(5)."""


class TrialMemory(Protocol):
    """What a trial may take, and what it took."""

    limit_mib: float | None

    def release(self) -> None:
        """Give back what the last trial held, and count the peak anew."""
        ...

    def settle(self) -> None:
        """Wait for whatever the trial started."""
        ...

    def peaks(self) -> tuple[float | None, float | None]:
        """Since the last release: allocated on a GPU, resident on a CPU host, in MiB."""
        ...


class GpuMemory:
    """Of the current GPU: its allocator refuses what is too much.

    Args:
        limit_mib: the GPU's memory, or the cap on it.
    """

    def __init__(self, device: torch.device, limit_mib: float | None) -> None:
        self._device = device
        self.limit_mib = limit_mib

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def peaks(self) -> tuple[float | None, float | None]:
        return torch.cuda.max_memory_allocated(self._device) / 2**20, None


class HostMemory:
    """Of this process on a CPU host, where nothing is refused: the kernel kills instead.

    So the process gets a limit of its own (``RLIMIT_DATA``, what it maps privately), beyond which
    an allocation fails as it does on a GPU. It stays for the life of the process.

    Args:
        limit_mib: of the whole process; None for no limit.
    """

    def __init__(self, limit_mib: float | None) -> None:
        mapped, resident = _status_mib("VmData"), _status_mib("VmRSS")
        if mapped is None or resident is None:
            self.limit_mib = None
            return
        # What is mapped and never touched costs nothing: only what is left is counted.
        unused = mapped - resident
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft != resource.RLIM_INFINITY:  # somebody's `ulimit -d` holds as well
            allowed = soft / 2**20 - unused
            limit_mib = allowed if limit_mib is None else min(limit_mib, allowed)
        self.limit_mib = limit_mib
        if limit_mib is not None:
            bound = int((max(limit_mib, resident) + unused) * 2**20)
            resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))

    def release(self) -> None:
        gc.collect()
        with contextlib.suppress(OSError):  # then no peak is told
            _CLEAR.write_text(_CLEAR_PEAK)

    def settle(self) -> None:
        """Nothing runs on."""

    def peaks(self) -> tuple[float | None, float | None]:
        return None, _status_mib("VmHWM")


def _status_mib(name: str) -> float | None:
    """A line of the process's status; None where the kernel does not tell."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None

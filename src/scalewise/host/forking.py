"""When a process may be forked into a rank, and what makes the fork like a freshly started one."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

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
        with contextlib.suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return names


def _open_devices() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own is closed by now
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
            size = ctypes.c_size_t(end - first)
            libc.madvise(ctypes.c_void_p(first), size, _POPULATE_WRITE)

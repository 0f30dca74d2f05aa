"""This host's GPUs for the tests that need real ones, and somebody else who uses them.

With ``SCALEWISE_GPU_TESTS=cpu`` those tests that mean something without a GPU run on two CPU
devices: a rehearsal of what they type and read, not a proof.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from fakes.train_command import wait_for
from scalewise.gpu import GpuDevice, NvmlUnavailable, open_nvml
from scalewise.gpu.leases import UNSEEN_MIB, read_gpus, visible_devices
from scalewise.host import usable_cores

REHEARSES = os.environ.get("SCALEWISE_GPU_TESTS") == "cpu"
_CONTEXT_MIB = 200
"""Less than what any process takes that computes on a GPU."""


@functools.cache
def gpus() -> tuple[GpuDevice, ...]:
    """The first two of those that CUDA would show here; fewer where there are fewer."""
    try:
        with open_nvml() as nvml:
            return visible_devices(nvml, os.environ)[:2]
    except NvmlUnavailable:
        return ()


def hardware() -> tuple[str, ...]:
    """What confines a run to :func:`gpus`, or to CPU devices of one core in a rehearsal."""
    if REHEARSES:
        return ("hardware=cpu", "hardware.cores_per_device=1")
    return (f"hardware.gpus=[{','.join(str(gpu.index) for gpu in gpus())}]",)


def needs(count: int, on_cpu: bool = False) -> pytest.MarkDecorator:
    """Skip a test on hosts with fewer GPUs; ``on_cpu`` tells whether it can be rehearsed."""
    if REHEARSES:
        enough = on_cpu and len(usable_cores()) >= count
        reason = "cannot be rehearsed on this CPU"
    else:
        enough = len(gpus()) >= count
        reason = f"needs {count} NVIDIA GPU{'s' if count > 1 else ''}, found {len(gpus())}"
    return pytest.mark.skipif(not enough, reason=reason)


# Who uses them


@dataclass(frozen=True)
class Use:
    """What the driver tells of one GPU."""

    pids: frozenset[int]
    """As the driver counts; empty where it tells nobody's."""
    memory_mib: float


def in_use() -> dict[str, Use]:
    """By UUID; empty without GPUs."""
    return {
        uuid: Use(frozenset(p.pid for p in one.processes or ()), one.memory_used_mib or 0.0)
        for uuid, one in read_gpus().items()
    }


def wait_until_left(before: Mapping[str, Use], seconds: float = 20) -> None:
    """Until these GPUs have no process and no memory in use that they had not ``before``.

    In a container it may list nobody; the memory is then what tells.
    """

    def left() -> bool:
        now = in_use()
        return all(
            now[uuid].pids <= old.pids and now[uuid].memory_mib < old.memory_mib + _CONTEXT_MIB
            for uuid, old in before.items()
        )

    wait_for(left, f"the GPUs to be used as before: {before}", seconds)


_HOLD = """
import sys, torch
sys.stdin.readline()
held = torch.ones(int(sys.argv[1]) * 2**20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("taken", flush=True)
sys.stdin.readline()
"""


class Stranger:
    """Somebody else's process, which scalewise did not start."""

    def __init__(self, gpu: GpuDevice) -> None:
        self.gpu = gpu
        # Enough to be seen by its memory where the driver lists no processes.
        command = [sys.executable, "-c", _HOLD, str(round(UNSEEN_MIB) + 1024)]
        self._process = subprocess.Popen(
            command, env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def take(self) -> None:
        """Hold memory of the GPU from now on."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "taken\n"

    def leave(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def a_stranger(gpu: GpuDevice) -> Iterator[Stranger]:
    """One who is about to use a GPU, and has gone at the end."""
    before = in_use()[gpu.uuid]
    stranger = Stranger(gpu)
    try:
        yield stranger
    finally:
        stranger.leave()
        wait_until_left({gpu.uuid: before})

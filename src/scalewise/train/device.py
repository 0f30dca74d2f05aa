"""What is settled about a rank's GPU before anything is built on it, and in each of its threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch

from scalewise.errors import first_line
from scalewise.train.rank import RankContext

CHECK_SIZE = 256
_SEED = 20_000


class DeviceError(RuntimeError):
    """A GPU that does not compute as it should: one line that names it."""


def settle_device(rank: RankContext, memory_cap_gib: float | None, check: bool) -> None:
    """Make the rank's GPU current, cap its memory, and prove that it computes.

    Nothing happens on a CPU. Raises ValueError for a cap beyond the GPU's memory, and
    :class:`DeviceError` where the check fails.
    """
    if rank.device.kind != "cuda":
        return
    torch.cuda.set_device(rank.local_rank)
    if memory_cap_gib is not None:
        cap_memory(memory_cap_gib)
    if check:
        check_computes(torch.device("cuda", rank.local_rank))


class DeviceThread(threading.Thread):
    """A thread of a rank whose current CUDA device is the rank's own.

    A new thread's current device is 0. What leaves a stream there (``torch.cuda.stream``) or reads
    an event then creates a second context: 520 MiB on GPU 0, and 0.2 to 0.5 s in which all ranks
    stand still. Every thread of a rank is started through this class.

    Args:
        target: what the thread runs.
        name: what debuggers and ``ps`` show.
        device: the rank's device; None for a thread that touches no GPU.
    """

    def __init__(self, target: Callable[[], None], name: str, device: torch.device | None) -> None:
        super().__init__(name=name, daemon=True)
        self._body = target
        self._device = device

    def run(self) -> None:
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._body()


@contextlib.contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Run on ``stream``, with its device current, and restore both afterwards."""
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


def cap_memory(cap_gib: float) -> None:
    """Let torch's allocator take ``cap_gib`` of the current GPU; more is "out of memory".

    The CUDA context and NCCL's buffers come on top. Raises ValueError beyond what the GPU has.
    """
    total_gib = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / 2**30
    if cap_gib > total_gib:
        raise ValueError(
            f"hardware.memory_cap_gib: found {cap_gib:g}, but the GPU has {total_gib:.1f} GiB; "
            "allowed: at most that, or null for no limit"
        )
    torch.cuda.set_per_process_memory_fraction(cap_gib / total_gib)


def check_computes(device: torch.device) -> None:
    """Multiply two matrices on ``device`` and on the CPU, in fp64, and compare.

    Takes milliseconds. Raises :class:`DeviceError` if the product is wrong, or the device fails.
    """
    generator = torch.Generator().manual_seed(_SEED)
    a, b = torch.randn(2, CHECK_SIZE, CHECK_SIZE, dtype=torch.float64, generator=generator)
    expected = a @ b
    try:
        found = (a.to(device) @ b.to(device)).cpu()
    except RuntimeError as error:
        line = first_line(error, with_class=False)
        raise DeviceError(f"{_name(device)} failed its check before training: {line}") from error
    worst = float((found - expected).abs().max() / expected.abs().max())
    if not worst < 1e-12:
        raise DeviceError(
            f"{_name(device)} failed its check before training: a {CHECK_SIZE}x{CHECK_SIZE} fp64 "
            f"product is off by {worst:.2g} of its size; take the GPU out of service "
            "(hardware.gpus=...), or switch the check off (execution.device_check=false)"
        )


def _name(device: torch.device) -> str:
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} (GPU-{properties.uuid})"

"""A kernel that moves as much memory as a collective does, no faster than over its link."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

_ELEMENTS = 1 << 24
"""64 MiB to read and as much to write: more than the L2 cache of any GPU holds."""
_TILE, _WARPS = 16384, 16
"""What a thread block of NCCL's has under way: 8 times 16 bytes of each of 512 threads."""
_FILL_NS = 4000
"""Waiting from which another tile fits in: over a slow link blocks move memory all the time."""
_CLUSTER = 4
"""Thread blocks of NCCL's through the host's memory. From Hopper on they start as one cluster."""


class Occupation:
    """Keeps thread blocks of a GPU busy with buffers of 128 MiB, of its own or of its host.

    ``through_host``: _CLUSTER blocks read and write what goes over the link in the host's memory,
    as NCCL does without peer-to-peer. Else ``blocks`` move the GPU's own.
    """

    def __init__(self, device: torch.device, blocks: int, through_host: bool) -> None:
        where = torch.device("cpu") if through_host else device
        self._source, self._target = (
            torch.zeros(_ELEMENTS, device=where, pin_memory=through_host) for _ in range(2)
        )
        self._blocks = _CLUSTER if through_host else blocks
        in_clusters = through_host and torch.cuda.get_device_capability(device) >= (9, 0)
        ctas = _CLUSTER if in_clusters else 1
        fixed = (0 if through_host else _FILL_NS, ".cv" if through_host else "", _TILE * ctas)
        grid = (self._blocks // ctas, 1, 1)
        # Compiled before anything is timed, and launched without Triton's lookup of what it has
        # compiled: a step has up to hundreds of buckets, which NCCL launches from C++.
        kernel = _occupy[grid](
            self._source, self._target, _ELEMENTS, 1, 1.0, *fixed, num_warps=_WARPS, num_ctas=ctas
        )
        self._launch: Any = kernel[grid]
        self._fixed = fixed
        self._tiles_per_ms = math.inf
        if through_host:
            self._tiles_per_ms = self._most_tiles_per_ms()

    def _most_tiles_per_ms(self) -> float:
        """How many this GPU's own way to its host carries, which may be less than the link's."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        tiles = _ELEMENTS // (_TILE * self._blocks)
        begin.record()
        self.last(self.plan(0.001, 4 * _ELEMENTS), torch.cuda.current_stream())
        end.record()
        end.synchronize()
        return tiles / float(begin.elapsed_time(end))

    def plan(self, ms: float, moved_bytes: float) -> tuple[Any, ...]:
        """What to launch for ``ms``, or longer where compute beside it slows its memory.

        ``moved_bytes`` are read, and as many written, in even parts of that time. A part that was
        late is not caught up with, since no link is faster than in ``ms``.
        """
        moved = min(moved_bytes / (4 * _TILE * self._blocks), self._tiles_per_ms * ms)
        tiles = max(1, round(moved))
        return (self._source, self._target, _ELEMENTS, tiles, ms * 1e6 / tiles, *self._fixed)

    def last(self, plan: tuple[Any, ...], stream: torch.cuda.Stream) -> None:
        """Occupy ``stream`` as planned."""
        self._launch(*plan, stream=stream.cuda_stream)


@triton.jit
def _nanoseconds():  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["tiles"])  # type: ignore[untyped-decorator]
def _occupy(  # type: ignore[no-untyped-def]
    source, target, elements, tiles, pace_ns,
    FILL_NS: tl.constexpr, CACHE: tl.constexpr, TILE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    begin = _nanoseconds()
    part = tl.program_id(0).to(tl.int64)
    passed_ns = 0.0
    due_ns = 0.0
    for _ in range(tiles):
        at = (part * TILE) % elements + tl.arange(0, TILE)
        tl.store(target + at, tl.load(source + at, cache_modifier=CACHE))
        part += tl.num_programs(0)
        passed_ns = (_nanoseconds() - begin).to(tl.float32)
        due_ns = tl.maximum(due_ns + pace_ns, passed_ns)
        while passed_ns < due_ns:
            if FILL_NS > 0:  # noqa: SIM102 (known when compiled: a cluster cannot have such a branch)
                if due_ns - passed_ns > FILL_NS:
                    at = (part * TILE) % elements + tl.arange(0, TILE)
                    tl.store(target + at, tl.load(source + at))
                    part += tl.num_programs(0)
            passed_ns = (_nanoseconds() - begin).to(tl.float32)

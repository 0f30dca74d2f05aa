"""A kernel that moves as much memory as a collective does, no faster than over its link."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ELEMENTS = 1 << 24
"""64 MiB to read and as much to write: more than the L2 cache of any GPU holds."""
_TILE, _WARPS = 16384, 16
"""What a thread block of NCCL's has under way: 8 times 16 bytes of each of 512 threads."""
_FILL_NS = 4000
"""Waiting from which another tile fits in: over a slow link blocks move memory all the time."""


class Occupation:
    """Keeps ``blocks`` thread blocks of a GPU busy; its buffers take 128 MiB."""

    def __init__(self, device: torch.device, blocks: int) -> None:
        self._source, self._target = (torch.zeros(_ELEMENTS, device=device) for _ in range(2))
        self._blocks = blocks
        self.last(0.001, 0)  # compiled before anything is timed

    def last(self, ms: float, moved_bytes: float) -> None:
        """Occupy the current stream for ``ms``: longer where compute beside it slows its memory.

        ``moved_bytes`` are read, and as many written, in even parts of that time. A part that was
        late is not caught up with, since no link is faster than in ``ms``.
        """
        tiles = max(1, round(moved_bytes / (4 * _TILE * self._blocks)))
        _occupy[(self._blocks,)](
            self._source, self._target, _ELEMENTS, tiles, ms * 1e6 / tiles, _FILL_NS,
            TILE=_TILE, num_warps=_WARPS,
        )  # fmt: skip


@triton.jit
def _nanoseconds():  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["tiles"])  # type: ignore[untyped-decorator]
def _occupy(source, target, elements, tiles, pace_ns, fill_ns, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    begin = _nanoseconds()
    part = tl.program_id(0).to(tl.int64)
    passed_ns = 0.0
    due_ns = 0.0
    for _ in range(tiles):
        at = (part * TILE) % elements + tl.arange(0, TILE)
        tl.store(target + at, tl.load(source + at))
        part += tl.num_programs(0)
        passed_ns = (_nanoseconds() - begin).to(tl.float32)
        due_ns = tl.maximum(due_ns + pace_ns, passed_ns)
        while passed_ns < due_ns:
            if due_ns - passed_ns > fill_ns:
                at = (part * TILE) % elements + tl.arange(0, TILE)
                tl.store(target + at, tl.load(source + at))
                part += tl.num_programs(0)
            passed_ns = (_nanoseconds() - begin).to(tl.float32)

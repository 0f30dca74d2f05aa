"""A kernel that lasts as long as it is told and moves memory meanwhile, as a collective does."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ELEMENTS = 1 << 24
"""64 MiB to read and as much to write: more than the L2 cache of any GPU holds."""
_BLOCK, _WARPS = 4096, 16


class Occupation:
    """Keeps ``blocks`` thread blocks of a GPU busy for a time; its buffers take 128 MiB."""

    def __init__(self, device: torch.device, blocks: int) -> None:
        self._source, self._target = (torch.zeros(_ELEMENTS, device=device) for _ in range(2))
        self._blocks = blocks
        self.last(0.001)  # compiled before anything is timed

    def last(self, ms: float) -> None:
        """Occupy the current stream for ``ms``."""
        _occupy[(self._blocks,)](
            self._source, self._target, _ELEMENTS, round(ms * 1e6), BLOCK=_BLOCK, num_warps=_WARPS
        )


@triton.jit  # type: ignore[untyped-decorator]
def _occupy(source, target, elements, duration_ns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    begin = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    now = begin
    part = tl.program_id(0).to(tl.int64)
    while now - begin < duration_ns:
        at = (part * BLOCK) % elements + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at))
        part += tl.num_programs(0)
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )

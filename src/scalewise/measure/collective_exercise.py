"""What each collective is asked to do, and what must have arrived.

Every result is compared with what it must be, element by element, in buffers that held nothing but
NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch
import torch.distributed as dist

from scalewise.records.doctor_rates import Collective

COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

_FLOAT_BYTES = 4
_NAN = float("nan")
_MOST_ITERATIONS = 100
_LARGEST_VALUE = 1e30
"""Well inside fp32's range."""

# torch 2.13 renamed them and warns of the old names.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def most_iterations(collective: Collective, ranks: int) -> int:
    """Collectives in a row without fresh data.

    An all-reduce in place multiplies its values by the number of ranks, and fp32 must bear that.
    """
    if collective != "all_reduce" or ranks < 2:
        return _MOST_ITERATIONS
    return min(_MOST_ITERATIONS, int(math.log(_LARGEST_VALUE) / math.log(ranks)))


@dataclass(frozen=True)
class Exercise:
    """One collective at one size on this rank: how to run it, prepare it and check it."""

    byte_count: int
    run: Callable[[], object]
    fill: Callable[[], None]
    """Write fresh input, and NaN where output goes."""
    is_right: Callable[[], bool]


def exercise(
    collective: Collective,
    wanted_bytes: int,
    rank: int,
    ranks: int,
    device: torch.device,
    group: Any,
) -> Exercise:
    """Its buffers on ``device``; the size is rounded down to whole fp32 values on every rank.

    Element i of rank r is ``i % 7 + r``: whole numbers, so that sums are exact in any order.
    """
    count = max(1, wanted_bytes // _FLOAT_BYTES)
    share = max(1, count // ranks)
    if collective in ("all_gather", "reduce_scatter"):
        count = share * ranks

    ramp = torch.arange(count, dtype=torch.int32, device=device).remainder_(7).to(torch.float32)
    whole = torch.empty(count, device=device)

    def summed() -> torch.Tensor:
        return ramp.mul(ranks).add_(ranks * (ranks - 1) / 2)

    byte_count = count * _FLOAT_BYTES
    if collective == "all_reduce":
        return Exercise(
            byte_count,
            lambda: dist.all_reduce(whole, group=group),
            lambda: _write(whole, ramp, rank),
            lambda: torch.equal(whole, summed()),
        )
    if collective == "broadcast":
        return Exercise(
            byte_count,
            lambda: dist.broadcast(whole, 0, group=group),
            lambda: _write(whole, ramp, 0 if rank == 0 else _NAN),
            lambda: torch.equal(whole, ramp),
        )
    own = slice(rank * share, (rank + 1) * share)
    part = torch.empty(share, device=device)
    if collective == "all_gather":

        def fill_part() -> None:
            _write(part, ramp[:share], rank)
            _write(whole, ramp, _NAN)

        return Exercise(
            byte_count,
            lambda: _ALL_GATHER(whole, part, group=group),
            fill_part,
            lambda: all(
                torch.equal(piece, ramp[:share].add(sender))
                for sender, piece in enumerate(whole.view(ranks, share))
            ),
        )

    def fill_whole() -> None:
        _write(whole, ramp, rank)
        _write(part, ramp[:share], _NAN)

    return Exercise(
        byte_count,
        lambda: _REDUCE_SCATTER(part, whole, group=group),
        fill_whole,
        lambda: torch.equal(part, summed()[own]),
    )


def _write(tensor: torch.Tensor, ramp: torch.Tensor, added: float) -> None:
    torch.add(ramp, added, out=tensor)

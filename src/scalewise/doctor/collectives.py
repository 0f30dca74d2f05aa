"""Collectives: what each is asked to do, what must have arrived, and how fast it was.

Every result is compared with what it must be, element by element, in buffers that held nothing but
NaN. Collectives are timed as NVIDIA's nccl-tests does it: a batch of them back to back, the time
of one is the batch's divided by their number. Every rank times itself and the slowest counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args

import torch
import torch.distributed as dist

from scalewise.config import first_line
from scalewise.doctor.compute import Work, gb_per_s, measure, stopwatch
from scalewise.doctor.plan import RankRecord
from scalewise.records import Backend, Collective, CollectiveRate, bus_factor
from scalewise.train import Team

COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

_FLOAT_BYTES = 4
_NAN = float("nan")
_MOST_ITERATIONS = 100

_CYCLES_TO_START, _MOST_CYCLES = 300_000, 10_000_000
"""Cycles a GPU waits while they are queued, for each and at most: 150 us and 5 ms at 2 GHz."""

_LARGEST_VALUE = 1e30
"""Well inside fp32's range."""

_BYTES_COUNT_FROM = 131_072
"""Smaller messages take their latency, and hardly anything beyond."""

# torch 2.13 renamed them and warns of the old names.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def measure_all(
    record: RankRecord, team: Team, backend: Backend, sizes: tuple[int, ...], budget_s: float
) -> bool:
    """Every collective at every size, smallest first, within about ``budget_s`` on every rank.

    A size that would not fit into its share of the time left is left out, with all that are larger;
    the smallest is measured in any case. False where one failed: the ranks may stand at different
    calls now. The first rank's record holds what all have.
    """
    device = record.device if backend == "nccl" else torch.device("cpu")
    group = team.nccl() if backend == "nccl" else team.gloo
    point_s = budget_s / len(sizes) / len(COLLECTIVES) / 2  # the other half prepares and checks
    begin = time.perf_counter()
    for number, collective in enumerate(COLLECTIVES):
        (begun_s,) = team.largest([time.perf_counter() - begin])
        deadline_s = begun_s + max(0.0, budget_s - begun_s) / (len(COLLECTIVES) - number)
        done: list[CollectiveRate] = []
        for size in sizes:
            (elapsed_s,) = team.largest([time.perf_counter() - begin])
            rate: CollectiveRate | str = f"does not fit into the {budget_s:g} s for {backend}"
            if not done or elapsed_s + expected_s(done[-1], size) <= deadline_s:
                try:
                    rate = measure_collective(
                        team, backend, device, group, collective, size, point_s
                    )
                except RuntimeError as error:
                    record.miss(f"{backend} from {collective} of {size} bytes", first_line(error))
                    return False
            if isinstance(rate, str):
                if team.rank == 0:
                    record.miss(f"{backend} {collective} from {size} bytes", rate)
                break
            done.append(rate)
        if team.rank == 0:
            record.note(collectives=(*record.found.collectives, *done))
    return True


def expected_s(last: CollectiveRate, size: int) -> float:
    """Seconds the next size will take, its warm-up and three repetitions.

    Time grows as bytes do, from sizes on at which bytes are what takes time. The fastest repetition
    of the last size counts, so that one slow moment does not end the series.
    """
    growth = size / last.bytes if last.bytes >= _BYTES_COUNT_FROM else 1.0
    return 7 * growth * min(last.timing.samples_us) / 1e6


def measure_collective(
    team: Team, backend: Backend, device: torch.device, group: Any,
    collective: Collective, byte_count: int, budget_s: float,
) -> CollectiveRate | str:  # fmt: skip
    """Time one collective at one size on every rank, or say on all that one lacks the memory.

    Raises what the backend raises.
    """
    task: Exercise | None = None
    # Said below by all ranks together: one alone in a collective would wait for ever.
    with suppress(torch.OutOfMemoryError, MemoryError):
        task = exercise(collective, byte_count, team.rank, team.size, device, group)
    if not team.all_agree(task is not None) or task is None:
        return f"not every rank has memory for {byte_count} bytes"

    def meet(fill: Callable[[], None] = task.fill) -> None:
        fill()
        team.barrier()

    def watch(work: Work, iterations: int) -> float:
        if device.type == "cuda":
            # Starting a small one takes a thread longer than a GPU takes to run it. So the batch is
            # queued before the GPUs begin it. A collective first brings them within microseconds.
            torch.cuda._sleep(min(iterations * _CYCLES_TO_START, _MOST_CYCLES))
            dist.all_reduce(torch.ones(1, device=device), group=group)
        return stopwatch(device)(work, iterations)

    meet()
    task.run()
    correct = team.all_agree(task.is_right())
    timing = measure(
        watch, task.run, budget_s, team=team, prepare=meet,
        most_iterations=most_iterations(collective, team.size),
    )  # fmt: skip
    rate, size = gb_per_s(task.byte_count, timing), team.size
    bus = rate * bus_factor(collective, size)
    return CollectiveRate(backend, collective, size, task.byte_count, timing, rate, bus, correct)


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
    collective: Collective, wanted_bytes: int, rank: int, ranks: int, device: torch.device,
    group: Any,
) -> Exercise:  # fmt: skip
    """Its buffers on ``device``; the size is rounded down to whole fp32 values on every rank.

    Element i of rank r is ``i % 7 + r``: whole numbers, so that sums are exact in any order.
    """
    count = max(1, wanted_bytes // _FLOAT_BYTES)
    share = max(1, count // ranks)
    in_parts = collective in ("all_gather", "reduce_scatter")
    if in_parts:
        count = share * ranks

    ramp = torch.arange(count, dtype=torch.int32, device=device).remainder_(7).to(torch.float32)
    whole = torch.empty(count, device=device)
    part = torch.empty(share if in_parts else 0, device=device)

    def summed() -> torch.Tensor:
        return ramp.mul(ranks).add_(ranks * (ranks - 1) / 2)

    def is_gathered() -> bool:
        pieces = enumerate(whole.view(ranks, share))
        return all(torch.equal(piece, ramp[:share].add(sender)) for sender, piece in pieces)

    # Added to the ramp before, in the whole and in the part; the call; the check.
    tasks: dict[Collective, tuple[float, float, Callable[[], object], Callable[[], bool]]] = {
        "all_reduce": (rank, _NAN, lambda: dist.all_reduce(whole, group=group),
                       lambda: torch.equal(whole, summed())),
        "broadcast": (0 if rank == 0 else _NAN, _NAN, lambda: dist.broadcast(whole, 0, group=group),
                      lambda: torch.equal(whole, ramp)),
        "all_gather": (_NAN, rank, lambda: _ALL_GATHER(whole, part, group=group), is_gathered),
        "reduce_scatter": (rank, _NAN, lambda: _REDUCE_SCATTER(part, whole, group=group),
                           lambda: torch.equal(part, summed().view(ranks, share)[rank])),
    }  # fmt: skip
    in_whole, in_part, run, is_right = tasks[collective]

    def fill() -> None:
        torch.add(ramp, in_whole, out=whole)
        torch.add(ramp[: part.numel()], in_part, out=part)

    return Exercise(count * _FLOAT_BYTES, run, fill, is_right)

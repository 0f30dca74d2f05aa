"""Each pair of ranks point to point, one way, the other way, and both at once.

Between GPUs these are copies from one GPU's memory to the other's by rank 0, all else being idle;
CUDA goes straight from one to the other where it may, else through host memory. With gloo they are
messages from process to process. What arrives is compared with what was sent.
"""

from __future__ import annotations

import time
from itertools import combinations

import torch
import torch.distributed as dist

from scalewise.measure.doctor_team import Team
from scalewise.measure.doctor_timing import (
    Stopwatch,
    Work,
    gb_per_s,
    measure,
    repetitions,
    to_timing,
)
from scalewise.records.doctor_rates import PairRate, Timing

_PINGS = 50


# Copies between GPUs


def cuda_pair(first: int, second: int, byte_count: int, budget_s: float) -> PairRate:
    """Copies between two GPUs that this process sees, by their index."""
    there = _Lane(first, second, byte_count)
    back = _Lane(second, first, byte_count)
    forward = measure(_LaneStopwatch(there), there.copy, budget_s)
    backward = measure(_LaneStopwatch(back), back.copy, budget_s)

    def both_ways() -> None:
        there.copy()
        back.copy()

    both = measure(_LaneStopwatch(there, back), both_ways, budget_s)
    can = torch.cuda.can_device_access_peer
    return PairRate(
        "cuda copy",
        first,
        second,
        byte_count,
        direct=bool(can(first, second) and can(second, first)),
        forward=forward,
        backward=backward,
        both=both,
        forward_gb_s=gb_per_s(byte_count, forward),
        backward_gb_s=gb_per_s(byte_count, backward),
        both_gb_s=gb_per_s(2 * byte_count, both),
        correct=there.arrived() and back.arrived(),
    )


class _Lane:
    """Copies in one direction, with streams of its own on both GPUs.

    PyTorch copies in the source's current stream, and makes that and the target's current stream
    wait for each other: two directions in the same two streams would take turns.
    """

    def __init__(self, source: int, target: int, byte_count: int) -> None:
        here, there = torch.device("cuda", source), torch.device("cuda", target)
        self._sent = torch.arange(byte_count // 4, dtype=torch.int32, device=here)
        self._received = torch.full_like(self._sent, -1, device=there)
        self.source_stream = torch.cuda.Stream(here)
        self._target_stream = torch.cuda.Stream(there)
        torch.cuda.synchronize(here)
        torch.cuda.synchronize(there)

    def copy(self) -> None:
        with torch.cuda.stream(self._target_stream), torch.cuda.stream(self.source_stream):
            self._received.copy_(self._sent, non_blocking=True)

    def arrived(self) -> bool:
        """Whether the target holds what was sent, compared on the target itself."""
        torch.cuda.synchronize(self._sent.device)
        torch.cuda.synchronize(self._received.device)
        expected = torch.arange(
            self._received.numel(), dtype=torch.int32, device=self._received.device
        )
        return torch.equal(self._received, expected)


class _LaneStopwatch(Stopwatch):
    """CUDA events in the first lane's source stream; a second lane begins and ends with it."""

    def __init__(self, lead: _Lane, other: _Lane | None = None) -> None:
        self._lead = lead.source_stream
        self._other = other.source_stream if other is not None else None

    def seconds(self, work: Work, iterations: int) -> float:
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record(self._lead)
        if self._other is not None:
            self._other.wait_event(begin)
        for _ in range(iterations):
            work()
        if self._other is not None:
            other_done = torch.cuda.Event()
            other_done.record(self._other)
            self._lead.wait_event(other_done)
        end.record(self._lead)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


# Messages between processes


def gloo_pairs(team: Team, byte_count: int, budget_s: float) -> tuple[PairRate, ...]:
    """Every pair in turn, in about ``budget_s`` together; each rank must call it.

    Timed with ``perf_counter`` from the first message to the receiver's answer to the last one.
    All ranks return the same rates.
    """
    pairs = list(combinations(range(team.size), 2))
    return tuple(
        _GlooPair(team, first, second, byte_count).rate(budget_s / len(pairs) / 4)
        for first, second in pairs
    )


_Direction = tuple[int, int]
"""Source and target."""


class _GlooPair:
    def __init__(self, team: Team, first: int, second: int, byte_count: int) -> None:
        self._team, self._first, self._second = team, first, second
        self._bytes = byte_count
        self._sent = torch.arange(byte_count // 4, dtype=torch.int32)
        self._received = torch.empty_like(self._sent)

    def rate(self, budget_s: float) -> PairRate:
        there, back = (self._first, self._second), (self._second, self._first)
        forward, came = self._timed([there], budget_s)
        backward, came_back = self._timed([back], budget_s)
        both, crossed = self._timed([there, back], budget_s)
        return PairRate(
            "gloo",
            self._first,
            self._second,
            self._bytes,
            direct=None,
            forward=forward,
            backward=backward,
            both=both,
            forward_gb_s=gb_per_s(self._bytes, forward),
            backward_gb_s=gb_per_s(self._bytes, backward),
            both_gb_s=gb_per_s(2 * self._bytes, both),
            correct=came and came_back and crossed,
            latency_us=self._latency_us(),
        )

    def _timed(self, directions: list[_Direction], budget_s: float) -> tuple[Timing, bool]:
        """The time of one message (one each way), and whether all arrived as they were sent."""
        self._seconds(directions, 1)
        (once_s,) = self._team.largest([self._seconds(directions, 1)])
        count, iterations = repetitions(once_s, budget_s)
        samples = [self._seconds(directions, iterations) / iterations for _ in range(count)]
        receives = self._team.rank in [target for _, target in directions]
        right = not receives or torch.equal(self._received, self._sent)
        return to_timing(self._team.largest(samples), iterations), self._team.all_agree(right)

    def _seconds(self, directions: list[_Direction], count: int) -> float:
        self._received.fill_(-1)
        self._team.barrier()
        if self._team.rank not in (self._first, self._second):
            return 0.0
        begin = time.perf_counter()
        for _ in range(count):
            self._exchange(directions, self._sent, self._received)
        answers = [(target, source) for source, target in directions]
        self._exchange(answers, torch.ones(1), torch.empty(1))
        return time.perf_counter() - begin

    def _exchange(
        self, directions: list[_Direction], sent: torch.Tensor, received: torch.Tensor
    ) -> None:
        rank, group = self._team.rank, self._team.gloo
        works = [dist.isend(sent, target, group) for source, target in directions if source == rank]
        works += [
            dist.irecv(received, source, group) for source, target in directions if target == rank
        ]
        for work in works:
            if work is not None:
                work.wait()

    def _latency_us(self) -> float:
        """Half of a round trip of 8 bytes."""
        there, back = [(self._first, self._second)], [(self._second, self._first)]
        ping, pong = torch.ones(2), torch.empty(2)
        self._team.barrier()
        elapsed_s = 0.0
        if self._team.rank in (self._first, self._second):
            begin = time.perf_counter()
            for _ in range(_PINGS):
                self._exchange(there, ping, pong)
                self._exchange(back, ping, pong)
            elapsed_s = time.perf_counter() - begin
        return self._team.largest([elapsed_s])[0] / _PINGS / 2 * 1e6

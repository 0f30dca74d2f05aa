"""The largest batch that fits, agreed upon by ranks of which some have less memory."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable

import pytest
import torch

from scalewise.train.batch_search import (
    Found,
    HostMemory,
    OwnTrial,
    _status_mib,
    guarded,
    search,
)


class Plenty:
    """Memory of which nobody knows the end; a trial takes what the test says."""

    limit_mib: float | None = None

    def __init__(self, *rss_mib: float) -> None:
        self.rss_mib = list(rss_mib)

    def release(self) -> None:
        """Nothing is held."""

    def settle(self) -> None:
        """Nothing runs."""

    def peaks(self) -> tuple[float | None, float | None]:
        return None, self.rss_mib.pop(0) if self.rss_mib else None


class Ranks:
    """Ranks that are threads: they meet, and each gets the largest of what all said."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=10)
        self.said: list[list[float]] = [[] for _ in range(size)]

    def search(self, capacities: list[int], first: int, most: int) -> list[Found]:
        found: dict[int, Found] = {}

        def one(rank: int) -> None:
            attempt = guarded(holds(capacities[rank]), Plenty())
            found[rank] = search(attempt, Member(self, rank), first, most)

        self.run(one)
        return [found[rank] for rank in range(self.size)]

    def run(self, one: Callable[[int], None]) -> None:
        """``one`` in every rank."""
        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Member:
    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.ranks, self.rank, self.size = ranks, rank, ranks.size

    def largest(self, values: list[float]) -> list[float]:
        self.ranks.said[self.rank] = values
        self.ranks.barrier.wait()
        answer = [max(column) for column in zip(*self.ranks.said, strict=True)]
        self.ranks.barrier.wait()
        return answer


def holds(capacity: int) -> Callable[[int], None]:
    def step(size: int) -> None:
        if size > capacity:
            raise torch.OutOfMemoryError(f"CUDA out of memory at {size}")

    return step


@pytest.mark.parametrize("first", [1, 7, 500])
@pytest.mark.parametrize("capacity", [1, 37, 1000])
def test_the_largest_that_fits_is_found_to_a_sixteenth(capacity: int, first: int) -> None:
    (found,) = Ranks(1).search([capacity], first, 4096)
    assert found.limited_by_memory
    assert found.largest <= capacity < found.largest + max(1, found.largest // 16) + 1
    assert found.largest in {t.per_device_batch_size for t in found.trials if t.outcome == "fits"}
    sizes = [trial.per_device_batch_size for trial in found.trials]
    assert len(sizes) == len(set(sizes)) <= 24


def test_every_rank_takes_what_the_smallest_can_hold_and_none_waits() -> None:
    found = Ranks(3).search([100, 40, 90], 1, 4096)
    assert found[0] == found[1] == found[2]
    assert 38 <= found[0].largest <= 40
    blamed = {t.per_device_batch_size: t.ranks_out_of_memory for t in found[0].trials}
    assert blamed[64] == (1,)
    assert blamed[32] == ()


def test_the_search_ends_at_the_most_that_was_allowed() -> None:
    (found,) = Ranks(1).search([10**9], 1, 1000)
    assert (found.largest, found.limited_by_memory) == (1000, False)
    assert [t.per_device_batch_size for t in found.trials][-1] == 1000


def test_not_even_one_sample_is_an_error() -> None:
    attempt = guarded(holds(0), Plenty())
    with pytest.raises(ValueError, match="not even one sample fits"):
        search(attempt, Member(Ranks(1), 0), 8, 64)


def test_only_a_lack_of_memory_is_a_result() -> None:
    def broken(size: int) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        guarded(broken, Plenty())(4)


def test_the_peak_is_that_of_the_rank_that_needed_most_and_missing_stays_missing() -> None:
    ranks, found = Ranks(2), {}

    def one(rank: int) -> None:
        memory = Plenty(*([100.0, 200.0] if rank else [300.0, 50.0]))
        found[rank] = search(guarded(holds(2), memory), Member(ranks, rank), 1, 4)

    ranks.run(one)
    told = [(t.per_device_batch_size, t.peak_rss_mib) for t in found[0].trials]
    assert told == [(1, 300.0), (2, 200.0), (4, None), (3, None)]
    assert all(t.peak_allocated_mib is None for t in found[0].trials)


def test_a_cpu_host_refuses_what_is_too_much_as_a_gpu_does() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        memory = HostMemory((_status_mib("VmRSS") or 0) + 200)
        attempt = guarded(lambda mib: torch.ones(mib * 2**18).add_(1), memory)
        fits, not_, again = attempt(100), attempt(600), attempt(100)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert fits.fits and again.fits
    assert not_ == OwnTrial(False)
    assert 100 < (fits.peak_rss_mib or 0) < (memory.limit_mib or 0)

"""Collectives: results, sizes, formulas, and the time that the next size will take."""

from __future__ import annotations

import pytest
import torch

from scalewise.doctor import Plan
from scalewise.doctor.collectives import (
    COLLECTIVES,
    exercise,
    expected_s,
    most_iterations,
)
from scalewise.records import Collective, CollectiveRate, Timing, bus_factor

_CPU = torch.device("cpu")


@pytest.mark.parametrize("ranks", [2, 3, 8, 72])
def test_an_all_reduce_in_place_never_leaves_the_range_of_fp32(ranks: int) -> None:
    count = most_iterations("all_reduce", ranks)
    largest = (6 + ranks) * float(ranks) ** count
    assert count >= 10
    assert torch.isfinite(torch.tensor(largest, dtype=torch.float32))
    assert most_iterations("broadcast", ranks) == 100


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nothing_received_is_not_taken_for_the_right_answer(collective: Collective) -> None:
    task = exercise(collective, 4096, rank=1, ranks=3, device=_CPU, group=None)
    task.fill()
    assert not task.is_right()


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_sizes_are_whole_values_on_every_rank(collective: Collective, ranks: int) -> None:
    task = exercise(collective, 8, rank=0, ranks=ranks, device=_CPU, group=None)
    assert task.byte_count % 4 == 0 and task.byte_count >= 8
    if collective in ("all_gather", "reduce_scatter"):
        assert task.byte_count % (4 * ranks) == 0


def test_what_each_link_carries() -> None:
    assert (bus_factor("all_reduce", 2), bus_factor("all_reduce", 8)) == (1.0, 1.75)
    assert (bus_factor("all_gather", 4), bus_factor("reduce_scatter", 8)) == (0.75, 0.875)
    assert bus_factor("broadcast", 8) == 1.0


def test_sizes_run_from_8_bytes_to_exactly_the_largest() -> None:
    sizes = Plan().sizes("nccl")
    assert (sizes[:3], sizes[-1]) == ((8, 32, 128), 2**30)
    assert Plan().sizes("gloo")[-1] == 64 * 2**20
    assert Plan(quick=True).sizes("gloo") == (8, 512, 2**15, 2**21, 2**26)


def test_time_to_come_grows_with_bytes_and_not_with_latency() -> None:
    small, large = (
        CollectiveRate("gloo", "all_reduce", 2, size, Timing((us, 10 * us), 1), 1.0, 1.0, True)
        for size, us in ((8, 100.0), (2**20, 300.0))
    )
    assert expected_s(small, 2**20) == pytest.approx(7 * 100e-6), "latency does not grow"
    assert expected_s(large, 2**22) == pytest.approx(7 * 1200e-6)
    assert expected_s(large, 2**20) == pytest.approx(7 * 300e-6)

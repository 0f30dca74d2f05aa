"""Which sizes are measured, and how long the next one will take."""

from __future__ import annotations

import math

import pytest

from scalewise.doctor import Plan
from scalewise.doctor.collectives import expected_s
from scalewise.doctor.plan import message_sizes
from scalewise.records import CollectiveRate, Timing


def test_sizes_run_from_8_bytes_to_exactly_the_largest() -> None:
    assert message_sizes(100, 4) == (8, 32, 100)
    sizes = Plan().sizes("nccl")
    assert (sizes[0], sizes[-1]) == (8, 2**30)
    assert Plan().sizes("gloo")[-1] == 64 * 2**20
    assert len(Plan(quick=True).sizes("nccl")) < len(sizes)


def test_time_to_come_grows_with_bytes_and_not_with_latency() -> None:
    done = [_rate(8, 100.0), _rate(2**20, 300.0)]
    assert expected_s([], 8) == 0
    assert expected_s(done[:1], 2**20) == pytest.approx(7 * 100e-6), "latency does not grow"
    # 100 us of latency and 200 us for 1 MiB, seven times: 100 + 200 * 4
    assert expected_s(done, 2**22) == pytest.approx(7 * 900e-6)
    assert math.isclose(expected_s(done, 2**20), 7 * 300e-6)


def _rate(byte_count: int, fastest_us: float) -> CollectiveRate:
    timing = Timing((fastest_us, 10 * fastest_us, 20 * fastest_us), 1)
    return CollectiveRate("gloo", "all_reduce", 2, byte_count, timing, 1.0, 1.0, True)

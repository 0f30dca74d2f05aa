"""The formulas of collectives."""

from __future__ import annotations

import pytest

from scalewise.doctor.collectives import algorithm_gb_s, bus_factor
from scalewise.records import Collective


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 8, 0.875),
        ("broadcast", 8, 1.0),
    ],
)
def test_bus_bandwidth_counts_what_each_link_carries(
    collective: Collective, ranks: int, factor: float
) -> None:
    assert bus_factor(collective, ranks) == pytest.approx(factor)


def test_algorithm_bandwidth_is_the_message_over_the_time() -> None:
    # 8 MiB in 0.07 ms
    assert algorithm_gb_s(8 * 2**20, 70e-6) == pytest.approx(119.84, abs=0.01)

"""Four ranks: what crosses two replicas, added up by hand, and what operations join."""

import json
import math
from typing import Any

import pytest

from fakes.rank_team import run_ranks
from fakes.replica_ranks import MAX_NORM

RANKS = 4


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("replicas")
    run_ranks("fakes.replica_ranks", folder, RANKS)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def test_neighbours_hold_a_replica_and_sum_and_average(found: list[dict[str, Any]]) -> None:
    """Shared parameters get the sum of their replica, gradients the mean of those of one place."""
    assert [(one["ranks"], one["place"]) for one in found] == [
        ([0, 1], 0), ([0, 1], 1), ([2, 3], 0), ([2, 3], 1),
    ]  # fmt: skip
    assert [one["summed"] for one in found] == [[30.0], [30.0], [70.0], [70.0]]
    first, second = {"own": [1.0, 2.0], "shared": [50.0]}, {"own": [2.0, 2.0], "shared": [50.0]}
    assert [one["averaged"] for one in found] == [first, second, first, second]


def test_the_norm_counts_every_parameter_of_a_replica_once(found: list[dict[str, Any]]) -> None:
    norm = math.sqrt(1 + 4 + 4 + 4 + 50**2)
    for one in found:
        for name, values in one["averaged"].items():
            expected = [value * MAX_NORM / (norm + 1e-6) for value in values]
            assert one["clipped"][name] == pytest.approx(expected, rel=1e-6)


def test_the_joined_result_is_that_of_one_who_had_everything(found: list[dict[str, Any]]) -> None:
    assert [one["joined"] for one in found] == [["count", "occupancy", "mean", "max", "fusion"]] * 4

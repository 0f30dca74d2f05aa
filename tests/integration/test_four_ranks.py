"""Four ranks: what crosses stages, added up by hand, and what operations join."""

import json
import math
from typing import Any

import pytest

from fakes.rank_team import run_ranks

RANKS = 4


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("stages")
    run_ranks("fakes.stage_ranks", folder, RANKS)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def test_copies_of_a_parameter_get_the_sum_of_their_gradients(found: list[dict[str, Any]]) -> None:
    assert [one["summed"] for one in found] == [
        {"own": [0.0, 2.0], "shared": [50.0]}, {"own": [1.0, 2.0], "shared": [20.0]},
        {"own": [2.0, 2.0], "shared": [30.0]}, {"own": [3.0, 2.0], "shared": [50.0]},
    ]  # fmt: skip


def test_the_norm_counts_every_parameter_once(found: list[dict[str, Any]]) -> None:
    norm = math.sqrt(0 + 1 + 4 + 9 + 4 * 4 + 50**2 + 20**2 + 30**2)
    for one in found:
        for name, values in one["summed"].items():
            expected = [value * one["max_norm"] / (norm + 1e-6) for value in values]
            assert one["clipped"][name] == pytest.approx(expected, rel=1e-6)


def test_a_batch_passes_all_stages_and_all_learn_its_loss(found: list[dict[str, Any]]) -> None:
    scored = [[[11234.0]], "target"]
    assert [one["validated"] for one in found] == [[2.0], [2.0], [2.0], [scored, 2.0]]


def test_the_joined_result_is_that_of_one_who_had_everything(found: list[dict[str, Any]]) -> None:
    assert [one["joined"] for one in found] == [["count", "occupancy", "mean", "max", "fusion"]] * 4

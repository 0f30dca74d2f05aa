"""The check of what arrives, and what an exercise asks for."""

from __future__ import annotations

import pytest
import torch

from scalewise.doctor.collectives import COLLECTIVES, exercise, most_iterations
from scalewise.records import Collective

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

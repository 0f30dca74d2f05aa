"""``sweep.max_gpu_hours`` counts devices, not cells: two GPUs for an hour are two hours."""

from __future__ import annotations

import pytest

from scalewise.sweep.progress import Budget

HOUR_S = 3600.0


@pytest.mark.parametrize(("devices", "hours"), [(1, 1.0), (2, 2.0), (8, 8.0)])
def test_what_was_used_is_counted_for_every_device(devices: int, hours: float) -> None:
    budget = Budget(100.0)
    budget.spend(devices, HOUR_S)
    assert budget.used_s == hours * HOUR_S


@pytest.mark.parametrize(("devices", "fits"), [(1, True), (2, True), (3, False)])
def test_what_a_cell_will_use_is_counted_for_every_device(devices: int, fits: bool) -> None:
    assert Budget(2.0).allows(devices, HOUR_S, running=()) is fits


@pytest.mark.parametrize(("running", "fits"), [(1, True), (2, False)])
def test_so_is_what_runs_beside_it(running: int, fits: bool) -> None:
    assert Budget(2.0).allows(1, HOUR_S, running=[(running, HOUR_S)]) is fits


def test_cells_of_a_queue_are_let_in_by_their_devices() -> None:
    found = Budget(4.0).share_out(2, [HOUR_S] * 3, at_most_s=HOUR_S, ahead=())
    assert (list(found.now), list(found.later)) == ([0, 1], [2])

"""Times until the end of a sweep."""

from __future__ import annotations

import pytest

from scalewise.records import Ending
from scalewise.sweep.status import CellStatus, Durations


def durations(*ended: tuple[str, float]) -> Durations:
    found = Durations()
    for config_id, seconds in ended:
        found.add(config_id, seconds)
    return found


def waiting(config_id: str, devices: int = 1) -> CellStatus:
    return CellStatus("cell", "id", config_id, Ending("waiting"), devices)


def running(elapsed_s: float, left_s: float | None = None, devices: int = 1) -> CellStatus:
    return CellStatus(
        "cell", "id", "a", Ending("running"), devices, elapsed_s=elapsed_s, seconds_left=left_s
    )


def test_a_cell_takes_the_mean_of_its_configuration_else_of_all() -> None:
    known = durations(("a", 8.0), ("a", 12.0), ("b", 100.0))
    assert known.of("a") == 10.0
    assert known.of("new") == 40.0
    assert durations().of("a") is None


@pytest.mark.parametrize(
    ("cell", "left_s"),
    [
        (waiting("a"), 10.0),
        (running(4.0), 6.0),
        (running(14.0), 0.0),
        (running(14.0, 3.0), 3.0),
    ],
)
def test_what_is_left_of_a_cell(cell: CellStatus, left_s: float) -> None:
    known = durations(("a", 10.0))
    assert known.seconds_left([cell], 1, packed=False) == left_s
    assert known.seconds_left([cell, cell], 1, packed=False) == 2 * left_s


def test_first_steps_tell_before_any_cell_has_ended() -> None:
    cells = [running(10.0, 30.0), waiting("b")]
    assert durations().seconds_left(cells, 1, packed=False) == 30 + 40


def test_nothing_known_is_none_and_nothing_left_is_zero() -> None:
    assert durations().seconds_left([waiting("a")], 1, packed=False) is None
    assert durations().seconds_left([running(1.0)], 1, packed=False) is None
    assert durations().seconds_left([], 1, packed=False) == 0.0


def test_packed_cells_run_beside_each_other() -> None:
    known = durations(("a", 10.0), ("wide", 30.0))
    narrow = [waiting("a")] * 8
    assert known.seconds_left(narrow, 4, packed=True) == 20.0
    assert known.seconds_left([*narrow, waiting("wide")], 4, packed=True) == 30.0, "longest"


def test_a_cluster_runs_as_many_side_by_side_as_now() -> None:
    known = durations(("a", 10.0))
    cells = [running(0.0, devices=2)] * 3 + [waiting("a", 2)] * 6
    assert known.seconds_left(cells, None, packed=False) == 30.0
    assert known.seconds_left([waiting("a", 2)] * 6, None, packed=False) == 60.0

"""Known durations in, known finishing times out."""

from __future__ import annotations

import random

import pytest

from scalewise.records import PlannedCell
from scalewise.sweep.durations import Measured, Remaining
from scalewise.sweep.estimate import estimate


def left(result: object) -> float:
    assert result is not None
    return result.seconds_left  # type: ignore[attr-defined,no-any-return]


def test_cells_of_a_measured_configuration_take_its_mean() -> None:
    measured = [Measured("a", 8.0), Measured("a", 12.0), Measured("b", 100.0)]
    waiting = [Remaining("1", "a", 1), Remaining("2", "b", 1)]
    assert left(estimate(measured, waiting, 1)) == pytest.approx(110.0)
    assert left(estimate(measured, waiting, 1, between_s=0.5)) == pytest.approx(111.0)


def test_a_running_cell_has_the_rest_of_its_time_left() -> None:
    measured = [Measured("a", 10.0)]
    assert left(estimate(measured, [Remaining("1", "a", 1, elapsed_s=4.0)], 1)) == 6.0
    overdue = Remaining("1", "a", 1, elapsed_s=14.0, steps_left_s=3.0)
    assert left(estimate(measured, [overdue], 1)) == 3.0


def test_heartbeats_tell_before_any_cell_has_ended() -> None:
    running = Remaining("1", "a", 1, elapsed_s=10.0, steps_left_s=30.0)
    again = Remaining("2", "a", 1)
    assert left(estimate([], [running, again], 1)) == pytest.approx(30.0 + 40.0)


def test_nothing_known_is_none_and_nothing_left_is_zero() -> None:
    assert estimate([], [Remaining("1", "a", 1)], 1) is None
    assert left(estimate([], [], 1)) == 0.0


def test_packed_cells_run_beside_each_other() -> None:
    measured = [Measured("a", 10.0)]
    waiting = [Remaining(str(i), "a", 1) for i in range(8)] + [Remaining("wide", "a", 4)]
    assert left(estimate(measured, waiting, 4, packed=True)) == pytest.approx(30.0)
    assert left(estimate(measured, waiting, 4)) == pytest.approx(90.0)


def test_the_interval_holds_the_truth_nine_times_of_ten() -> None:
    """Eight configurations, two of six repeats done, 10 % from run to run."""
    rng = random.Random(7)
    inside = 0
    for _ in range(400):
        means = [rng.uniform(5, 60) for _ in range(8)]
        runs = [[rng.gauss(m, 0.1 * m) for _ in range(6)] for m in means]
        measured = [Measured(str(c), r) for c, rows in enumerate(runs) for r in rows[:2]]
        waiting = [Remaining(f"{c}-{i}", str(c), 1) for c in range(8) for i in range(4)]
        found = estimate(measured, waiting, 1)
        assert found is not None
        truth = sum(sum(rows[2:]) for rows in runs)
        inside += found.low_s <= truth <= found.high_s
    assert 0.86 <= inside / 400 <= 0.985


def test_what_nobody_has_measured_is_less_certain() -> None:
    measured = [Measured(c, s) for c, s in (("a", 10.0), ("a", 10.5), ("b", 40.0), ("b", 41.0))]
    known = estimate(measured, [Remaining("1", "a", 1)], 1)
    unknown = estimate(measured, [Remaining("1", "new", 1)], 1)
    assert known is not None
    assert unknown is not None
    assert unknown.seconds_left == pytest.approx((10.25 * 40.5) ** 0.5)
    assert (unknown.high_s - unknown.low_s) > 3 * (known.high_s - known.low_s)


@pytest.mark.parametrize("others", [[10.0], [9.0, 10.0, 11.0], [1.0, 100.0]])
@pytest.mark.parametrize("config", ["a", "new"])
def test_a_silent_cell_that_is_late_has_as_much_left_as_it_is_late(
    others: list[float], config: str
) -> None:
    """Nothing of it is measured: that it ends at once is the one thing that is not known."""
    measured = [Measured("a", seconds) for seconds in others]
    typical = left(estimate(measured, [Remaining("1", config, 1)], 1))
    rests = []
    for share in (0.5, 0.9, 1.0, 1.2, 2.0, 10.0):
        late = Remaining("1", config, 1, elapsed_s=share * typical)
        for packed in (False, True):
            found = estimate(measured, [late], 1, packed)
            assert found is not None
            assert found.seconds_left >= abs(share - 1) * typical
            assert 0 < found.low_s <= found.seconds_left < found.high_s
        rests.append(found.seconds_left)
    assert rests[-1] == pytest.approx(9 * typical)
    assert rests[2] >= 0.05 * typical, "and not nothing when it is just due"
    assert found.high_s > 2 * found.seconds_left


def test_the_interval_of_what_is_hardly_known_does_not_begin_at_nothing() -> None:
    waiting = [Remaining(str(i), f"new{i}", 1) for i in range(3)]
    for measured in ([Measured("a", 14.0)], [Measured("a", 1.0), Measured("b", 196.0)]):
        found = estimate(measured, waiting, 1)
        assert found is not None
        assert found.seconds_left == pytest.approx(3 * 14.0)
        assert 0 < found.low_s < 0.6 * found.seconds_left
        ratios = found.seconds_left / found.low_s, found.high_s / found.seconds_left
        assert ratios[0] == pytest.approx(ratios[1])


def test_a_search_for_the_batch_size_says_nothing_of_training() -> None:
    searched = [Measured("s", 600.0, "find_batch")]
    waiting = [Remaining("1", "a", 1), Remaining("2", "a", 1)]
    assert estimate(searched, waiting, 1) is None
    trained = [*searched, Measured("b", 10.0)]
    assert left(estimate(trained, waiting, 1)) == pytest.approx(20.0)
    search = Remaining("3", "t", 1, workload="find_batch")
    assert left(estimate(trained, [search], 1)) == pytest.approx(600.0)
    running = Remaining("1", "a", 1, elapsed_s=5.0, steps_left_s=15.0)
    assert left(estimate(searched, [running, Remaining("2", "b", 1)], 1)) == pytest.approx(35.0)


@pytest.mark.parametrize(
    ("overrides", "workload"),
    [
        ((), "train"),
        (("lr=1",), "train"),
        (("workload=train", "workload=find_batch"), "find_batch"),
    ],
)
def test_a_planned_cell_says_what_it_does(overrides: tuple[str, ...], workload: str) -> None:
    assert PlannedCell("1", "a", "name", overrides, 0, 1).workload == workload


@pytest.mark.parametrize("elapsed_s", [0.1, 5.0, 5.9, 6.0, 9.0])
def test_what_has_not_started_yet_has_no_less_left_than_a_start_takes(elapsed_s: float) -> None:
    """A cell on two devices beside finished ones on one, which took 6 s, 5 s of it to start."""
    measured = [Measured("single", 6.0, width=1, start_s=5.0)]
    starting = Remaining("1", "ddp", 2, elapsed_s=elapsed_s)
    assert left(estimate(measured, [starting], 2)) >= 5.0


def test_a_start_that_is_late_still_has_its_training_before_it() -> None:
    measured = [Measured("a", 20.0, width=1, start_s=4.0)]
    late = Remaining("1", "a", 1, elapsed_s=7.0)
    assert left(estimate(measured, [late], 1)) == pytest.approx(3.0 + 16.0)
    assert left(estimate(measured, [Remaining("1", "a", 1, elapsed_s=1.0)], 1)) == 19.0


def test_what_comes_after_the_last_step_is_left_too() -> None:
    measured = [Measured("a", 20.0, width=1, start_s=4.0, end_s=3.0)]
    for config_id, elapsed_s in (("a", 25.0), ("new", 9.0)):
        last = Remaining("1", config_id, 1, elapsed_s=elapsed_s, steps_left_s=0.0)
        assert left(estimate(measured, [last], 1)) == 3.0


def test_cells_on_as_many_devices_tell_more_than_others() -> None:
    measured = [Measured("a", 5.0, width=1), Measured("b", 20.0, width=2)]
    assert left(estimate(measured, [Remaining("1", "c", 2)], 2)) == pytest.approx(20.0)
    assert left(estimate(measured, [Remaining("1", "c", 4)], 4)) == pytest.approx(10.0)

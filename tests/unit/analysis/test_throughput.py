"""Known times in, known samples/s out."""

from pathlib import Path

import numpy as np
import pytest

from fakes.recorded import DDP, SINGLE_MS, Spec, step_ms, swept
from fakes.step_files import common_steps
from scalewise.analysis.steps import (
    NotMeasuredError,
    find_long_steps,
    measure_anatomy,
    measure_throughput,
    timed_steps,
)
from scalewise.records import STEP_DTYPE, WARMUP, StepSeries


def series(rank: int, step_times_ms: list[float], samples: int, warmup: int = 0) -> StepSeries:
    rows = np.zeros(len(step_times_ms), STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        if name.endswith("_ms"):
            rows[name] = np.nan
    rows["step"] = np.arange(len(rows))
    rows["samples"] = samples
    rows["host_step_ms"] = step_times_ms
    rows["flags"][:warmup] = WARMUP
    return StepSeries(rank, rows, 0)


def fed(one: StepSeries, last: int) -> StepSeries:
    one.rows["samples"][-1] = last
    return one


@pytest.mark.parametrize(
    ("ranks", "rate", "steps", "slowest"),
    [
        ([series(0, [10.0] * 20, 32)], 3200.0, 20, 0),
        ([series(r, [10.0 + 2.5 * (r == 2)] * 8, 32) for r in range(4)], 4 * 32 / 0.0125, 8, 2),
        ([series(0, [1000.0] * 3 + [10.0] * 5, 32, warmup=3)], 3200.0, 5, 0),
        ([fed(series(0, [10.0] * 4, 32), last=8)], 104 / 0.04, 4, 0),
    ],
    ids=["one rank", "the slowest of four", "warm-up", "uneven last batch"],
)
def test_samples_of_all_ranks_over_the_time_of_the_slowest(
    ranks: list[StepSeries], rate: float, steps: int, slowest: int
) -> None:
    measured = measure_throughput(common_steps(ranks, len(ranks)))
    assert measured.global_samples_per_s == pytest.approx(rate)
    assert (measured.steps, measured.slowest_rank) == (steps, slowest)


def test_a_rank_cut_off_early_does_not_make_the_run_look_faster() -> None:
    whole = [series(0, [10.0] * 20, 32), series(1, [10.0] * 20, 32)]
    torn = [whole[0], series(1, [10.0] * 7, 32)]
    expected = measure_throughput(common_steps(whole, 2)).global_samples_per_s
    assert measure_throughput(common_steps(torn, 2)).global_samples_per_s == pytest.approx(expected)


@pytest.mark.parametrize(("steps", "p99"), [(100, 99.01), (99, None)])
def test_a_99th_percentile_needs_100_steps(steps: int, p99: float | None) -> None:
    times = measure_throughput(
        common_steps([series(0, [float(t + 1) for t in range(steps)], 1)], 1)
    ).step_time_ms
    assert (times.n, times.p50) == (steps, pytest.approx((steps + 1) / 2))
    assert times.p99 == (p99 and pytest.approx(p99))
    assert ("p99" in times.missing) == (p99 is None)


@pytest.mark.parametrize(
    ("ranks", "world_size", "words"),
    [
        ([series(0, [10.0], 1)], 2, "rank 0 found, of 2 ranks"),
        ([], 1, "rank none found"),
        ([series(0, [10.0] * 3, 1, warmup=3)], 1, "no timed step"),
        ([series(0, [float("nan")] * 3, 1)], 1, "no timed step"),
        ([series(0, [0.0] * 3, 1)], 1, "took no time"),
        ([series(0, [10.0] * 5, samples=0)], 1, "no sample could be counted"),
    ],
)
def test_what_cannot_be_measured_says_why(
    ranks: list[StepSeries], world_size: int, words: str
) -> None:
    with pytest.raises(NotMeasuredError, match=words):
        measure_throughput(common_steps(ranks, world_size))


@pytest.mark.parametrize("spec", [Spec(), DDP, Spec(kind="cpu")])
def test_a_recorded_run_gives_the_throughput_it_was_written_with(
    tmp_path: Path, spec: Spec
) -> None:
    cell = swept(tmp_path, spec).cells[0]
    measured = measure_throughput(common_steps(cell.steps, spec.devices))
    assert measured.global_samples_per_s == pytest.approx(128 / step_ms(spec) * 1e3, rel=1e-5)
    assert measured.timeline == ("host" if spec.kind == "cpu" else "device")


def test_anatomy_gives_every_phase_and_none_where_nothing_was_reduced(tmp_path: Path) -> None:
    cell = swept(tmp_path, Spec()).cells[0]
    anatomy = measure_anatomy(common_steps(cell.steps, 1))
    for line in ("host", "device"):
        mean = anatomy.mean(line)
        assert mean is not None
        for phase, ms in SINGLE_MS.items():
            assert mean.phases_ms[phase] == pytest.approx(ms, rel=1e-5)
        assert mean.phases_ms["exposed_comm"] is None
    assert anatomy.communication is None


def test_waiting_is_separated_from_the_transfer_by_comparing_ranks(tmp_path: Path) -> None:
    slow = Spec(strategy="ddp", devices=2, phases_ms=DDP.phases_ms, slow_ranks_ms={1: 4.0})
    cell = swept(tmp_path, slow).cells[0]
    communication = measure_anatomy(common_steps(cell.steps, 2)).communication
    assert communication is not None
    assert communication.transfer_ms == pytest.approx(0.6, rel=1e-5)
    assert communication.wait_ms == pytest.approx(2.0, rel=1e-5)  # 4 ms on one rank of two


STEP_MS = 3.45


def rank_with(rank: int, long_ms: dict[int, float], steps: int = 1000) -> StepSeries:
    """``steps`` steps of 3.45 ms with 32 samples, but for those that are given."""
    return series(rank, [long_ms.get(i, STEP_MS) for i in range(steps)], 32)


def test_a_long_step_is_set_aside_with_its_samples() -> None:
    one = rank_with(0, {507: 20_000.0})
    measured = measure_throughput(common_steps([one], 1))
    assert measured.global_samples_per_s == pytest.approx(32 / STEP_MS * 1e3, rel=0.01)
    assert measured.step_time_ms.mean == pytest.approx(STEP_MS, rel=0.01)
    assert (measured.steps, measured.samples) == (999, 999 * 32)
    (found,) = find_long_steps(timed_steps([one], 1)).found
    assert (found.step, found.rank, found.seconds) == (507, 0, 20.0)


def test_a_long_step_of_one_rank_is_set_aside_on_all() -> None:
    """Rank 0 waits for rank 1 in the step before: they are not in the same one."""
    ranks = [rank_with(0, {506: 19_500.0}), rank_with(1, {507: 20_000.0})]
    assert [len(one) for one in common_steps(ranks, 2)] == [998, 998]
    found = find_long_steps(timed_steps(ranks, 2))
    assert found.are_set_aside
    assert [(one.step, one.rank) for one in found.found] == [(506, 0), (507, 1)]
    expected = 2 * 32 / STEP_MS * 1e3
    assert measure_throughput(common_steps(ranks, 2)).global_samples_per_s == pytest.approx(
        expected, rel=0.01
    )


@pytest.mark.parametrize(
    ("long", "steps", "aside"),
    [
        (range(0, 1000, 5), 1000, False),  # 20 %
        (range(4), 1000, False),
        (range(3), 1000, True),
        (range(3), 300, True),
        (range(3), 299, False),  # more than 1 %
        (range(1), 99, False),
    ],
)
def test_long_steps_that_are_not_rare_stay_in_every_figure(
    long: range, steps: int, aside: bool
) -> None:
    ranks = [rank_with(0, dict.fromkeys(long, 20_000.0), steps)]
    found = find_long_steps(timed_steps(ranks, 1))
    assert (len(found.found), found.steps, found.are_set_aside) == (len(long), steps, aside)
    kept = steps - len(long) if aside else steps
    measured = measure_throughput(common_steps(ranks, 1))
    assert (measured.steps, measured.samples) == (kept, 32 * kept)


@pytest.mark.parametrize(
    ("step_ms", "long_ms", "warmup", "found"),
    [
        (3.45, 1999.0, 0, 0),
        (3.45, 2001.0, 0, 1),
        (800.0, 2399.0, 0, 0),
        (800.0, 2401.0, 0, 1),
        (3.45, 20_000.0, 1, 0),
    ],
)
def test_a_long_step_takes_two_seconds_and_three_medians(
    step_ms: float, long_ms: float, warmup: int, found: int
) -> None:
    times = [long_ms] + [step_ms] * 199
    assert len(find_long_steps(timed_steps([series(0, times, 32, warmup)], 1)).found) == found

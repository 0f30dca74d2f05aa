"""Known times in, known samples/s out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes.recorded import DDP, SINGLE_MS, Spec, analysed, repeats, swept, write_sweep
from fakes.sections import lines_of
from fakes.step_files import common_steps
from scalewise.analysis import Configuration, Pair, Run, analyse, load_sweep
from scalewise.analysis.doubts import doubt_speedup, find_remarks
from scalewise.analysis.run import measure_run
from scalewise.analysis.scaling import pair_all
from scalewise.analysis.step_figures import extremes
from scalewise.analysis.step_parts import long_step_figures
from scalewise.analysis.steps import (
    NotMeasuredError,
    StepTimes,
    find_long_steps,
    measure_anatomy,
    measure_throughput,
    timed_steps,
)
from scalewise.records import STEP_DTYPE, WARMUP, StepSeries


def series(rank: int, ms: list[float], samples: int | list[int], warmup: int = 0) -> StepSeries:
    rows = np.zeros(len(ms), STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        if name.endswith("_ms"):
            rows[name] = np.nan
    rows["step"] = np.arange(len(rows))
    rows["samples"] = samples
    rows["host_step_ms"] = ms
    rows["flags"][:warmup] = WARMUP
    return StepSeries(rank, rows, 0)


@pytest.mark.parametrize(
    ("ranks", "rate", "steps", "slowest"),
    [
        ([series(0, [10.0] * 20, 32)], 3200.0, 20, 0),
        ([series(r, [10.0 + 2.5 * (r == 2)] * 8, 32) for r in range(4)], 4 * 32 / 0.0125, 8, 2),
        ([series(0, [1000.0] * 3 + [10.0] * 5, 32, warmup=3)], 3200.0, 5, 0),
        ([series(0, [10.0] * 4, [32, 32, 32, 8])], 104 / 0.04, 4, 0),
        ([series(0, [10.0] * 20, 32), series(1, [10.0] * 7, 32)], 6400.0, 7, 0),
    ],
    ids=["one rank", "the slowest of four", "warm-up", "uneven last batch", "one cut off early"],
)
def test_samples_of_all_ranks_over_the_time_of_the_slowest(
    ranks: list[StepSeries], rate: float, steps: int, slowest: int
) -> None:
    measured = measure_throughput(common_steps(ranks, len(ranks)))
    assert measured.global_samples_per_s == pytest.approx(rate)
    assert (measured.steps, measured.slowest_rank) == (steps, slowest)


@pytest.mark.parametrize(("steps", "p99"), [(100, 99.01), (99, None)])
def test_a_99th_percentile_needs_100_steps(steps: int, p99: float | None) -> None:
    times = measure_throughput(
        common_steps([series(0, [float(t + 1) for t in range(steps)], 1)], 1)
    ).step_time_ms
    assert (times.n, times.p50) == (steps, pytest.approx((steps + 1) / 2))
    assert (times.p99, "p99" in times.missing) == (p99 and pytest.approx(p99), p99 is None)


@pytest.mark.parametrize(
    ("ranks", "world_size", "words"),
    [
        ([series(0, [10.0], 1)], 2, "rank 0 found, of 2 ranks"),
        ([], 1, "rank none found"),
        ([series(0, [10.0] * 3, 1, warmup=3)], 1, "no timed step"),
        ([series(0, [float("nan")] * 3, 1)], 1, "no timed step"),
        ([series(0, [0.0] * 3, 1)], 1, "took no time"),
    ],
)
def test_the_unmeasured_says_why(ranks: list[StepSeries], world_size: int, words: str) -> None:
    with pytest.raises(NotMeasuredError, match=words):
        measure_throughput(common_steps(ranks, world_size))


def test_steps_without_samples_have_their_times_and_no_rate() -> None:
    found = measure_throughput(common_steps([series(0, [10.0] * 5, samples=0)], 1))
    assert (found.samples, found.global_samples_per_s) == (None, None)
    assert found.step_time_ms.mean == pytest.approx(10.0)


def test_anatomy_gives_every_phase_and_none_where_nothing_was_reduced(tmp_path: Path) -> None:
    anatomy = measure_anatomy(common_steps(swept(tmp_path, Spec()).cells[0].steps, 1))
    for line in ("host", "device"):
        mean = anatomy.mean(line)
        for phase, ms in SINGLE_MS.items():
            assert mean.phases_ms[phase] == pytest.approx(ms, rel=1e-5)
        assert mean.phases_ms["exposed_comm"] is None
    assert anatomy.communication is None


def test_waiting_is_separated_from_the_transfer_by_comparing_ranks(tmp_path: Path) -> None:
    slow = Spec(strategy="ddp", devices=2, phases_ms=DDP.phases_ms, slow_ranks_ms={1: 4.0})
    cell = swept(tmp_path, slow).cells[0]
    communication = measure_anatomy(common_steps(cell.steps, 2)).communication
    assert communication.transfer_ms == pytest.approx(0.6, rel=1e-5)
    assert communication.wait_ms == pytest.approx(2.0, rel=1e-5)  # 4 ms on one rank of two


STEP_MS = 3.45


def rank_with(rank: int, long_ms: dict[int, float], steps: int = 1000) -> StepSeries:
    """``steps`` steps of 3.45 ms with 32 samples, but for those that are given."""
    return series(rank, [long_ms.get(i, STEP_MS) for i in range(steps)], 32)


def test_a_long_step_of_one_rank_is_set_aside_on_all() -> None:
    """Rank 0 waits for rank 1 in the step before: they are not in the same one."""
    ranks = [rank_with(0, {506: 19_500.0}), rank_with(1, {507: 20_000.0})]
    assert [len(one) for one in common_steps(ranks, 2)] == [998, 998]
    found = find_long_steps(timed_steps(ranks, 2))
    assert found.are_set_aside
    assert [(one.step, one.rank, one.seconds) for one in found.found] == [
        (506, 0, 19.5), (507, 1, 20.0)
    ]  # fmt: skip
    rate = measure_throughput(common_steps(ranks, 2)).global_samples_per_s
    assert rate == pytest.approx(2 * 32 / STEP_MS * 1e3, rel=0.01)


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
def test_long_steps_that_are_frequent_stay_in_figures(long: range, steps: int, aside: bool) -> None:
    ranks = [rank_with(0, dict.fromkeys(long, 20_000.0), steps)]
    found = find_long_steps(timed_steps(ranks, 1))
    assert (len(found.found), found.steps, found.are_set_aside) == (len(long), steps, aside)
    kept = steps - len(long) if aside else steps
    measured = measure_throughput(common_steps(ranks, 1))
    assert (measured.steps, measured.samples) == (kept, 32 * kept)


@pytest.mark.parametrize(
    ("step_ms", "long_ms", "warmup", "found"),
    [
        (3.45, 1999.0, 0, 0), (3.45, 2001.0, 0, 1), (3.45, 20_000.0, 1, 0),
        (800.0, 2399.0, 0, 0), (800.0, 2401.0, 0, 1),
    ],
)  # fmt: skip
def test_a_long_step_takes_two_seconds_and_three_medians(
    step_ms: float, long_ms: float, warmup: int, found: int
) -> None:
    times = [long_ms] + [step_ms] * 199
    assert len(find_long_steps(timed_steps([series(0, times, 32, warmup)], 1)).found) == found


# Steps of seconds: set aside, and named with their run and their length.
def with_long(run: Run, steps: tuple[int, ...], ms: float) -> Run:
    """These steps of every rank longer by ``ms`` on both timelines."""
    series = []
    for one in run.cell.steps:
        rows = one.rows.copy()
        for line in ("host", "device"):
            rows[f"{line}_step_ms"][list(steps)] += ms
        series.append(StepSeries(one.rank, rows, 0))
    return measure_run(replace(run.cell, steps=tuple(series)))


@pytest.mark.parametrize(
    ("long", "said"),
    [
        ((120,), "step 120 took 20.0 s on rank 0 (median 10 ms); set aside from"),
        ((20, 60), "2 of 190 steps are too many to be set aside"),
        (tuple(range(20, 60)), "and 37 more of more than 2 s (median 10 ms); 40 of 190"),
    ],
)
def test_a_report_names_long_steps_their_run_and_their_length(
    tmp_path: Path, long: tuple[int, ...], said: str
) -> None:
    analysis = analysed(tmp_path, Spec(steps=200))
    (config,) = analysis.measured
    assert long_step_figures(config.runs[0]) is None
    run = with_long(config.runs[0], long, 19_990.0)
    remarks = find_remarks(analysis.sweep, (replace(config, runs=(run,)),), (), {})
    (found,) = (one for one in remarks if one.code == "long_step")
    assert (found.run, found.about) == (run.cell.planned.name, config.config_id)
    assert said in found.text
    told = lines_of(replace(analysis, remarks=remarks), "remarks")
    assert any(found.text in line for line in told)


# The speedup by median steps, beside the one that long steps have a part in.
def configurations(path: Path, scaling: str = "strong") -> tuple[Configuration, ...]:
    sides = (replace(side, scaling=scaling) for side in (Spec(), DDP))
    sweep = write_sweep(path, [s for one in sides for s in repeats(one, [1.0, 1.01])])
    return analyse(load_sweep(sweep)).configurations


def with_median(config: Configuration, share: float) -> Configuration:
    """Every run's median step at ``share`` of its mean: the rest is in long steps."""
    runs = []
    for run in config.runs:
        mean = run.throughput.step_time_ms.mean
        times = StepTimes(mean, share * mean, 10 * mean, run.throughput.steps)
        runs.append(replace(run, throughput=replace(run.throughput, step_time_ms=times)))
    return replace(config, runs=tuple(runs))


def pair_of(*configs: Configuration) -> Pair:
    ((pair,), _) = pair_all(configs)
    return pair


@pytest.mark.parametrize(
    ("single_share", "multi_share", "differs"),
    [(1.0, 1.0, False), (1.0, 0.92, False), (1.0, 0.9, True), (0.9, 1.0, True), (0.7, 0.7, False)],
)
def test_medians_leave_the_long_steps_out(
    tmp_path: Path, single_share: float, multi_share: float, differs: bool
) -> None:
    single, multi = configurations(tmp_path)
    pair = pair_of(with_median(single, single_share), with_median(multi, multi_share))
    assert pair.speedup_of_medians == pytest.approx(pair.speedup.value * single_share / multi_share)
    means = [step.mean_over_median for step in pair.median_steps]
    assert means == pytest.approx([1 / multi_share, 1 / single_share])
    assert ("medians" in [one.code for one in doubt_speedup(pair, {}).remarks]) is differs
    assert pair_of(with_median(single, 0.0), multi).speedup_of_medians is None


def test_under_weak_scaling_twice_the_samples_count_twice(tmp_path: Path) -> None:
    pair = pair_of(*configurations(tmp_path, "weak"))
    assert pair.speedup_of_medians == pytest.approx(pair.speedup.value, rel=0.01)


def test_of_many_points_the_extremes_of_each_bin_stay() -> None:
    y = np.zeros(1000)
    y[[333, 334, 871]] = 5.0, -4.0, 9.0
    at, kept = extremes(np.arange(1000.0), y, most=20)
    assert len(at) <= 20
    assert {(333.0, 5.0), (334.0, -4.0), (871.0, 9.0)} <= {*zip(at, kept, strict=True)}
    assert extremes(at, kept, most=len(at))[0] is at
    # Two bins of 6 each: one point alone, and of seven the lowest, the fourth and the highest.
    x, y = np.array([0.0, 6, 7, 8, 9, 10, 11, 12]), np.array([5.0, 1, 2, 3, 4, 7, 6, 0])
    assert extremes(x, y, most=6)[0].tolist() == [0, 8, 10, 12]

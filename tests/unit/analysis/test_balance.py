"""Arrival finds the straggler that step time, memory and utilisation hide."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes.recorded import DDP, Spec, swept
from fakes.step_files import common_steps
from scalewise.analysis import CellRecords
from scalewise.analysis.balance import audit_shards, measure_balance
from scalewise.analysis.devices import DeviceEnergy, Usage, integrate, measure_energy, measure_usage
from scalewise.analysis.step_figures import figures_of
from scalewise.analysis.steps import NotMeasuredError
from scalewise.records import (
    DeviceSample,
    DeviceSeries,
    SampledDevice,
    ShardIndices,
    advice,
    cv_percent,
    cv_text,
    grade,
)
from scalewise.report.export import _readings_at


def usage_of(devices: Sequence[DeviceSeries], cell: CellRecords) -> Usage:
    steps = figures_of(cell)
    return measure_usage(devices, steps.all_s, steps.timed_s)


def recorded(path: Path, spec: Spec) -> CellRecords:
    return swept(path, spec).cells[0]


@pytest.mark.parametrize(
    ("engine", "seconds", "told"), [(17.0, 9.0, 17.0), (None, 9.0, 90.0), (None, 1.9, None)]
)
def test_utilisation_stands_in_for_an_activity_that_is_not_known(
    engine: float | None, seconds: float, told: float | None
) -> None:
    times = tuple(5.0 + at * seconds for at in (0.0, 0.4, 0.9))
    samples = tuple(
        {"a": DeviceSample("a", *read, sm_activity_percent=1.0, engine_activity_percent=engine)}
        for read in ((90.0, 10.0), (80.0, None), (100.0, 14.0))
    )
    series = DeviceSeries("h", "nvml", 1.0, (SampledDevice("a", 0, "H200"),), {}, times, samples)
    window = (5.0, 5.0 + seconds)
    (usage,) = measure_usage([series], window, window).devices
    assert (usage.engine_activity_percent, usage.memory_sd_mib) == (told, pytest.approx(8**0.5))


def test_a_rank_sleeping_20_ms_a_step_is_named_although_all_steps_are_equal(tmp_path: Path) -> None:
    phases = {"forward": 0.6, "backward": 0.6, "exposed_comm": 1.5, "optimizer": 0.5}
    spec = replace(DDP, kind="cpu", phases_ms={**DDP.phases_ms, **phases}, slow_ranks_ms={1: 20.0})
    cell = recorded(tmp_path, spec)
    assert cv_percent([float(np.nanmean(s.timed().column("step"))) for s in cell.steps]) < 0.001
    balance = measure_balance(common_steps(cell.steps, 2))
    assert balance.slowest_rank == 1
    first, *_, last = balance.history
    assert (first.first_step, last.last_step) == (int(cell.steps[0].timed().rows["step"][0]), 59)
    assert (balance.behind_ms, balance.grade) == (pytest.approx(20.0, rel=0.01), "poor")
    assert "rank 1" in advice(balance.grade, balance.slowest_rank)
    assert usage_of(cell.devices, cell).cv("memory_used_mib") < 1  # it cannot see the straggler


def test_ranks_late_in_turns_are_as_uneven_as_one_that_is_always_late(tmp_path: Path) -> None:
    cell = recorded(tmp_path, replace(DDP, kind="cpu"))
    rows = [one.timed().rows.copy() for one in cell.steps]
    for rank, one in enumerate(rows):
        one["host_arrival_ms"] = 10.0
        one["host_arrival_ms"][rank::2] += 7.0
        one["host_arrival_ms"][-2:] = 0.0  # a clock that stopped says nothing of them
    turns = measure_balance(
        common_steps([replace(s, rows=r) for s, r in zip(cell.steps, rows, strict=True)], 2)
    )
    assert (turns.cv_percent, turns.grade) == (pytest.approx(cv_percent([10.0, 17.0])), "poor")
    assert turns.behind_ms == pytest.approx(0.0)


def test_a_cv_is_graded_at_the_edges_and_written_as_it_is_graded() -> None:
    edges = {"excellent": (0.0, 4.99, np.nextafter(5, 0)), "good": (5.0, 9.99),
             "fair": (10.0, 19.99), "poor": (20.0,)}  # fmt: skip
    for expected, cvs in edges.items():
        written = [float(cv_text(cv)) for cv in cvs]
        assert {grade(cv) for cv in (*cvs, *written)} == {expected}
    written = [cv_text(cv) for cv in (0.0, 0.04, 0.06, 9.2, 9.94, 9.96, 9.9996, 10.0, 19.951)]
    assert written == ["0.0", "<0.1", "0.1", "9.2", "9.9", "9.96", "9.9996", "10.0", "19.95"]


def test_cv_is_over_all_ranks_there_are() -> None:
    assert cv_percent([10.0, 14.0]) == pytest.approx(100 * 2 / 12)
    with pytest.raises(ValueError, match="positive mean"):
        cv_percent([0.0, 0.0])


UNTIMED = {k: v for k, v in DDP.phases_ms.items() if k != "exposed_comm"}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (Spec(), "one rank"),
        (replace(DDP, phases_ms=UNTIMED), "arrival was not timed"),
        (replace(DDP, run_factor=0.0), "every arrival is zero"),
    ],
)
def test_what_has_no_balance_says_why(tmp_path: Path, spec: Spec, why: str) -> None:
    with pytest.raises(NotMeasuredError, match=why):
        measure_balance(common_steps(recorded(tmp_path, spec).steps, spec.devices))


def test_usage_is_taken_inside_the_timed_steps_only(tmp_path: Path) -> None:
    cell = recorded(tmp_path, DDP)
    usage = usage_of(cell.devices, cell)
    assert (usage.window, [d.samples for d in usage.devices]) == ("timed steps", [8, 8])
    assert usage.devices[1].utilization_percent == pytest.approx(89.0)
    assert usage.power_w == pytest.approx(810.0)
    assert usage.devices[0].throttle_reasons == ("software power cap",)
    own = replace(usage.devices[0], throttled_share=0.4)
    each = [(), ("power cap",), ("power cap", "heat"), ("heat",)]
    shares = [replace(own, throttle_reasons=reasons).power_capped_share for reasons in each]
    assert shares == [0.4, 0.4, None, None]
    assert [d.label for d in usage.devices] == ["GPU 0", "GPU 1"]


def test_too_short_a_run_has_no_usage_and_says_so(tmp_path: Path) -> None:
    cell = recorded(tmp_path, DDP)
    late = replace(cell.devices[0], times=tuple(t + 1e6 for t in cell.devices[0].times))
    with pytest.raises(NotMeasuredError, match="no device sample fell inside"):
        usage_of([late], cell)
    with pytest.raises(NotMeasuredError, match="no device series"):
        usage_of([], cell)


def test_gpm_counts_only_where_half_of_its_time_lies_in_the_window(tmp_path: Path) -> None:
    cell = recorded(tmp_path, DDP)
    (series,) = cell.devices
    timed = cell.steps[0].timed().rows
    start = int(timed[0]["start_ns"]) / 1e9
    length = (int(timed[-1]["start_ns"]) - int(timed[0]["start_ns"])) / 1e9

    def activity(shares: dict[float, float | None]) -> float | None:
        """SM activity read at these shares of the timed steps."""
        rows = tuple({d.id: DeviceSample(d.id, sm_activity_percent=sm) for d in series.devices}
                     for sm in shares.values())  # fmt: skip
        times = tuple(start + share * length for share in shares)
        usage = usage_of([replace(series, times=times, samples=rows)], cell)
        return usage.mean("sm_activity_percent")

    # The first reading has no value: it only begins the time of the second.
    assert activity({-0.5: None, 0.4: 10.0, 0.6: 90.0}) == pytest.approx(90.0)
    assert activity({0.0: None, 0.3: 10.0, 0.9: 90.0}) == pytest.approx((3 * 10 + 6 * 90) / 9)
    assert activity({-0.5: None, 0.4: 10.0}) is None


def test_energy_is_of_the_timed_steps_even_where_no_sample_fell_among_them(tmp_path: Path) -> None:
    cell = recorded(tmp_path, DDP)
    (series,) = cell.devices
    rows = cell.steps[0].rows
    begin, end = int(rows[0]["start_ns"]) / 1e9, int(rows[-1]["start_ns"]) / 1e9 + 1.0
    # Samples in the first step and after the last; 500 W all the while.
    times = (begin - 1.0, begin + 1e-3, end)
    samples = tuple(
        {d.id: DeviceSample(d.id, power_w=500.0, energy_j=500 * t - 500 * begin)
         for d in series.devices}
        for t in times
    )  # fmt: skip
    usage = usage_of([replace(series, times=times, samples=samples)], cell)
    assert usage.window == "all steps"
    seconds = float(cell.steps[0].timed().column("step").sum()) / 1e3
    assert usage.devices[0].energy.timed_j == pytest.approx(500 * seconds, rel=0.01)
    assert usage.energy_j("timed_j") == pytest.approx(2 * 500 * seconds, rel=0.01)


# Shards must be disjoint and cover the data; an earlier project's were not.
ORDER = np.random.default_rng(0).permutation(100)
SHUFFLED = [np.random.default_rng(rank).permutation(100) for rank in range(4)]
DRAWN = np.random.default_rng(3).integers(0, 100, size=(2, 80))


def padded(ranks: int, twice: int) -> list[list[int]]:
    """Shards of 400 samples, of which rank 0 feeds ``twice`` that rank 1 feeds too."""
    own = [list(range(rank, 400, ranks)) for rank in range(ranks)]
    own[0] += [ranks * i + 1 for i in range(twice)]
    return own


@pytest.mark.parametrize(
    ("indices", "settings", "verdict", "overlap"),
    [
        ([ORDER[rank::4] for rank in range(4)], {}, "sharded", 0),
        (SHUFFLED, {}, "every rank sees all data", 100),
        ([ORDER[:20]] * 2, {"complete": False}, "every rank sees all data", 20),
        # 10 samples on 4 ranks: padded to 12 with indices 0 and 1.
        ([[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]], {"size": 10}, "sharded", 2),
        ([range(60), range(50, 100)], {}, "overlap", 10),
        # A distributed sampler pads its last round with at most one sample for each other rank.
        (padded(2, 1), {"size": 400}, "sharded", 1),
        (padded(2, 2), {"size": 400}, "overlap", 2),
        (padded(4, 3), {"size": 400}, "sharded", 3),
        (padded(4, 4), {"size": 400}, "overlap", 4),
        # Less than a global batch may be left out.
        ([range(0, 93, 2), range(1, 93, 2)], {"batch": 8}, "sharded", 0),
        ([range(0, 92, 2), range(1, 92, 2)], {"batch": 8}, "incomplete", 0),
        ([[0, 1], [2, 3]], {"complete": False}, "sharded", 0),
        ([[0, 1, 2, 3], []], {"size": 4}, "incomplete", None),
        ([[], []], {"size": 4}, "not judged", None),
        (DRAWN, {}, "not judged", None),
        ([[0, 1, 2, 0, 1], [1, 2, 3]], {}, "not judged", None),
        ([[0, 1, 2, 0], [1, 2, 3]], {}, "overlap", 2),
        ([DRAWN[0]] * 2, {}, "every rank sees all data", len(np.unique(DRAWN[0]))),
        ([range(50)], {"ranks": 2}, "not judged", None),
        ([], {"ranks": 2}, "not judged", None),
    ],
)  # fmt: skip
def test_shards_are_disjoint_and_cover_the_data(
    indices: list[np.ndarray], settings: dict[str, Any], verdict: str, overlap: int | None
) -> None:
    size, complete = settings.get("size", 100), settings.get("complete", True)
    shards = [
        ShardIndices(rank, np.asarray(own, dtype=np.int64), size, complete)
        for rank, own in enumerate(indices)
    ]
    found = audit_shards(shards, settings.get("ranks", len(shards)), settings.get("batch"))
    assert (found.verdict, found.overlapping_samples) == (verdict, overlap)
    assert (found.coverage is None) == (not complete or overlap is None)


# Energy from the counter, placed in time by power samples, and checked against them.
_GPU = SampledDevice("GPU-a", 0, "NVIDIA H200")


def series(power_w: Sequence[float], energy_j: Mapping[int, float]) -> DeviceSeries:
    """One sample a second from Unix time 100 on; the counter read at the seconds given."""
    samples = tuple(
        {"GPU-a": DeviceSample("GPU-a", power_w=power, energy_j=energy_j.get(i))}
        for i, power in enumerate(power_w)
    )
    times = tuple(100.0 + i for i in range(len(power_w)))
    return DeviceSeries("h", "nvml", 1.0, (_GPU,), {}, times, samples)


def energy(one: DeviceSeries, start: float, end: float) -> DeviceEnergy:
    return measure_energy(one, _GPU, (start, end))


def test_the_counter_tells_how_much_and_the_samples_when() -> None:
    # Power samples read 10 % low, and all the work is in the second half.
    power = [90.0] * 6 + [630.0] * 5
    truth_j = integrate(np.arange(100.0, 111.0), np.array(power), 100.0, 110.0)
    found = energy(series(power, {0: 0.0, 10: truth_j / 0.9}), 106.0, 110.0)
    assert found.timed_j == pytest.approx(630 * 4 / 0.9)


def test_a_reading_of_a_device_is_that_of_a_step_for_two_intervals() -> None:
    cell: Any = SimpleNamespace(devices=[replace(series([1.0], {}), interval_s=3.0, samples=(
        {"GPU-a": DeviceSample("GPU-a", memory_used_mib=8.0)},))])  # fmt: skip
    found = _readings_at(cell, None, np.array([99.0, 100.0, 106.0, 106.5]))["memory_used_mib"]
    np.testing.assert_array_equal(found, [np.nan, 8.0, 8.0, np.nan])


def test_counter_readings_in_between_are_each_kept_to() -> None:
    # The second interval used twice what the samples say; the first exactly that.
    one = series([100.0] * 11, {0: 0.0, 5: 500.0, 10: 1500.0})
    assert energy(one, 101.0, 103.0).timed_j == pytest.approx(200)
    assert energy(one, 103.0, 107.0).timed_j == pytest.approx(200 + 400)


@pytest.mark.parametrize(
    ("energy_j", "unavailable", "window", "told", "missing"),
    [
        ({}, {"energy_j": "not supported (GPU 0)"}, (102.0, 106.0), (400.0, "power samples"),
         "not supported (GPU 0)"),
        ({0: 9000.0, 5: 10.0, 10: 510.0}, {}, (102.0, 103.0), (100.0, "power samples"),
         "it was reset while the run lasted"),
        *(({0: 9000.0, 5: still, 10: still}, {}, (106.0, 108.0), (200.0, "power samples"),
           "it stood still while the run lasted") for still in (9000.0, 9500.0)),
        ({5: 500.0}, {}, (102.0, 106.0), (400.0, "power samples"), "it was read 1 times"),
        ({}, {}, (102.6, 103.4), (None, None), "it was read 0 times"),  # one sample of power
    ],
)  # fmt: skip
def test_without_a_counter_two_power_samples_must_do(
    energy_j: dict[int, float], unavailable: dict[str, str], window: tuple[float, float],
    told: tuple[float | None, str | None], missing: str,
) -> None:  # fmt: skip
    found = energy(replace(series([100.0] * 11, energy_j), unavailable=unavailable), *window)
    assert (found.timed_j, found.source) == told
    assert (found.run_j, found.missing) == (None, (f"energy counter: {missing}",))


def test_integration_is_by_trapezoids_and_inside_the_samples_only() -> None:
    times, power = np.array([0.0, 1.0, 2.0]), np.array([0.0, 10.0, 0.0])
    ends = [(0.0, 2.0), (-1e-3, 2.0 + 1e-3), (0.5, 1.0), (-2e-3, 2.0), (0.5, 2.002), (1.0, 1.0)]
    found = [integrate(times, power, *each) for each in ends]
    assert (found[:3], found[3:]) == (pytest.approx([10.0, 10.0, 3.75]), [None] * 3)
    assert integrate(times[:2], power[:2], 0.0, 1.0) == 5.0

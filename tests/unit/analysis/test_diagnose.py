"""Each planted fault is named first; healthy runs are not accused."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.recorded import (
    DDP,
    DDP_MS,
    SINGLE_MS,
    Spec,
    analysed,
    one_run,
    repeats,
    with_devices,
    with_ranks,
)
from scalewise.analysis import Configuration, Run
from scalewise.analysis.diagnosis import diagnose, diagnose_run, in_order
from scalewise.analysis.diagnosis_case import Diagnosis
from scalewise.analysis.run import measure_run
from scalewise.records import STEP_DTYPE, StepSeries

FACTORS = [1.0, 1.02, 0.98]


def found(path: Path, single: Spec, multi: Spec) -> tuple[Diagnosis, ...]:
    specs = [*repeats(single, FACTORS), *repeats(multi, FACTORS)]
    (pair,) = analysed(path, *specs).pairs
    return diagnose(pair.multi, pair.single)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_healthy_runs_are_not_accused(tmp_path: Path, kind: str) -> None:
    assert found(tmp_path, Spec(kind=kind), replace(DDP, kind=kind)) == ()


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize(
    ("limit", "change", "ms"),
    [
        ("straggler", {"slow_ranks_ms": {1: 3.0}}, 3.0),
        ("input-bound", {"phases_ms": {**DDP_MS, "data_wait": 2.0}}, 2.0),
        ("communication-bound", {"phases_ms": {**DDP_MS, "exposed_comm": 4.0}}, 4.0),
        ("batch too small", {"phases_ms": {**DDP_MS, "forward": 3.0, "backward": 6.0}}, 5.1),
        ("not sharded", {"sharded": False}, 3.1),
    ],
)
def test_the_planted_fault_is_named_first_with_its_size(
    tmp_path: Path, kind: str, limit: str, change: dict[str, Any], ms: float
) -> None:
    first = found(tmp_path, Spec(kind=kind), replace(DDP, kind=kind, **change))[0]
    assert first.limit == limit
    assert first.ms == pytest.approx(ms, rel=0.03)
    assert first.evidence
    assert first.refutation


def test_a_straggler_is_named_with_its_gpu_phase_and_beginning(tmp_path: Path) -> None:
    (first, *_) = found(tmp_path, Spec(), replace(DDP, slow_ranks_ms={1: 3.0}))
    assert first.rank == 1
    assert "rank 1 on GPU 1" in first.evidence
    assert "from the first timed step" in first.evidence
    assert "forward (+3" in first.evidence


def test_a_straggler_that_begins_late_is_dated(tmp_path: Path) -> None:
    run = one_run(tmp_path, replace(DDP, kind="cpu"))
    rows = run.cell.steps[1].rows.copy()
    rows["host_arrival_ms"][40:] += 20.0
    rows["host_forward_ms"][40:] += 20.0
    late = StepSeries(1, rows, 0)
    cell = replace(run.cell, steps=(run.cell.steps[0], late))
    (first, *_) = diagnose_run(measure_run(cell))
    assert first.limit == "straggler"
    assert "since about step 40" in first.evidence


def test_a_different_rank_late_in_every_run_is_no_straggler(tmp_path: Path) -> None:
    specs = repeats(DDP, FACTORS)
    specs = [replace(s, slow_ranks_ms={i % 2: 3.0}) for i, s in enumerate(specs[:2])]
    (config,) = analysed(tmp_path, *specs).measured
    assert diagnose_run(config.runs[0])[0].limit == "straggler"
    assert [d for d in diagnose(config) if d.limit == "straggler"] == []


def test_one_step_in_fifty_that_stalls(tmp_path: Path) -> None:
    run = one_run(tmp_path, Spec(kind="cpu", steps=210))
    rows = run.cell.steps[0].rows.copy()
    rows["host_step_ms"][50::50] += 100.0
    rows["host_other_ms"][50::50] += 100.0
    stalled = measure_run(replace(run.cell, steps=(StepSeries(0, rows, 0),)))
    (first,) = diagnose_run(stalled)
    assert first.limit == "stalls"
    assert first.ms == pytest.approx(4 * 100 / 200, rel=0.01)
    assert "4 of 200 steps" in first.evidence


def test_uneven_batches_are_named_with_the_counts(tmp_path: Path) -> None:
    run = one_run(tmp_path, DDP)
    rows = run.cell.steps[0].rows.copy()
    assert rows.dtype == STEP_DTYPE
    rows["samples"] = 96
    uneven = replace(run.cell, steps=(StepSeries(0, rows.copy(), 0), run.cell.steps[1]))
    # Shares as large as the devices are fast: nobody is late, and nothing is lost.
    assert "uneven shards" not in [d.limit for d in diagnose_run(measure_run(uneven))]
    rows["device_arrival_ms"] += 2.3
    late = replace(run.cell, steps=(StepSeries(0, rows, 0), run.cell.steps[1]))
    (found,) = [d for d in diagnose_run(measure_run(late)) if d.limit == "uneven shards"]
    assert "rank 0: 4,800, rank 1: 3,200" in found.evidence


def test_a_rank_with_more_samples_is_not_also_called_slow(tmp_path: Path) -> None:
    run = one_run(tmp_path, replace(DDP, kind="cpu"))
    heavy, light = (one.rows.copy() for one in run.cell.steps)
    heavy["samples"], light["samples"] = 96, 32  # 4.7 ms of compute: 2.35 more, 2.35 less
    for name in ("host_arrival_ms", "host_forward_ms"):
        heavy[name] += 4.7
    steps = (StepSeries(0, heavy, 0), StepSeries(1, light, 0))
    (first,) = diagnose_run(measure_run(replace(run.cell, steps=steps)))
    assert (first.limit, first.rank) == ("uneven shards", 0)
    heavy["host_arrival_ms"] += 20.0
    slow = diagnose_run(measure_run(replace(run.cell, steps=steps)))
    assert "straggler" in [d.limit for d in slow]


@pytest.mark.parametrize(
    ("sm", "dram", "limit"),
    [(20.0, 10.0, "launch-bound"), (70.0, 75.0, "memory-bound"), (95.0, 20.0, "compute-bound")],
)
def test_gpm_tells_what_fills_the_gpu(tmp_path: Path, sm: float, dram: float, limit: str) -> None:
    run = one_run(tmp_path, Spec())
    (first,) = diagnose_run(with_devices(run, sm_activity_percent=sm, dram_activity_percent=dram))
    assert first.limit == limit


def test_a_throttled_gpu_is_named_with_its_clocks(tmp_path: Path) -> None:
    run = one_run(tmp_path, DDP)
    assert run.usage is not None
    cool, hot = run.usage.devices
    hot = replace(
        hot,
        throttled_share=0.9,
        throttle_reasons=("hardware thermal slowdown",),
        sm_clock_mhz=1200.0,
        top_sm_clock_mhz=1980.0,
    )
    (first,) = diagnose_run(replace(run, usage=replace(run.usage, devices=(cool, hot))))
    assert first.limit == "throttled"
    assert first.rank == 1
    assert "1200 of 1980 MHz" in first.evidence


@pytest.mark.parametrize(
    ("reason", "mhz", "named"),
    [
        ("power cap", 1896.0, False),  # as recorded on a healthy H200 under full load
        ("power cap", 1600.0, True),
        ("hardware thermal slowdown", 1896.0, True),
    ],
)
def test_a_power_limit_is_no_fault_until_it_costs_much(
    tmp_path: Path, reason: str, mhz: float, named: bool
) -> None:
    clock = {"sm_clock_mhz": mhz, "top_sm_clock_mhz": 1980.0}
    held = {"throttled_share": 1.0, "throttle_reasons": (reason,), **clock}
    found = diagnose_run(with_devices(one_run(tmp_path, DDP), **held))
    assert ("throttled" in [d.limit for d in found]) == named


def with_run_queue(run: Run, *delays_ms: float | None) -> Run:
    return with_ranks(run, *({"run_queue_ms_per_step": ms} for ms in delays_ms))


def with_activity(run: Run, sm: float) -> Run:
    return with_devices(run, sm_activity_percent=sm)


def test_a_crowded_host_is_named_by_the_run_queue_delay_of_its_worst_rank(tmp_path: Path) -> None:
    run = one_run(tmp_path, replace(DDP, kind="cpu"))
    (first,) = diagnose_run(with_run_queue(run, 0.1, 3.0))
    assert (first.limit, first.ms) == ("host oversubscribed", 3.0)
    assert "rank 0: 0.1, rank 1: 3 ms a step" in first.evidence
    assert diagnose_run(with_run_queue(run, 0.1, 0.2)) == []
    assert diagnose_run(with_run_queue(run, None, None)) == []


@pytest.mark.parametrize(("late", "ms"), [(slice(None, None, 4), 9.0), (slice(20, None, 20), 60.0)])
def test_a_rank_that_is_late_now_and_then_is_no_straggler(
    tmp_path: Path, late: slice, ms: float
) -> None:
    """Recorded on two H200 with steps of 8 ms: one step in four 9 ms late."""
    run = one_run(tmp_path, replace(DDP, kind="cpu"))
    rows = run.cell.steps[1].rows.copy()
    rows["host_arrival_ms"][late] += ms
    cell = replace(run.cell, steps=(run.cell.steps[0], StepSeries(1, rows, 0)))
    assert "straggler" not in [d.limit for d in diagnose_run(measure_run(cell))]


def test_noise_of_single_steps_accuses_nobody(tmp_path: Path) -> None:
    run = one_run(tmp_path, replace(DDP, kind="cpu", steps=210))
    rng = np.random.default_rng(0)
    series = []
    for one in run.cell.steps:
        rows = one.rows.copy()
        extra = rng.exponential(0.3, len(rows))
        for name in ("host_step_ms", "host_arrival_ms", "host_forward_ms"):
            rows[name] += extra
        series.append(StepSeries(one.rank, rows, 0))
    assert diagnose_run(measure_run(replace(run.cell, steps=tuple(series)))) == []


def with_steps(run: Run, *rows: np.ndarray) -> Run:
    series = tuple(StepSeries(rank, one, 0) for rank, one in enumerate(rows))
    return measure_run(replace(run.cell, steps=series))


@pytest.mark.parametrize(("at", "named"), [((20, 21, 22), False), ((20, 60, 110), True)])
def test_one_interruption_is_no_stall_however_many_steps_it_lasts(
    tmp_path: Path, at: tuple[int, ...], named: bool
) -> None:
    run = one_run(tmp_path, Spec(kind="cpu", steps=160))
    rows = run.cell.steps[0].rows.copy()
    for name in ("host_step_ms", "host_other_ms"):
        rows[name][list(at)] += 300.0
    assert ("stalls" in [d.limit for d in diagnose_run(with_steps(run, rows))]) == named


def test_a_rank_that_waits_for_its_own_threads_is_not_crowded_out(tmp_path: Path) -> None:
    run = with_run_queue(one_run(tmp_path, replace(DDP, kind="cpu")), 0.1, 3.0)
    own = with_ranks(
        run, {}, {"other_threads_cpu_ms_per_step": 2.9}
    )  # of a collective, on its one core
    assert diagnose_run(own) == []
    (first,) = diagnose_run(with_ranks(run, {}, {"other_threads_cpu_ms_per_step": 1.0}))
    assert (first.limit, first.ms) == ("host oversubscribed", pytest.approx(2.0))


def test_a_rank_that_is_late_for_want_of_a_core_is_no_straggler(tmp_path: Path) -> None:
    run = one_run(tmp_path, replace(DDP, kind="cpu", slow_ranks_ms={1: 3.0}))
    assert [d.limit for d in diagnose_run(run)] == ["straggler"]
    crowded = diagnose_run(with_run_queue(run, 0.0, 2.8))
    assert [d.limit for d in crowded] == ["host oversubscribed"]


def test_a_loader_that_computing_hides_costs_nothing(tmp_path: Path) -> None:
    run = one_run(tmp_path, DDP)
    rows = [one.rows.copy() for one in run.cell.steps]
    for one in rows:
        one["host_data_wait_ms"] += 2.0
        one["host_other_ms"] -= 0.1
    assert diagnose_run(with_steps(run, *rows)) == []
    for one in rows:
        one["device_data_wait_ms"] += 2.0
        one["device_step_ms"] += 2.0
    assert [d.limit for d in diagnose_run(with_steps(run, *rows))] == ["input-bound"]


@pytest.mark.parametrize(("loader_ms", "named"), [(0.0, False), (3.0, True)])
def test_a_gpu_that_has_caught_up_with_its_host_is_late_for_no_fault_of_its_own(
    tmp_path: Path, loader_ms: float, named: bool
) -> None:
    """The others' hosts had run a step ahead and kept their lead."""
    run = one_run(tmp_path, replace(DDP, slow_ranks_ms={1: 3.0}))
    ahead, late = (one.rows.copy() for one in run.cell.steps)
    ahead["device_data_wait_ms"] = 0.001
    late["host_data_wait_ms"] += loader_ms
    limits = [d.limit for d in diagnose_run(with_steps(run, ahead, late))]
    assert ("straggler" in limits) == named


@pytest.mark.parametrize(
    ("sm", "named"),
    [(25.0, ["batch too small"]), (5.0, ["launch-bound", "batch too small"])],
)
def test_launching_is_the_limit_only_if_the_whole_batch_would_not_fill_the_gpu(
    tmp_path: Path, sm: float, named: list[str]
) -> None:
    divided = replace(DDP, phases_ms={**DDP_MS, "forward": 2.7, "backward": 6.0})
    specs = [Spec(), divided]
    (pair,) = analysed(tmp_path, *specs).pairs
    found = diagnose_run(with_activity(pair.multi.runs[0], sm), pair.single)
    assert [d.limit for d in in_order(found)] == named


def in_turns(run: Run, ms: float) -> Run:
    """Now one rank and now the other is late, and the other waits for it."""
    rows = [one.rows.copy() for one in run.cell.steps]
    for line in ("device", "host"):
        for late, waits, turn in ((0, 1, slice(0, None, 2)), (1, 0, slice(1, None, 2))):
            for phase in ("forward", "arrival", "step"):
                rows[late][f"{line}_{phase}_ms"][turn] += ms
            for phase in ("exposed_comm", "step"):
                rows[waits][f"{line}_{phase}_ms"][turn] += ms
    return with_steps(run, *rows)


@pytest.mark.parametrize(("kind", "named"), [("cuda", ["batch too small"]), ("cpu", [])])
@pytest.mark.parametrize("late_ms", [0.0, 6.0])
def test_gpus_that_wait_in_turns_save_nothing_by_dividing(
    tmp_path: Path, kind: str, named: list[str], late_ms: float
) -> None:
    """Recorded on two H200s: the host is the pace of a small batch, with half of it too."""
    specs = [Spec(kind=kind), replace(DDP, kind=kind)]
    (pair,) = analysed(tmp_path, *specs).pairs
    found = diagnose_run(in_turns(pair.multi.runs[0], late_ms), pair.single)
    assert [d.limit for d in found] == (named if late_ms else [])
    if late_ms and named:
        # 3 of computing, and each rank waits 6 in every other step, of 4.5 that dividing saves.
        assert found[0].ms == pytest.approx(4.7 + 3.0 - 4.5 + 3.0 + 0.6, rel=0.03)
        assert "3 ms of waiting for each other in turns" in found[0].evidence


def test_a_gpu_that_waits_between_steps_is_not_launch_bound(tmp_path: Path) -> None:
    slow = replace(DDP, phases_ms={**DDP_MS, "data_wait": 10.0})
    run = with_activity(one_run(tmp_path, slow), 27.0)  # 4.3 of 16 ms, all of it computing
    assert "launch-bound" not in [d.limit for d in diagnose_run(run)]


def test_allocator_retries_cost_what_long_steps_take_beyond_the_median(tmp_path: Path) -> None:
    run = one_run(tmp_path, DDP)
    rows = [one.rows.copy() for one in run.cell.steps]
    rows[1]["device_backward_ms"][20] += 5.0
    run = with_ranks(with_steps(run, *rows), {}, {"allocation_retries": 1})
    (found,) = [d for d in diagnose_run(run) if d.limit == "allocator thrash"]
    assert found.rank == 1
    assert found.ms == pytest.approx(5.0 / 50, abs=0.05)


@pytest.mark.parametrize(("lost_ms", "named"), [(0.0, ["compute-bound"]), (3.0, [])])
def test_a_gpu_that_waits_for_a_quarter_of_the_step_is_not_compute_bound(
    tmp_path: Path, lost_ms: float, named: list[str]
) -> None:
    run = one_run(tmp_path, Spec())
    rows = run.cell.steps[0].rows.copy()
    rows["device_step_ms"] += lost_ms  # nobody knows of what
    lost = with_activity(with_steps(run, rows), 95.0 * 10 / (10 + lost_ms))
    assert [d.limit for d in diagnose_run(lost)] == named


def with_crowd(config: Configuration, ms: float) -> Configuration:
    return replace(config, runs=tuple(with_run_queue(r, *[ms] * r.world_size) for r in config.runs))


@pytest.mark.parametrize(
    ("crowds_ms", "named"),
    [
        ((0.0, 0.0), {"batch too small": 5.1}),
        # Crowded, the share of the batch takes as long as all of it alone.
        ((5.0, 0.0), {"host oversubscribed": 5.0}),
        # Both were: less their delays, 7 and 6.3 ms of computing still save nothing.
        ((2.0, 3.0), {"batch too small": 4.45, "host oversubscribed": 2.0}),
        # The single device may have computed for no time at all: there is nothing to compare with.
        ((0.0, 9.5), {}),
    ],
)
def test_the_delay_of_a_crowd_is_no_fixed_cost_of_a_batch(
    tmp_path: Path, crowds_ms: tuple[float, float], named: dict[str, float]
) -> None:
    divided = replace(DDP, kind="cpu", phases_ms={**DDP_MS, "forward": 3.0, "backward": 6.0})
    specs = [Spec(kind="cpu"), divided]
    (pair,) = analysed(tmp_path, *specs).pairs
    multi, single = with_crowd(pair.multi, crowds_ms[0]), with_crowd(pair.single, crowds_ms[1])
    found = in_order(diagnose_run(multi.runs[0], single))
    assert {d.limit: d.ms for d in found} == pytest.approx(named, rel=0.03)
    assert [d.limit for d in found] == list(named)


def hiccuping(run: Run, steps: int, extra_ms: float) -> Run:
    """Every ``steps``-th step is longer by ``extra_ms`` of backward."""
    rows = run.cell.steps[0].rows.copy()
    for name in ("host_backward_ms", "host_step_ms"):
        rows[name][::steps] += extra_ms
    return with_steps(run, rows)


@pytest.mark.parametrize(
    ("crowds_ms", "before_ms"),
    [
        # Of a crowd that makes a few steps long the typical one knows nothing.
        ([1.0], 9.0),
        # One that has more than these steps took had it of the others.
        ([3.5], 6.82),
        # More than a third of the step: what it takes alone is not known.
        ([3.8], None),
        # Nor where that is so in half of its runs: one is no twin of both.
        ([0.0, 3.8], None),
        ([0.0, 0.0, 3.8], 9.0),
    ],
)
def test_what_a_crowd_had_of_the_single_device_is_taken_from_a_mean(
    tmp_path: Path, crowds_ms: list[float], before_ms: float | None
) -> None:
    """Its delay is one: taken from a median that it did not touch, it made 0.129 ms of 1.38."""
    divided = replace(DDP, kind="cpu", phases_ms={**DDP_MS, "forward": 3.0, "backward": 6.0})
    specs = [*(Spec(kind="cpu", repeat=i) for i in range(len(crowds_ms))), divided]
    (pair,) = analysed(tmp_path, *specs).pairs
    # A mean step of 11 ms, of which 10 are forward and backward; 9 of the median step's 10.
    runs = tuple(
        with_run_queue(hiccuping(run, 5, 5.0), ms)
        for run, ms in zip(pair.single.runs, crowds_ms, strict=True)
    )
    found = diagnose_run(pair.multi.runs[0], replace(pair.single, runs=runs))
    evidence = next((d.evidence for d in found if d.limit == "batch too small"), "")
    told = [float(ms) for ms in re.findall(r"and ([\d.]+) ms with all of it", evidence)]
    assert told == ([] if before_ms is None else [pytest.approx(before_ms, rel=0.01)])


@pytest.mark.parametrize(
    ("crowd_ms", "named"),
    [
        (0.0, {"input-bound": 3.0}),
        (1.5, {"input-bound": 1.5, "host oversubscribed": 1.5}),
        (3.2, {"host oversubscribed": 3.2}),
    ],
)
def test_what_a_loader_waits_for_a_core_is_counted_once(
    tmp_path: Path, crowd_ms: float, named: dict[str, float]
) -> None:
    run = one_run(tmp_path, Spec(kind="cpu", phases_ms={**SINGLE_MS, "data_wait": 3.0}))
    found = diagnose_run(with_run_queue(run, crowd_ms))
    assert {d.limit: d.ms for d in found} == pytest.approx(named, rel=0.03)


@pytest.mark.parametrize(
    ("crowd_ms", "told"),
    [(4.36e-05, ""), (0.05, ""), (0.5, " (less 0.5 ms without a core)")],
)
def test_a_crowd_that_no_figure_shows_is_not_told(
    tmp_path: Path, crowd_ms: float, told: str
) -> None:
    starved = replace(DDP, kind="cpu", phases_ms={**DDP_MS, "data_wait": 3.0})
    divided = replace(DDP, kind="cpu", phases_ms={**DDP_MS, "forward": 3.0, "backward": 6.0})
    waits = with_run_queue(one_run(tmp_path / "starved", starved), crowd_ms, 0.0)
    specs = [Spec(kind="cpu"), divided]
    (pair,) = analysed(tmp_path / "divided", *specs).pairs
    slow = with_crowd(pair.multi, crowd_ms).runs[0]
    cases = [
        ("input-bound", diagnose_run(waits)),
        ("batch too small", diagnose_run(slow, pair.single)),
    ]
    for limit, named in cases:
        (evidence,) = [d.evidence for d in named if d.limit == limit]
        assert ("without a core" in evidence) == bool(told), evidence
        assert told in evidence


@pytest.mark.parametrize("is_rare", [False, True])
def test_a_transfer_that_few_steps_make_is_told_with_its_median(
    tmp_path: Path, is_rare: bool
) -> None:
    run = one_run(tmp_path, replace(DDP, kind="cpu"))
    rows = [one.rows.copy() for one in run.cell.steps]
    for one in rows:
        for name in ("host_exposed_comm_ms", "host_step_ms"):
            one[name][:: 10 if is_rare else 1] += 10.0 if is_rare else 1.0
    (found,) = [d for d in diagnose_run(with_steps(run, *rows)) if d.limit == "communication-bound"]
    assert found.evidence.startswith("on average 1.6 ms a step")
    assert ("(median 0.6" in found.evidence) == is_rare


def test_what_can_be_mended_stands_before_what_is_well_spent() -> None:
    spent = Diagnosis("compute-bound", 40.0, 50.0, "", "")
    loss = Diagnosis("input-bound", 6.0, 50.0, "", "")
    void = Diagnosis("not sharded", 1.0, 50.0, "", "", invalidates=True)
    assert in_order([spent, loss, void]) == (void, loss, spent)

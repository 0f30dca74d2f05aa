"""What a planted delay costs lands in its cause; losses add up; limits are a tenth of the step."""

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.recorded import DDP, DDP_MS, SINGLE_MS, Spec, analysed, with_devices, with_ranks
from fakes.simulated_training import Delay, Training, simulate
from scalewise.analysis import CAUSE_WORDS, Configuration, Run
from scalewise.analysis.loss_budget import LossBudget, make_budget
from scalewise.analysis.run import measure_run
from scalewise.records import STEP_DTYPE, StepSeries

ALONE = Spec()

GPU_MS = {"forward": 8.0, "backward": 16.0, "optimizer": 1.0}
EARLY_HOST_MS = {
    "data_wait": 0.1, "h2d": 0.1, "forward": 4.0, "backward": 6.0, "optimizer": 0.8, "other": 0.1,
}  # fmt: skip
LATE_HOST_MS = {
    "data_wait": 0.3, "h2d": 0.1, "forward": 14.0, "backward": 20.0, "optimizer": 1.2, "other": 0.3,
}  # fmt: skip
CPU_MS = {"data_wait": 0.3, "forward": 10.0, "backward": 20.0, "optimizer": 1.0, "other": 0.2}

HOSTS = {"early host": (EARLY_HOST_MS, GPU_MS), "late host": (LATE_HOST_MS, GPU_MS),
         "cpu": (CPU_MS, None)}  # fmt: skip

SHARES: dict[str, Delay] = {
    "both": lambda rank, step: 1,
    "one rank": lambda rank, step: rank == 1,
    "turns": lambda rank, step: step % 2 == rank,
    "later": lambda rank, step: rank == 1 and step >= 900,
    "stall": lambda rank, step: 20 * (step % 20 == 10),
}
"""What of a delay a rank has in a step."""


@functools.cache
def recorded(kind: str, ranks: int) -> Configuration:
    """A run on so many devices, whose steps and activity are to be replaced."""
    with tempfile.TemporaryDirectory() as folder:
        return analysed(Path(folder), replace(DDP if ranks > 1 else Spec(), kind=kind)).measured[0]


def configuration(training: Training, *, activity: bool = True) -> Configuration:
    """One simulated run; ``activity``: whether it is known for how long its GPUs worked."""
    config = recorded("cpu" if training.gpu_ms is None else "cuda", training.ranks)
    steps, shares = simulate(training)
    usage = config.runs[0].usage
    devices = tuple(
        replace(one, engine_activity_percent=100 * share if activity else None, sm_clock_mhz=None)
        for one, share in zip(usage.devices, shares, strict=True)
    )
    run = measure_run(replace(config.runs[0].cell, steps=steps))
    return replace(config, runs=(replace(run, usage=replace(usage, devices=devices)),))


def pair(host: str) -> tuple[Training, Training]:
    """One device with all of the batch, and two with half of it each."""
    host_ms, gpu_ms = HOSTS[host]
    halved = {
        p: ms / 2 if p in ("forward", "backward") else ms for p, ms in (gpu_ms or host_ms).items()
    }
    return Training(ranks=1, host_ms=host_ms, gpu_ms=gpu_ms), Training(
        host_ms=halved if gpu_ms is None else host_ms, gpu_ms=halved if gpu_ms else None
    )


def causes(budget: LossBudget) -> dict[str, float]:
    return {loss.cause: loss.ms for loss in budget.losses}


PLANTED = [
    (host, cause, name, ms)
    for ms in (1.0, 20.0)
    for host, cause, name in [
        ("early host", "device_work", "small kernels"), ("early host", "waiting", "slow GPU"),
        ("early host", "waiting", "slow GPUs in turns"), ("early host", "transfer", "transfer"),
        ("late host", "host_late", "host sleep"),
        ("late host", "host_late", "host sleep of one rank"), ("late host", "loader", "loader"),
        ("late host", "waiting", "loader of one rank"), ("cpu", "device_work", "host sleep"),
        ("cpu", "loader", "loader"), ("cpu", "waiting", "host sleep of one rank"),
        ("cpu", "waiting", "loader of one rank"), ("cpu", "waiting", "hosts in turns"),
        ("cpu", "between_steps", "callbacks"), ("cpu", "transfer", "transfer"),
    ]
] + [
    # A stall of 20 ms, 1 a step, is no longer than three steps, and so nothing out of the ordinary.
    (host, "long_steps", "stall", ms)
    for host in HOSTS
    for ms in (10.0, 20.0)
]  # fmt: skip


def planted(training: Training, name: str, ms: float) -> Training:
    if name == "transfer":
        return replace(training, transfer_ms=training.transfer_ms + ms)
    where, phase, share = {
        "small kernels": ("gpu_delay", "forward", "both"),
        "slow GPU": ("gpu_delay", "forward", "one rank"),
        "slow GPUs in turns": ("gpu_delay", "forward", "turns"),
        "host sleep": ("host_delay", "forward", "both"),
        "host sleep of one rank": ("host_delay", "forward", "one rank"),
        "hosts in turns": ("host_delay", "forward", "turns"),
        "loader": ("host_delay", "data_wait", "both"),
        "loader of one rank": ("host_delay", "data_wait", "one rank"),
        "callbacks": ("host_delay", "other", "both"),
        "loader of one rank later on": ("host_delay", "data_wait", "later"),
        "stall": ("host_delay", "other", "stall"),
    }[name]
    return replace(training, **{where: {phase: lambda rank, step: ms * SHARES[share](rank, step)}})


@functools.cache
def healthy_pair(host: str) -> list[Configuration]:
    """One device and two, without any fault."""
    return [configuration(one) for one in pair(host)]


@pytest.mark.parametrize(("host", "cause", "name", "ms"), PLANTED)
def test_a_planted_delay_lands_in_its_cause(host: str, cause: str, name: str, ms: float) -> None:
    _, multi = pair(host)
    baseline, undisturbed = healthy_pair(host)
    healthy = make_budget(undisturbed, baseline)
    slowed = make_budget(configuration(planted(multi, name, ms)), baseline)
    cost = slowed.measured_ms - healthy.measured_ms
    assert cost > ms / 2
    landed = causes(slowed).get(cause, 0.0) - causes(healthy).get(cause, 0.0)
    # What the ranks differ by without any fault, 2 % of their work, is waited for already.
    assert landed == pytest.approx(cost, rel=0.1, abs=0.25)
    assert causes(slowed).get("unexplained", 0.0) == pytest.approx(0.0, abs=0.01)
    assert sum(causes(slowed).values()) == pytest.approx(slowed.measured_ms - slowed.ideal_ms)


def sparsely_divided(config: Configuration, first: int = 0, marks: float = 1.06) -> Configuration:
    """The same run with the phases of the first steps, and then of one in eight.

    A divided step is ``marks`` times as long.
    """
    steps = []
    for one in config.runs[0].cell.steps:
        rows = one.rows.copy()
        is_whole = (rows["step"] >= first) & (rows["step"] % 8 != 0)
        for name in STEP_DTYPE.names:
            if name.endswith("_ms"):
                rows[name][~is_whole] *= marks
                if not name.endswith("_step_ms"):
                    rows[name][is_whole] = np.nan
        steps.append(replace(one, rows=rows))
    run = measure_run(replace(config.runs[0].cell, steps=tuple(steps)))
    return replace(config, runs=(replace(run, usage=config.runs[0].usage),))


@pytest.mark.parametrize(
    ("host", "name", "ms"),
    [
        ("early host", "slow GPU", 5.0), ("early host", "transfer", 5.0),
        ("late host", "loader", 5.0), ("cpu", "host sleep of one rank", 5.0),
        ("cpu", "stall", 20.0),
    ],
)  # fmt: skip
def test_one_step_in_eight_tells_where_the_time_goes(host: str, name: str, ms: float) -> None:
    single, multi = (replace(one, steps=1600) for one in pair(host))
    fully = [configuration(one) for one in (planted(multi, name, ms), single)]
    assert_same(make_budget(*map(sparsely_divided, fully)), make_budget(*fully))


def test_steps_at_the_start_weigh_no_more_for_being_divided_more_often() -> None:
    single, multi = (replace(one, steps=1600) for one in pair("cpu"))
    late = planted(multi, "loader of one rank later on", 5.0)
    fully = [configuration(one) for one in (late, single)]
    sparsely = [sparsely_divided(one, first=400, marks=1.0) for one in fully]
    assert_same(make_budget(*sparsely), make_budget(*fully))
    true, told = (sides[0].runs[0].balance for sides in (fully, sparsely))
    assert true.behind_ms > 2
    assert told.behind_ms == pytest.approx(true.behind_ms, rel=0.05)


def assert_same(found: LossBudget, expected: LossBudget) -> None:
    """Both tell the same losses."""
    assert found.measured_ms == pytest.approx(expected.measured_ms, rel=0.01)
    assert sum(causes(found).values()) == pytest.approx(found.measured_ms - found.ideal_ms)
    for cause in causes(expected).keys() | causes(found).keys():
        told, true = (causes(one).get(cause, 0.0) for one in (found, expected))
        assert told == pytest.approx(true, abs=0.02 * expected.measured_ms), cause


def test_a_late_host_is_the_limit_of_one_device_and_two_and_other_pairs_have_none() -> None:
    for host in HOSTS:
        single, multi = healthy_pair(host)
        limits = ["host_late"] if host == "late host" else []
        for budget in (make_budget(multi, single), make_budget(single)):
            assert [loss.cause for loss in budget.limits] == limits
        # A baseline of which nothing was timed is no ideal.
        assert make_budget(multi, with_steps(single)).ideal_ms is None


def test_without_activity_work_and_lateness_are_one_loss_of_what_changed_most() -> None:
    single, multi = pair("late host")
    quick = planted(multi, "host sleep of one rank", 1.0)
    quick = replace(quick, host_ms={phase: 0.3 * ms for phase, ms in quick.host_ms.items()})
    for one, changed in ((multi, "device_work"), (quick, "host_late")):
        budget = make_budget(*(configuration(side, activity=False) for side in (one, single)))
        told = {c for c, ms in causes(budget).items() if abs(ms) > 1.0}
        assert told & {"device_work", "host_late"} == {changed}
        assert sum(causes(budget).values()) == pytest.approx(budget.measured_ms - budget.ideal_ms)


def measured(one: Spec = DDP, baseline: Spec | None = ALONE) -> tuple[Configuration, ...]:
    """Recorded runs with known phases, and their baseline."""
    with tempfile.TemporaryDirectory() as folder:
        specs = [one] if baseline is None else [one, replace(baseline, kind=one.kind)]
        return tuple(with_rows(analysed(Path(folder), spec).measured[0]) for spec in specs)


def with_rows(config: Configuration) -> Configuration:
    """With its steps in memory, since its folder is removed."""
    cells = ((run, replace(run.cell, steps=tuple(run.cell.steps))) for run in config.runs)
    return replace(config, runs=tuple(replace(run, cell=cell) for run, cell in cells))


def with_run(config: Configuration, run: Run) -> Configuration:
    return replace(config, runs=(run,))


def named(budget: LossBudget) -> dict[str, float]:
    return {loss.cause: loss.ms for loss in budget.limits}


def phases(**changes: float) -> dict[str, float]:
    return {**DDP_MS, **changes}


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize(
    ("change", "limits"),
    [
        ({}, {}),
        ({"phases_ms": phases(data_wait=2.0)}, {"loader": 1.95}),
        ({"phases_ms": phases(exposed_comm=4.0)}, {"transfer": 4.0}),
        ({"phases_ms": phases(forward=3.0, backward=6.0)}, {"device_work": 4.5}),
        ({"phases_ms": phases(other=2.0)}, {"between_steps": 1.9}),
    ],
)
def test_a_known_loss_is_the_limit_with_its_size(
    kind: str, change: dict[str, Any], limits: dict[str, float]
) -> None:
    found = named(make_budget(*measured(replace(DDP, kind=kind, **change))))
    assert found == pytest.approx(limits, rel=0.01)


@pytest.mark.parametrize("spec", [ALONE, DDP])
def test_what_callbacks_take_is_a_loss_of_its_own(spec: Spec) -> None:
    """Two take 1.2 and 0.3 ms of the 2 ms between steps, on each rank."""
    late = {**spec.phases_ms, "other": 2.0}
    config, baseline = measured(replace(spec, kind="cpu", phases_ms=late))
    took = [{"callbacks_ms_per_step": {"Plotting": 0.3, "ModelCheckpoint": 1.2}}] * spec.devices
    budget = make_budget(with_run(config, with_ranks(config.runs[0], *took)), baseline)
    loss = budget.loss("callbacks")
    assert loss.ms == pytest.approx(1.5)
    assert loss.evidence == "ModelCheckpoint takes 1.2 ms a step, Plotting takes 0.3 ms a step"
    ideally = SINGLE_MS["other"] / spec.devices
    assert budget.ms("between_steps") == pytest.approx(2.0 - 1.5 - ideally, rel=0.01)


def test_under_weak_scaling_each_device_has_the_whole_step_as_its_ideal() -> None:
    weak = replace(DDP, scaling="weak", phases_ms={**SINGLE_MS, "exposed_comm": 1.5})
    budget = make_budget(*measured(weak, replace(ALONE, scaling="weak")))
    assert budget.ideal_ms == pytest.approx(10.0, rel=1e-3)
    assert named(budget) == pytest.approx({"transfer": 1.5}, rel=0.01)
    weak = replace(weak, phases_ms={**SINGLE_MS, "forward": 9.0})
    longer = make_budget(*measured(weak, replace(ALONE, scaling="weak"))).loss("device_work")
    other, fewer = replace(longer, holds_collectives=True), replace(longer, is_weak=False)
    assert len({one.words() for one in (longer, other, fewer)}) == 3
    assert fewer.words() == CAUSE_WORDS["device_work"]
    assert not any(loss.is_weak for loss in make_budget(*measured()).losses), "of half a batch"


def with_steps(config: Configuration, *rows: Any) -> Configuration:
    series = tuple(StepSeries(rank, one, 0) for rank, one in enumerate(rows))
    return with_run(config, measure_run(replace(config.runs[0].cell, steps=series)))


@pytest.mark.parametrize(("of_ten", "rank"), [("9", 1), ("996", 1), ("966", None), ("991", None)])
def test_a_rank_is_blamed_only_if_mostly_last_in_all_runs(of_ten: str, rank: int | None) -> None:
    """Of two healthy ranks one was last in 60 % of the steps, and in two of three runs."""
    single, multi = pair("cpu")
    late = [lambda who, step, of=of: 5.0 * (who == (step % 10 < of)) for of in map(int, of_ten)]
    runs = [configuration(replace(multi, host_delay={"forward": one})).runs[0] for one in late]
    config = replace(configuration(multi), runs=tuple(runs))
    assert make_budget(config, configuration(single)).loss("waiting").rank == rank


@pytest.mark.parametrize(
    ("kind", "slow_ms", "delays", "others_cpu_ms", "contention_ms"),
    [
        ("cpu", 0.0, (3.0, 3.0), 0.0, 3.0),
        ("cpu", 3.0, (0.0, 2.8), 0.0, 2.8),
        ("cpu", 0.0, (None, None), 0.0, 0.0),
        # Ranks wait for their own threads, of a collective, on their one core.
        ("cpu", 0.0, (3.0, 3.0), 2.9, 0.1),
        # Beside a GPU nothing is taken from what it computes.
        ("cuda", 0.0, (3.0, 3.0), 0.0, 0.3),
    ],
)
def test_what_others_had_of_the_cores_is_taken_off_the_parts(
    kind: str, slow_ms: float, delays: tuple[float | None, ...], others_cpu_ms: float,
    contention_ms: float,
) -> None:  # fmt: skip
    config, baseline = measured(replace(DDP, kind=kind, slow_ranks_ms={1: slow_ms}))
    changes = [
        {"run_queue_ms_per_step": ms, "other_threads_cpu_ms_per_step": others_cpu_ms}
        for ms in delays
    ]
    crowded = with_run(config, with_ranks(config.runs[0], *changes))
    quiet, budget = make_budget(config, baseline), make_budget(crowded, baseline)
    assert causes(budget).get("contention", 0.0) == pytest.approx(contention_ms)
    assert sum(causes(budget).values()) == pytest.approx(sum(causes(quiet).values()))
    assert ("contention" in named(budget)) == (contention_ms > 1)
    if kind == "cuda":
        assert causes(budget)["device_work"] == pytest.approx(causes(quiet)["device_work"])


def test_ranks_that_are_delayed_in_turns_do_not_seem_to_compute_faster() -> None:
    """The delay of one is waited for by the other: it is no part of what both compute."""
    single, multi = pair("cpu")
    late = {"forward": lambda who, step: 6.0 if who == step % 2 else 0.0}
    config = configuration(replace(multi, host_delay=late))
    crowded = with_run(config, with_ranks(config.runs[0], *[{"run_queue_ms_per_step": 3.0}] * 2))
    quiet, budget = (make_budget(one, configuration(single)) for one in (config, crowded))
    assert causes(budget)["contention"] == pytest.approx(3.0)
    assert causes(budget)["waiting"] == pytest.approx(causes(quiet)["waiting"] - 3.0)
    assert causes(budget)["device_work"] == pytest.approx(causes(quiet)["device_work"])


@pytest.mark.parametrize(
    ("at", "ms", "long"),
    [
        ((20, 21, 22), 300.0, 3),
        ((40,), 25.0, 1),
        ((40,), 15.0, 0),
        (range(0, 60, 4), 100.0, 0),  # steps of two kinds
    ],
)
def test_long_steps_count_from_three_medians_on(at: Sequence[int], ms: float, long: int) -> None:
    (config,) = measured(replace(ALONE, kind="cpu"), None)
    (rows,) = (one.rows.copy() for one in config.runs[0].cell.steps)
    for name in ("host_step_ms", "host_other_ms"):
        rows[name][list(at)] += ms
    found = causes(make_budget(with_steps(config, rows))).get("long_steps", 0.0)
    assert found == pytest.approx(len(at) * ms / 50 if long else 0.0, rel=0.1)


@pytest.mark.parametrize(("activity", "limits"), [(None, []), (40.0, ["host_late"]), (100.0, [])])
def test_a_graph_works_or_waits_for_its_host(activity: float | None, limits: list[str]) -> None:
    """Its steps have no phases but fetching."""
    (config,) = measured(ALONE, None)
    (rows,) = (one.rows.copy() for one in config.runs[0].cell.steps)
    for phase in ("forward", "backward", "optimizer", "other"):
        rows[f"device_{phase}_ms"] = rows[f"host_{phase}_ms"] = np.nan
    run = with_steps(config, rows).runs[0]
    budget = make_budget(with_run(config, with_devices(run, engine_activity_percent=activity)))
    assert [loss.cause for loss in budget.limits] == limits
    assert "unexplained" not in causes(budget)
    assert budget.knows_activity == (activity is not None)


@pytest.mark.parametrize(
    ("ours", "theirs", "lost_ms", "factor"),
    [
        (1980.0, 1980.0, None, 1.0), (1970.0, 1980.0, None, 1.0), (1980.0, 1970.0, None, 1.0),
        (1980.0, None, None, None),
        (1500.0, 1980.0, 4.7 * 480 / 1980, 6.2 / (6.2 - 4.7 * 480 / 1980)),
        (1980.0, 1800.0, None, (10.0 - 9.0 * 180 / 1980) / 10.0),
    ],
    ids=["equal", "nearly", "nearly too", "not read", "slower than the baseline", "faster"],
)  # fmt: skip
def test_the_side_with_the_lower_clock_gets_the_other_ones_and_loses_below_its_baseline(
    ours: float, theirs: float | None, lost_ms: float | None, factor: float | None
) -> None:
    sides = (
        with_run(side, with_devices(side.runs[0], sm_clock_mhz=mhz))
        for side, mhz in zip(measured(), (ours, theirs), strict=True)
    )
    budget = make_budget(*sides)
    assert causes(budget).get("clocks") == (lost_ms and pytest.approx(lost_ms, rel=0.01))
    assert budget.at_equal_clocks == (factor and pytest.approx(factor, rel=1e-3))

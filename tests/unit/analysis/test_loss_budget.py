"""What a planted delay costs lands in its cause; losses add up; limits are a tenth of the step."""

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import DDP, Spec, analysed

from fakes.simulated_training import Delay, Training, simulate
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.loss_budget import Budget, make_budget
from scalewise.analysis.run import measure_run

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


def both(ms: float) -> Delay:
    return lambda rank, step: ms


def one_rank(ms: float) -> Delay:
    return lambda rank, step: ms if rank == 1 else 0.0


def turns(ms: float) -> Delay:
    return lambda rank, step: ms if step % 2 == rank else 0.0


def stall(ms: float) -> Delay:
    return lambda rank, step: 20 * ms if step % 20 == 10 else 0.0


@functools.cache
def recorded(kind: str, ranks: int) -> Configuration:
    """A run on so many devices, whose steps and activity are to be replaced."""
    with tempfile.TemporaryDirectory() as folder:
        spec = replace(Spec() if ranks == 1 else DDP, kind=kind)
        return analysed(Path(folder), spec).measured[0]


def configuration(training: Training, *, activity: bool = True) -> Configuration:
    """One simulated run; ``activity``: whether it is known for how long its GPUs worked."""
    config = recorded("cpu" if training.gpu_ms is None else "cuda", training.ranks)
    steps, shares = simulate(training)
    usage = config.runs[0].usage
    assert usage is not None
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
    single = Training(ranks=1, host_ms=host_ms, gpu_ms=gpu_ms)
    return single, Training(
        host_ms=halved if gpu_ms is None else host_ms, gpu_ms=halved if gpu_ms else None
    )


def causes(budget: Budget) -> dict[str, float]:
    return {loss.cause: loss.ms for loss in budget.losses}


PLANTED = [
    (host, cause, name, ms)
    for ms in (1.0, 5.0, 20.0)
    for host, cause, name in [
        ("early host", "device_work", "small kernels"),
        ("early host", "waiting", "slow GPU"),
        ("early host", "waiting", "slow GPUs in turns"),
        ("early host", "transfer", "transfer"),
        ("late host", "host_late", "host sleep"),
        ("late host", "host_late", "host sleep of one rank"),
        ("late host", "loader", "loader"),
        ("late host", "waiting", "loader of one rank"),
        ("cpu", "device_work", "host sleep"),
        ("cpu", "loader", "loader"),
        ("cpu", "waiting", "host sleep of one rank"),
        ("cpu", "waiting", "loader of one rank"),
        ("cpu", "waiting", "hosts in turns"),
        ("cpu", "between_steps", "callbacks"),
        ("cpu", "transfer", "transfer"),
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
    where, phase, delay = {
        "small kernels": ("gpu_delay", "forward", both(ms)),
        "slow GPU": ("gpu_delay", "forward", one_rank(ms)),
        "slow GPUs in turns": ("gpu_delay", "forward", turns(ms)),
        "host sleep": ("host_delay", "forward", both(ms)),
        "host sleep of one rank": ("host_delay", "forward", one_rank(ms)),
        "hosts in turns": ("host_delay", "forward", turns(ms)),
        "loader": ("host_delay", "data_wait", both(ms)),
        "loader of one rank": ("host_delay", "data_wait", one_rank(ms)),
        "callbacks": ("host_delay", "other", both(ms)),
        "stall": ("host_delay", "other", stall(ms)),
    }[name]
    return replace(training, **{where: {phase: delay}})


@functools.cache
def healthy_pair(host: str) -> list[Configuration]:
    """One device and two, without any fault."""
    return [configuration(one) for one in pair(host)]


@pytest.mark.parametrize(("host", "cause", "name", "ms"), PLANTED)
def test_what_a_planted_delay_costs_lands_in_its_cause(
    host: str, cause: str, name: str, ms: float
) -> None:
    _, multi = pair(host)
    baseline, undisturbed = healthy_pair(host)
    healthy = make_budget(undisturbed, baseline)
    slowed = make_budget(configuration(planted(multi, name, ms)), baseline)
    assert healthy is not None and slowed is not None
    cost = slowed.measured_ms - healthy.measured_ms
    assert cost > ms / 2
    landed = causes(slowed).get(cause, 0.0) - causes(healthy).get(cause, 0.0)
    # What the ranks differ by without any fault, 2 % of their work, is waited for already.
    assert landed == pytest.approx(cost, rel=0.1, abs=0.25)


@pytest.mark.parametrize("activity", [True, False])
@pytest.mark.parametrize("host", HOSTS)
def test_losses_add_up_to_the_gap(host: str, activity: bool) -> None:
    single, multi = pair(host)
    baseline = configuration(single, activity=activity)
    budget = make_budget(configuration(multi, activity=activity), baseline)
    assert budget is not None and budget.ideal_ms is not None
    assert sum(causes(budget).values()) == pytest.approx(budget.measured_ms - budget.ideal_ms)
    assert causes(budget).get("unexplained", 0.0) == pytest.approx(0.0, abs=0.01)


def test_a_late_host_is_the_limit_of_both_devices_and_of_one() -> None:
    single, multi = healthy_pair("late host")
    for budget in (make_budget(multi, single), make_budget(single)):
        assert budget is not None
        assert [loss.cause for loss in budget.limits] == ["host_late"]


def test_a_healthy_pair_has_no_limit() -> None:
    for host in ("early host", "cpu"):
        single, multi = healthy_pair(host)
        budget = make_budget(multi, single)
        assert budget is not None
        assert budget.limits == ()


def test_the_rank_that_is_waited_for_is_named() -> None:
    single, multi = pair("early host")
    baseline = configuration(single)
    for name, rank in (("slow GPU", 1), ("slow GPUs in turns", None)):
        budget = make_budget(configuration(planted(multi, name, 5.0)), baseline)
        assert budget is not None
        (waiting,) = budget.limits
        assert (waiting.cause, waiting.rank) == ("waiting", rank)


def test_without_activity_work_and_lateness_are_one_loss() -> None:
    single, multi = (configuration(one, activity=False) for one in pair("late host"))
    budget = make_budget(multi, single)
    assert budget is not None
    assert not {"device_work", "host_late"} <= {c for c, ms in causes(budget).items() if ms > 0}

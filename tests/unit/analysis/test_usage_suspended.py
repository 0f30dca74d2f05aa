"""What the devices did while a cell was suspended is none of its usage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from recorded import Spec, write_sweep

from scalewise.analysis.load import load_sweep
from scalewise.analysis.run import measure_run
from scalewise.analysis.standstill import set_aside
from scalewise.analysis.throughput import NotMeasuredError, measure_throughput
from scalewise.analysis.usage import Usage, joules_per_million_samples, measure_usage
from scalewise.records import (
    STEP_DTYPE,
    STOOD_STILL,
    DeviceSample,
    DeviceSeries,
    SampledDevice,
    Standstill,
    StepSeries,
)

STEPS, STEP_S, SAMPLES = 300, 0.1, 8
PAUSED_STEP, PAUSE_S = 123, 600.0
BEGIN_S = 1_760_000_000.0
STOP_S = BEGIN_S + PAUSED_STEP * STEP_S + STEP_S / 2
"""In the middle of a step."""
GO_ON_S = STOP_S + PAUSE_S
END_S = BEGIN_S + STEPS * STEP_S + PAUSE_S

SM_PERCENT, BUSY_PERCENT, POWER_W, MEMORY_MIB = 80.0, 90.0, 500.0, 12_000.0
IDLE_W = 70.0
MEGAJOULES_PER_MILLION = POWER_W * STEP_S / SAMPLES
GPM_EVERY = 5
"""Samples from one reading of the slow metrics to the next."""


def steps_of_a_suspended_cell() -> tuple[StepSeries, Any]:
    """Of its only rank, and what that says of itself."""
    rows = np.zeros(STEPS, STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        if name.endswith("_ms"):
            rows[name] = np.nan
    lengths_s = np.full(STEPS, STEP_S)
    lengths_s[PAUSED_STEP] += PAUSE_S
    rows["step"] = np.arange(STEPS)
    rows["samples"] = SAMPLES
    rows["host_step_ms"] = lengths_s * 1e3
    rows["start_ns"] = np.round((np.cumsum(lengths_s) - lengths_s) * 1e9)
    rows["flags"][PAUSED_STEP] = STOOD_STILL
    stop_ns = int((STOP_S - BEGIN_S) * 1e9)
    # It is noticed up to a quarter of a second late.
    found = Standstill(stop_ns + 200_000_000, stop_ns + int(PAUSE_S * 1e9))
    return StepSeries(0, rows, int(BEGIN_S * 1e9)), SimpleNamespace(rank=0, standstills=(found,))


def sampled(*, ran_on: bool) -> Iterator[float]:
    """Once a second, from before the run until after it; in the pause only if the sampler ran."""
    for when in np.arange(BEGIN_S - 2.75, END_S + 3.0):
        if ran_on or not STOP_S <= when < GO_ON_S:
            yield float(when)


def running_share(begin: float, end: float) -> float:
    """Of the time between two samples."""
    paused = max(0.0, min(end, GO_ON_S) - max(begin, STOP_S))
    return 1 - paused / (end - begin)


def series(
    source: Literal["nvml", "process"], device: SampledDevice, *, ran_on: bool
) -> DeviceSeries:
    times = tuple(sampled(ran_on=ran_on))
    read = gpu_sample if source == "nvml" else process_sample
    samples = tuple({device.id: read(device.id, times, i)} for i in range(len(times)))
    return DeviceSeries("h", source, 1.0, (device,), {}, times, samples)


def gpu_sample(device_id: str, times: tuple[float, ...], at: int) -> DeviceSample:
    """Idle in the pause, where another had some of its memory."""
    when = times[at]
    runs = not STOP_S <= when < GO_ON_S
    activity, energy_j = None, None
    if at % GPM_EVERY == 0:
        energy_j = POWER_W * (when - BEGIN_S)  # another used as much in the pause
        if at:
            activity = SM_PERCENT * running_share(times[at - GPM_EVERY], when)
    return DeviceSample(
        device_id,
        utilization_percent=BUSY_PERCENT if runs else 0.0,
        memory_used_mib=MEMORY_MIB if runs else 2 * MEMORY_MIB,
        power_w=POWER_W if runs else IDLE_W,
        throttle_reasons=() if runs else ("thermal slowdown (software)",),
        energy_j=energy_j,
        sm_activity_percent=activity,
    )


def process_sample(device_id: str, times: tuple[float, ...], at: int) -> DeviceSample:
    """CPU time since the sample before."""
    share = running_share(times[at - 1], times[at]) if at else None
    busy = None if share is None else BUSY_PERCENT * share
    return DeviceSample(device_id, utilization_percent=busy, memory_used_mib=MEMORY_MIB)


GPU = SampledDevice("GPU-a", 0, "NVIDIA H200", 0)
sampler = pytest.mark.parametrize("ran_on", [False, True], ids=["stopped", "ran on"])


def usage_of(devices: DeviceSeries) -> tuple[Usage, tuple[StepSeries, ...]]:
    """As the analysis takes it."""
    one, told = steps_of_a_suspended_cell()
    aside = set_aside([one], [told])
    return measure_usage([devices], aside, [told]), aside


@sampler
def test_means_are_of_the_time_in_which_it_ran(ran_on: bool) -> None:
    usage, _ = usage_of(series("nvml", GPU, ran_on=ran_on))
    (device,) = usage.devices
    assert usage.window == "timed steps"
    assert 28 <= device.samples <= 30
    assert device.sm_activity_percent == pytest.approx(SM_PERCENT)
    assert device.utilization_percent == pytest.approx(BUSY_PERCENT)
    assert device.memory_used_mib == pytest.approx(MEMORY_MIB)
    assert device.power_w == pytest.approx(POWER_W)
    assert device.throttle_reasons == ()


@sampler
def test_energy_is_of_the_time_in_which_it_ran_by_power_samples(ran_on: bool) -> None:
    """The counter went on while another may have had the GPU."""
    usage, steps = usage_of(series("nvml", GPU, ran_on=ran_on))
    energy = usage.devices[0].energy
    assert energy is not None
    assert energy.source == "power samples"
    assert energy.run_j is None
    assert "energy counter: it went on while the cell was suspended" in energy.missing
    assert energy.timed_s == pytest.approx((STEPS - 1) * STEP_S, abs=1e-3)
    throughput = measure_throughput(steps, 1)
    assert usage.timed_energy_j == pytest.approx(POWER_W * STEP_S * throughput.steps, rel=1e-4)
    joules = joules_per_million_samples(usage, throughput.global_samples_per_s)
    assert joules == pytest.approx(MEGAJOULES_PER_MILLION * 1e6, rel=1e-3)


@sampler
def test_cpu_time_of_a_process_is_not_spread_over_the_pause(ran_on: bool) -> None:
    usage, _ = usage_of(series("process", SampledDevice("rank0", 0, "process", 0), ran_on=ran_on))
    assert usage.devices[0].utilization_percent == pytest.approx(BUSY_PERCENT)


@pytest.mark.parametrize(
    "known", [lambda told: [told], lambda told: []], ids=["with summaries", "without"]
)
def test_steps_that_are_set_aside_are_left_out_whatever_the_ranks_say(
    known: Callable[[Any], list[Any]],
) -> None:
    one, told = steps_of_a_suspended_cell()
    devices = series("nvml", GPU, ran_on=True)
    usage = measure_usage([devices], set_aside([one], [told]), known(told))
    assert usage.mean("utilization_percent") == pytest.approx(BUSY_PERCENT)


def test_a_pause_between_two_steps_is_left_out_too() -> None:
    """While a validation ran: no step is set aside."""
    one, told = steps_of_a_suspended_cell()
    one.rows["host_step_ms"][PAUSED_STEP] = STEP_S / 4 * 1e3
    aside = set_aside([one], [told])
    assert len(aside[0].timed()) == STEPS
    usage = measure_usage([series("nvml", GPU, ran_on=True)], aside, [told])
    assert usage.mean("utilization_percent") == pytest.approx(BUSY_PERCENT, rel=0.05)
    assert usage.power_w == pytest.approx(POWER_W, rel=0.02)


def test_a_run_sampled_in_its_pause_only_has_no_usage_of_training() -> None:
    devices = series("nvml", GPU, ran_on=True)
    kept = [i for i, when in enumerate(devices.times) if STOP_S <= when < GO_ON_S]
    only = DeviceSeries(
        "h", "nvml", 1.0, (GPU,), {},
        tuple(devices.times[i] for i in kept), tuple(devices.samples[i] for i in kept),
    )  # fmt: skip
    with pytest.raises(NotMeasuredError, match=r"no device sample fell inside the 29\.9 s of tra"):
        usage_of(only)


def test_a_runs_usage_knows_what_its_ranks_say(tmp_path: Path) -> None:
    """Of a cell as it was loaded: its summaries tell of a suspension that no step does."""
    (cell,) = load_sweep(write_sweep(tmp_path / "sweep", [Spec()])).cells
    assert cell.result is not None
    (rank,), (devices,) = cell.result.ranks, cell.devices
    offset_ns = cell.steps[0].epoch_offset_ns
    since_ns, until_ns = (int((devices.times[at] - 1e-3) * 1e9) - offset_ns for at in (2, 5))
    stopped = replace(rank, standstills=(Standstill(since_ns, until_ns),))
    suspended = replace(cell, result=replace(cell.result, ranks=(stopped,)))
    whole, part = measure_run(cell).usage, measure_run(suspended).usage
    assert whole is not None
    assert part is not None
    assert (whole.devices[0].samples, part.devices[0].samples) == (8, 5)

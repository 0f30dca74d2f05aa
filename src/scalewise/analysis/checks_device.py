"""Limits that lie in the devices: what fills them, what slows their clocks, their memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scalewise.analysis.activity import sm_activity
from scalewise.analysis.checks_batch import division_idles
from scalewise.analysis.diagnosis import Case, Diagnosis
from scalewise.analysis.pipeline import pipeline_of
from scalewise.analysis.throughput import common_steps, timeline

DRAM_BOUND_PERCENT = 60.0
"""A stream copy on an H200 reads 80 to 90 %: kernels that reach two thirds of that wait for DRAM
most of the time."""
COMPUTE_BOUND_PERCENT = 80.0
"""A GEMM on an H200 reads 96 %, GPT-2 124M 84 to 89 %."""
WELL_SPENT_SHARE = 0.75
"""Share of a step that a GPU's SMs must work before computing is called its limit: where more is
lost, something else is worth mending first, named or not."""
THROTTLED_SAMPLES = 0.2
"""Share of the samples with a reason; a single one may be of the moment a job begins."""
THROTTLE_LOSS = 0.03
"""Share of the clock from which heat (or a fault of the board) counts as throttling."""
POWER_CAP_LOSS = 0.10
"""The same where nothing but the power limit holds the clock back: a healthy H200 at its limit
gives up 4 %."""


def activity(case: Case) -> Iterator[Diagnosis]:
    """What GPM says the GPU does; nothing where it is not supported."""
    found = sm_activity(case)
    if found is None:
        return
    compute, sm, dram = found.compute_ms, found.busy_percent, found.dram_percent
    n = f"(n={found.readings})"
    if found.is_launch_bound:
        if division_idles(case) or pipeline_of(case.run.cell) is not None:
            return  # its cause is named: the batch is too small, or a stage of a pipeline
        yield Diagnosis(
            "launch-bound", compute * (1 - sm / 100), case.step_ms,
            f"its SMs have work in {sm:.3g} % {n} of the {compute:.3g} ms it computes: the GPU "
            "idles between kernels",
            "execution=cudagraph shortens the step by about this much",
        )  # fmt: skip
    elif dram is not None and dram > DRAM_BOUND_PERCENT:
        yield Diagnosis(
            "memory-bound", compute * dram / 100, case.step_ms,
            f"DRAM is active in {dram:.0f} % of the time it computes, the SMs in {sm:.0f} % {n}",
            "lower precision or fused kernels shorten the step; a lower SM clock does not "
            "lengthen it",
        )  # fmt: skip
    elif sm > COMPUTE_BOUND_PERCENT and compute * sm / 100 > WELL_SPENT_SHARE * case.step_ms:
        yield Diagnosis(
            "compute-bound", compute * sm / 100, case.step_ms,
            f"the SMs have work in {sm:.0f} % {n} of the {compute:.3g} ms it computes",
            "a lower SM clock lengthens the step in proportion",
        )  # fmt: skip


def throttled(case: Case) -> Iterator[Diagnosis]:
    for device in case.usage():
        share, clock, top = device.throttled_share, device.sm_clock_mhz, device.top_sm_clock_mhz
        if not share or clock is None or not top:
            continue
        lost = 1 - clock / top
        # A GPU that works hard runs at its power limit: that is no fault until it costs much.
        only_power = all("power cap" in reason for reason in device.throttle_reasons)
        if share > THROTTLED_SAMPLES and lost > (POWER_CAP_LOSS if only_power else THROTTLE_LOSS):
            kind = "power" if only_power else "thermal"
            known = only_power or any("thermal" in reason for reason in device.throttle_reasons)
            yield Diagnosis(
                "throttled", case.step_ms * lost, case.step_ms,
                f"{device.label} ran at {clock:.0f} of {top:.0f} MHz, held back in {share:.0%} of "
                f"the samples by {', '.join(device.throttle_reasons)}"
                + (f" ({kind})" if known else ""),
                "with clocks locked at the lower rate the step stays as long", device.device.rank,
            )  # fmt: skip


def allocator(case: Case) -> Iterator[Diagnosis]:
    ranks = case.run.cell.result.ranks if case.run.cell.result else ()
    retries = {r.rank: r.allocation_retries for r in ranks if r.allocation_retries}
    if retries:
        each = ", ".join(f"rank {r}: {n}" for r, n in retries.items())
        cost = max(_above_median_ms(case, rank) for rank in retries)
        yield Diagnosis(
            "allocator thrash", cost, case.step_ms,
            f"the allocator emptied its cache and tried again ({each} times); forward and backward "
            f"take {cost:.3g} ms a step beyond their median",
            "with a smaller batch the retries are 0 and samples/s rise", next(iter(retries)),
        )  # fmt: skip


def _above_median_ms(case: Case, rank: int) -> float:
    """Ms a step by which the long steps of ``rank`` exceed the median of its forward and backward.

    A retry waits for the device and frees every cached block: it shows as a long step.
    """
    ranks = common_steps(case.run.cell.steps, case.run.world_size)
    line, mine = timeline(ranks), ranks[rank]
    compute = mine.column("forward", line) + mine.column("backward", line)
    compute = compute[~np.isnan(compute)]
    return float(np.maximum(0.0, compute - np.median(compute)).mean()) if compute.size else 0.0

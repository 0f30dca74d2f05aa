"""Limits that a larger batch would lift: what a step costs whatever it computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scalewise.analysis.diagnosis_case import (
    LAUNCH_BOUND_SM_PERCENT,
    SHARE,
    Case,
    Diagnosis,
    StageActivity,
    contention_ms,
    contention_words,
    median_compute_ms,
    sm_activity,
    stage_activity,
)
from scalewise.analysis.rank_checks import (
    input_bound,
    oversubscribed,
    stalls,
    straggler,
    uneven_shards,
)
from scalewise.analysis.steps import (
    ExposedCommunication,
    common_steps,
    measure_pipeline,
    pipeline_of,
    shares_samples,
    timeline,
)
from scalewise.records import PipelineRecord

LOST_SAVING = 1.0
"""Share of what dividing the batch should save that is lost, from which the batch is too small to
be divided: at 1 all of it is."""

UNEVEN_TRANSFER = 1 / 3
"""Share of the mean by which the median transfer differs where both are told: few long ones make
the mean then."""


def communication(case: Case) -> Iterator[Diagnosis]:
    split = case.run.anatomy.communication if case.run.anatomy else None
    if split is not None and split.transfer_ms > SHARE * case.step_ms:
        yield Diagnosis(
            "communication-bound", split.transfer_ms, case.step_ms,
            f"on average {split.transfer_ms:.3g} ms a step{_median_too(case, split)} pass between "
            "the last gradient bucket and the end of the reduction even on the rank that waits for "
            "nobody",
            "with a larger batch a device this time stays the same and its share falls",
        )  # fmt: skip


def _median_too(case: Case, split: ExposedCommunication) -> str:
    """The median of the same, where the mean is no typical step's."""
    ranks = common_steps(case.run.cell.steps, case.run.world_size)
    exposed = np.stack([one.column("exposed_comm", split.timeline) for one in ranks])
    median = float(np.median(exposed[:, ~np.isnan(exposed).any(axis=0)].min(axis=0)))
    if abs(median - split.transfer_ms) <= UNEVEN_TRANSFER * split.transfer_ms:
        return ""
    return f" (median {median:.3g})"


def divided_too_far(case: Case) -> Iterator[Diagnosis]:
    found = division(case)
    if found is None or found.lost_ms < LOST_SAVING * found.ideal_saving_ms:
        return
    if case.twin_step_ms is not None and case.step_ms < (1 - SHARE) * case.twin_step_ms:
        return  # the step did get shorter, whatever became of its computing: a loader's share
    n = found.devices
    filled = ": undivided, it would fill the GPUs" if _makes_idle(found, case) else ""
    turns_ms = found.turns_ms
    turns = f"{turns_ms:.3g} ms of waiting for each other in turns and " if turns_ms else ""
    less = contention_words(found.contention_ms, case.step_ms)
    taken_off = contention_words(case.twin_contention_ms, found.before_ms, "already less")
    yield Diagnosis(
        "batch too small", found.lost_ms, case.step_ms,
        f"forward and backward take {found.compute_ms:.3g} ms with 1/{n} of the batch and "
        f"{found.before_ms:.3g} ms with all of it{taken_off}, and {turns}"
        f"{found.transfer_ms:.3g} ms of communication come on top{less}: dividing it saves nothing"
        f"{filled}",
        "scaling=weak, or a global batch several times larger, takes hardly longer a step",
    )  # fmt: skip


@dataclass(frozen=True)
class Division:
    """What dividing the batch of one device among several did to forward and backward."""

    devices: int
    before_ms: float
    """On one device, with all of the batch."""
    compute_ms: float
    """On each of several, with its share."""
    transfer_ms: float
    """The reduction that comes on top."""
    turns_ms: float = 0.0
    """And the wait for whichever rank comes last, where no rank is the slow one."""
    contention_ms: float = 0.0
    """What of all this other processes caused by holding the cores: named as such, not here."""

    @property
    def ideal_saving_ms(self) -> float:
        return self.before_ms * (1 - 1 / self.devices)

    @property
    def lost_ms(self) -> float:
        """Of the ideal saving: what computing takes beyond its share, waiting, the reduction.

        Without what the crowd had of it.
        """
        beyond = self.compute_ms - self.before_ms / self.devices
        return beyond + self.turns_ms + self.transfer_ms - self.contention_ms


def division(case: Case) -> Division | None:
    """None without a single-device twin, and where the batch was not divided."""
    compute, before = median_compute_ms(case.run), case.twin_compute_ms
    n = case.run.world_size
    if compute is None or before is None or n < 2 or shares_samples(case.run.cell):
        return None
    split = case.run.anatomy.communication if case.run.anatomy else None
    # A GPU computes on while its host has no core; on a CPU that delay is in these very times.
    crowd = 0.0 if case.device else contention_ms(case.run)
    if split is None:
        return Division(n, before, compute, 0.0, contention_ms=crowd)
    turns_ms = split.wait_ms if _waits_in_turns(case) else 0.0
    return Division(n, before, compute, split.transfer_ms, turns_ms, crowd)


def _waits_in_turns(case: Case) -> bool:
    """Whether GPUs wait for each other only because hosts set the pace.

    Launching the kernels of a small batch takes the host as long as those of a large one, and a
    GPU whose host leads for the moment is ready early, only to wait: the step is as long as
    launching takes. A wait that has a cause of its own is named by that. On a CPU there is no
    queue of kernels to run ahead in.
    """
    if case.device is None or _idles_undivided(case):
        return False
    causes = (straggler, uneven_shards, stalls, input_bound, oversubscribed)
    return not any(list(cause(case)) for cause in causes)


def _idles_undivided(case: Case) -> bool:
    """Whether not even all of the batch would keep one GPU busy: then launching is the cause.

    With n times the samples, kernels take up to n times as long and fill the gaps between them.
    """
    activity = sm_activity(case)
    whole_percent = None if activity is None else activity.busy_percent * case.run.world_size
    return whole_percent is not None and whole_percent < LAUNCH_BOUND_SM_PERCENT


def division_idles(case: Case) -> bool:
    """Whether GPUs idle between kernels only because the batch was divided too far.

    Where all of the batch would keep a GPU busy, the batch is the cause and the idle GPU its
    consequence.
    """
    found = division(case)
    return found is not None and _makes_idle(found, case)


def _makes_idle(found: Division, case: Case) -> bool:
    activity = sm_activity(case)
    return (
        activity is not None
        and found.lost_ms >= LOST_SAVING * found.ideal_saving_ms
        and activity.is_launch_bound
        and not _idles_undivided(case)
    )


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


def idle_stages(case: Case) -> Iterator[Diagnosis]:
    """A pipeline whose stages wait for one another."""
    found = measure_pipeline(case.run.cell, case.run.anatomy)
    if found is None:
        return
    idle_ms = sum(found.idle_ms) / len(found.idle_ms)
    if idle_ms > SHARE * case.step_ms:
        twice = 2 * found.schedule.microbatches
        p = found.schedule.stages
        yield Diagnosis(
            "idle pipeline stages", idle_ms, case.step_ms, f"{found}{_busy_words(case)}",
            f"with strategy.microbatches={twice} the bubble is {(p - 1) / (twice + p - 1):.0%}; "
            "what idles beyond it is unequal stages, transfers, or launching small microbatches",
        )  # fmt: skip


def launch_bound_stages(case: Case) -> Iterator[Diagnosis]:
    """A stage whose GPU idles between the kernels of its microbatches: it sets the pace of all."""
    stages, found = stage_activity(case), measure_pipeline(case.run.cell, case.run.anatomy)
    if not stages or found is None:
        return
    worst = max(stages, key=lambda stage: stage.idle_ms)
    if not worst.is_launch_bound:
        return
    m = found.schedule.microbatches
    yield Diagnosis(
        "launch-bound stages", worst.idle_ms, case.step_ms,
        f"{_busy(stages)}: between the kernels of {m} microbatches a GPU idles",
        _with_fewer(found.schedule), worst.rank,
    )  # fmt: skip


def _with_fewer(schedule: PipelineRecord) -> str:
    p, half = schedule.stages, schedule.microbatches // 2
    if half == 0:
        return "with twice the batch (batch_size) a step takes less than twice as long"
    return (
        f"with strategy.microbatches={half} forwards and backwards take less a step, although the "
        f"bubble grows to {(p - 1) / (half + p - 1):.0%}"
    )


def _busy_words(case: Case) -> str:
    """How busy the stages are where that is no limit of its own; empty where it is not known."""
    stages = stage_activity(case)
    if not stages or any(stage.is_launch_bound for stage in stages):
        return ""
    return f"; {_busy(stages)}"


def _busy(stages: Sequence[StageActivity]) -> str:
    each = ", ".join(map(str, stages))
    return f"while the stages compute, their SMs have work for at most {each} a step"

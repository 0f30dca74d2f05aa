"""One check for each limit: reads the measurements of a run, yields a diagnosis or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from scalewise.analysis.diagnosis import Case, Diagnosis, median_compute_ms
from scalewise.analysis.runs import Run
from scalewise.analysis.throughput import NotMeasuredError, common_steps, timeline

LAUNCH_BOUND_SM_PERCENT = 50.0
"""Below this share of cycles with work, the GPU idles between kernels."""
SHARE = 0.10
"""Share of a step from which a phase counts as a limit."""
UNEVEN_SHARE = 0.05
STALL_FACTOR = 3.0
"""A step beyond this many medians is a stall."""
STALL_SHARE = 0.05
THROTTLE_LOSS = 0.03
"""Share of the clock from which heat (or a fault of the board) counts as throttling."""
POWER_CAP_LOSS = 0.10
"""The same where nothing but the power limit holds the clock back."""
FIXED_SHARE = 0.5
"""Share of the compute that dividing the batch does not shrink, from which the batch is too small.
With fixed share f, 1/n of the batch takes f + (1 - f) / n of the time."""


def _sharding(case: Case) -> Iterator[Diagnosis]:
    audit, n = case.run.shards, case.run.world_size
    if audit and audit.verdict in ("every rank sees all data", "overlap"):
        yield Diagnosis(
            "not sharded", case.step_ms * (1 - 1 / n), case.step_ms, audit.explanation,
            "with a distributed sampler the shard audit reports disjoint shards and an epoch "
            f"takes 1/{n} of the steps",
            invalidates=True,
        )  # fmt: skip


def _uneven_shards(case: Case) -> Iterator[Diagnosis]:
    fed = _fed(case.run)
    excess, rank = _excess(fed)
    compute = case.compute_ms
    if excess > UNEVEN_SHARE and compute is not None:
        each = ", ".join(f"rank {r}: {n:,}" for r, n in fed.items())
        yield Diagnosis(
            "uneven shards", compute * excess, case.step_ms,
            f"samples fed in the same steps differ ({each})",
            "with equal batches on all ranks their arrivals agree", rank,
        )  # fmt: skip


def _fed(run: Run) -> dict[int, int]:
    """Samples each rank fed in the timed steps; empty unless all made the same steps."""
    timed = [s.timed() for s in run.cell.steps]
    if len({len(s) for s in timed}) != 1:
        return {}
    return {s.rank: int(s.rows["samples"].sum()) for s in timed}


def _excess(fed: Mapping[int, int]) -> tuple[float, int | None]:
    """By how much the rank with most samples exceeds the mean of all, and which it is."""
    if len(fed) < 2 or not any(fed.values()):
        return 0.0, None
    most = max(fed, key=lambda r: fed[r])
    return fed[most] * len(fed) / sum(fed.values()) - 1, most


def _straggler(case: Case) -> Iterator[Diagnosis]:
    balance = case.run.balance
    if balance is None or balance.behind_ms < SHARE * case.step_ms:
        return
    rank = balance.slowest_rank
    if balance.behind_ms <= 2 * _delay_of_samples(case, rank):
        return  # it has more to do, and is not slow for it
    if balance.behind_ms <= _run_ahead_ms(case):
        return  # its host launches as fast as the others', only not as far ahead
    steps, late_ms = _lateness(case.run, rank)
    # A slow rank is late most of the time, or was so at the end: a few long steps are stalls.
    most, lately = np.median(late_ms), np.median(late_ms[-max(1, len(late_ms) // 4) :])
    if float(max(most, lately)) < SHARE * case.step_ms:
        return
    devices = [d for d in case.usage() if d.device.rank == rank]
    where = f" on {devices[0].label}" if devices and devices[0].device.id[:4] != "rank" else ""
    yield Diagnosis(
        "straggler",
        balance.behind_ms,
        case.step_ms,
        f"rank {rank}{where} is ready {balance.behind_ms:.3g} ms after the others (arrival CV "
        f"{balance.cv_percent:.1f} %), {_since(steps, late_ms)}{_cause(case, rank)}",
        "give the rank's device to another rank: if the delay stays with the device it is the "
        "device, if it stays with the rank it is the data or the code",
        rank,
    )


def _delay_of_samples(case: Case, rank: int) -> float:
    """Ms by which ``rank`` is expected behind the others for feeding more samples than they."""
    excess, heavy = _excess(_fed(case.run))
    n = case.run.world_size
    if heavy != rank or excess <= UNEVEN_SHARE or case.compute_ms is None:
        return 0.0
    # It has 1 + excess of a fair share, and each of the others 1 - excess / (n - 1).
    return case.compute_ms * excess * n / (n - 1)


def _run_ahead_ms(case: Case) -> float:
    """Ms by which a rank may be behind only because another's host has launched further ahead.

    Where launching is the pace of a step, nothing holds back the host that happens to lead: its
    device always finds work queued and is ready at once, while the other device waits for each
    kernel. Up to the time that launching one step takes, that says nothing about a rank.
    """
    sm = _over(case, "sm_activity_percent")
    if case.device is None or sm is None or sm >= LAUNCH_BOUND_SM_PERCENT:
        return 0.0
    return case.twin_compute_ms if case.twin_compute_ms is not None else case.compute_ms or 0.0


def _lateness(run: Run, rank: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Step numbers, and ms by which ``rank`` arrives after the mean of the others in each."""
    ranks = common_steps(run.cell.steps, run.world_size)
    arrivals = np.stack([s.column("arrival", timeline(ranks)) for s in ranks])
    timed = ~np.isnan(arrivals).any(axis=0)
    late = arrivals[rank] - np.delete(arrivals, rank, axis=0).mean(axis=0)
    return np.asarray(ranks[0].rows["step"][timed], dtype=np.int64), late[timed]


def _since(steps: npt.NDArray[np.int64], late_ms: npt.NDArray[np.float64]) -> str:
    """From which step on the rank is late: the first ten-step window as late as the last."""
    final = float(np.median(late_ms[-10:]))
    for i in range(0, len(late_ms), 10):
        if final > 0 and float(np.median(late_ms[i : i + 10])) > final / 2:
            return "from the first timed step" if i == 0 else f"since about step {steps[i]}"
    return "now and then"


def _cause(case: Case, rank: int) -> str:
    """The host phase in which the rank is slower than the others, if one stands out."""
    assert case.run.anatomy is not None
    line = "device" if case.device else "host"
    ranks = [r for r in case.run.anatomy.ranks if r.timeline == line]
    excess = {}
    for phase in ("data_wait", "h2d", "forward", "backward", "other"):
        mine = [r.phases_ms[phase] for r in ranks if r.rank == rank]
        rest = [v for r in ranks if r.rank != rank and (v := r.phases_ms[phase]) is not None]
        if mine and mine[0] is not None and rest:
            excess[phase] = mine[0] - sum(rest) / len(rest)
    if not excess:
        return ""
    phase = max(excess, key=lambda p: excess[p])
    return f", most of it in {phase.replace('_', ' ')} (+{excess[phase]:.3g} ms)"


def _stalls(case: Case) -> Iterator[Diagnosis]:
    try:
        ranks = common_steps(case.run.cell.steps, case.run.world_size)
    except NotMeasuredError:
        return
    times = np.max([s.column("step", timeline(ranks)) for s in ranks], axis=0)
    median = float(np.median(times))
    stalled = times > STALL_FACTOR * median
    cost = float((times[stalled] - median).sum()) / len(times)
    # Two at least: any run may have one step that the host interrupted.
    if stalled.sum() >= 2 and stalled.mean() < 0.5 and cost > STALL_SHARE * case.step_ms:
        yield Diagnosis(
            "stalls", cost, case.step_ms,
            f"{int(stalled.sum())} of {len(times)} steps take more than {STALL_FACTOR:g} medians "
            f"({median:.3g} ms), the longest {float(times.max()):.3g} ms",
            "without periodic work (checkpoints, validation, logging, garbage collection) the 99th "
            "percentile comes down to the median",
        )  # fmt: skip


def _input(case: Case) -> Iterator[Diagnosis]:
    wait = case.host.phases_ms["data_wait"]
    if wait is not None and case.host.step_ms and wait > SHARE * case.host.step_ms:
        yield Diagnosis(
            "input-bound", wait, case.step_ms,
            f"the host waits {wait:.3g} ms a step for its loader",
            "with the batches held in memory (or more loader workers) the step gets shorter by it",
        )  # fmt: skip


def _communication(case: Case) -> Iterator[Diagnosis]:
    split = case.run.anatomy.communication if case.run.anatomy else None
    if split is not None and split.transfer_ms > SHARE * case.step_ms:
        yield Diagnosis(
            "communication-bound", split.transfer_ms, case.step_ms,
            f"{split.transfer_ms:.3g} ms of every step pass between the last gradient bucket and "
            "the end of the reduction even on the rank that waits for nobody",
            "with a larger batch a device this time stays the same and its share falls",
        )  # fmt: skip


def _divided_too_far(case: Case) -> Iterator[Diagnosis]:
    compute, before = median_compute_ms(case.run), case.twin_compute_ms
    n = case.run.world_size
    if compute is None or before is None or n < 2:
        return
    fixed = (compute / before - 1 / n) / (1 - 1 / n)
    if fixed < FIXED_SHARE:
        return
    # What the batch does not pay for is lost as a whole: the reduction costs the same per step.
    split = case.run.anatomy.communication if case.run.anatomy else None
    transfer = split.transfer_ms if split else 0.0
    yield Diagnosis(
        "batch too small", compute - before / n + transfer, case.step_ms,
        f"forward and backward take {compute:.3g} ms with 1/{n} of the batch and {before:.3g} ms "
        f"with all of it: {min(1.0, fixed):.0%} of that is fixed cost per step, not work, and "
        f"{transfer:.3g} ms of communication come on top",
        "scaling=weak, or a global batch several times larger, takes hardly longer a step",
    )  # fmt: skip


def _activity(case: Case) -> Iterator[Diagnosis]:
    """What GPM says the GPU does; nothing where it is not supported."""
    compute = case.compute_ms
    sm, dram = _over(case, "sm_activity_percent"), _over(case, "dram_activity_percent")
    if compute is None or sm is None:
        return
    if sm < LAUNCH_BOUND_SM_PERCENT:
        yield Diagnosis(
            "launch-bound", compute * (1 - sm / 100), case.step_ms,
            f"its SMs have work in {sm:.3g} % of the cycles: the GPU idles between kernels",
            "execution=cudagraph shortens the step by about this much",
        )  # fmt: skip
    elif dram is not None and dram > 60:
        yield Diagnosis(
            "memory-bound", compute * dram / 100, case.step_ms,
            f"DRAM is active in {dram:.0f} % of the time, the SMs in {sm:.0f} %",
            "lower precision or fused kernels shorten the step; a lower SM clock does not "
            "lengthen it",
        )  # fmt: skip
    elif sm > 80:
        yield Diagnosis(
            "compute-bound", compute * sm / 100, case.step_ms,
            f"the SMs have work in {sm:.0f} % of the cycles",
            "a lower SM clock lengthens the step in proportion",
        )  # fmt: skip


def _throttled(case: Case) -> Iterator[Diagnosis]:
    for device in case.usage():
        share, clock, top = device.throttled_share, device.sm_clock_mhz, device.top_sm_clock_mhz
        if not share or clock is None or not top:
            continue
        lost = 1 - clock / top
        # A GPU that works hard runs at its power limit: that is no fault until it costs much.
        only_power = all("power cap" in reason for reason in device.throttle_reasons)
        if share > 0.2 and lost > (POWER_CAP_LOSS if only_power else THROTTLE_LOSS):
            yield Diagnosis(
                "throttled", case.step_ms * lost, case.step_ms,
                f"{device.label} ran at {clock:.0f} of {top:.0f} MHz, held back in {share:.0%} of "
                f"the samples by {', '.join(device.throttle_reasons)}",
                "with clocks locked at the lower rate the step stays as long", device.device.rank,
            )  # fmt: skip


def _allocator(case: Case) -> Iterator[Diagnosis]:
    ranks = case.run.cell.result.ranks if case.run.cell.result else ()
    retries = {r.rank: r.allocation_retries for r in ranks if r.allocation_retries}
    if retries:
        each = ", ".join(f"rank {r}: {n}" for r, n in retries.items())
        # Its cost is part of forward and backward and was not timed apart.
        yield Diagnosis(
            "allocator thrash", 0.0, case.step_ms,
            f"the allocator emptied its cache and tried again ({each} times)",
            "with a smaller batch the retries are 0 and samples/s rise", next(iter(retries)),
        )  # fmt: skip


def _oversubscribed(case: Case) -> Iterator[Diagnosis]:
    ranks = case.run.cell.result.ranks if case.run.cell.result else ()
    delays = {r.rank: r.run_queue_ms_per_step for r in ranks}
    known = {rank: ms for rank, ms in delays.items() if ms is not None}
    if not known:
        return
    worst = max(known, key=lambda r: known[r])
    # The ranks wait for one another: a core that one rank lacks delays all of them.
    if known[worst] > SHARE * case.step_ms:
        each = ", ".join(f"rank {r}: {ms:.3g}" for r, ms in known.items())
        yield Diagnosis(
            "host oversubscribed", known[worst], case.step_ms,
            f"the training thread was ready to run and had no core for {each} ms a step",
            "with the other processes of the host stopped, or other cores, the step is shorter "
            "by about this much",
        )  # fmt: skip


def _over(case: Case, metric: str) -> float | None:
    return case.run.usage.mean(metric) if case.run.usage else None


CHECKS: tuple[Callable[[Case], Iterator[Diagnosis]], ...] = (
    _sharding, _uneven_shards, _straggler, _stalls, _input, _communication, _divided_too_far,
    _activity, _throttled, _allocator,
    _oversubscribed,
)  # fmt: skip
"""Every check, in no order of importance."""

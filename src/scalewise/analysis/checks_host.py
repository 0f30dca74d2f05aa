"""Limits that lie in the host: its loader, its cores, and what interrupts it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from scalewise.analysis.activity import crowded_out_ms, run_queue_ms, sm_activity
from scalewise.analysis.diagnosis import Case, Diagnosis
from scalewise.analysis.throughput import NotMeasuredError, common_steps, timeline

SHARE = 0.10
"""Share of a step from which waiting is a limit: less than what repeats of a run differ by is
nothing that a user could see mended."""
STALL_FACTOR = 3.0
"""A step beyond this many medians is a stall: noise of single steps stays below it."""
STALL_SHARE = 0.05
"""Share of all time from which stalls are a limit; they are rare, so each of them is long."""
STALL_EVENTS = 3
"""So often at least: one freeze of the host, or two, may strike any run."""
EVENT_STEPS = 5
"""Long steps no farther apart than this are one event: a freeze of the host shows in several
steps, and on each rank in another (recorded on four H200: steps 20, 22 and 24)."""
RARE = 0.2
"""Share of long steps up to which they are exceptions; beyond, the steps are of two kinds."""


def stalls(case: Case) -> Iterator[Diagnosis]:
    try:
        ranks = common_steps(case.run.cell.steps, case.run.world_size)
    except NotMeasuredError:
        return
    times = np.max([s.column("step", timeline(ranks)) for s in ranks], axis=0)
    median = float(np.median(times))
    stalled = times > STALL_FACTOR * median
    events = _events(ranks[0].rows["step"][stalled])
    if events < STALL_EVENTS or stalled.mean() > RARE:
        return
    cost = float((times[stalled] - median).sum()) / len(times)
    # What the thread spent without a core is the crowd's doing and is named as such.
    if cost - max(run_queue_ms(case.run).values(), default=0.0) > STALL_SHARE * case.step_ms:
        yield Diagnosis(
            "stalls", cost, case.step_ms,
            f"{int(stalled.sum())} of {len(times)} steps, in {events} events, take more than "
            f"{STALL_FACTOR:g} medians ({median:.3g} ms), the longest {float(times.max()):.3g} ms",
            "without periodic work (checkpoints, validation, logging, garbage collection) the 99th "
            "percentile comes down to the median",
        )  # fmt: skip


def _events(steps: npt.NDArray[np.int64]) -> int:
    """Separate occasions among the numbers of long steps, in order."""
    return int(len(steps) > 0) + int((np.diff(steps) > EVENT_STEPS).sum())


def input_bound(case: Case) -> Iterator[Diagnosis]:
    # Where there is a GPU, only what its stream waits for costs anything: a loader that is slow
    # while earlier steps still compute is hidden.
    wait, step = case.phases.phases_ms["data_wait"], case.phases.step_ms
    if wait is None or not step:
        return
    # A crowded host makes everything longer, the loader too: its share of that is not its own.
    crowd = 0.0 if case.device else max(run_queue_ms(case.run).values(), default=0.0)
    if wait * (1 - min(1.0, crowd / step)) > SHARE * step:
        who = "the GPU's stream" if case.device else "the training process"
        yield Diagnosis(
            "input-bound", wait, case.step_ms,
            f"{who} waits {wait:.3g} ms a step for its loader",
            "with the batches held in memory (or more loader workers) the step gets shorter by it",
        )  # fmt: skip


def oversubscribed(case: Case) -> Iterator[Diagnosis]:
    delays = crowded_out_ms(case.run)
    if not delays:
        return
    # The ranks wait for one another: a core that one rank lacks delays all of them.
    worst = max(delays, key=lambda r: delays[r])
    cost = min(delays[worst], _hidden_from(case))
    if cost > SHARE * case.step_ms:
        each = ", ".join(f"rank {r}: {ms:.3g}" for r, ms in delays.items())
        yield Diagnosis(
            "host oversubscribed", cost, case.step_ms,
            "the training thread was ready to run while other processes held its cores for "
            f"{each} ms a step",
            "with the other processes of the host stopped, or other cores, the step is shorter "
            "by about this much",
        )  # fmt: skip


def _hidden_from(case: Case) -> float:
    """The most that a delay of the host can have cost: the time in which the GPU had no work."""
    activity = sm_activity(case)
    if case.device is None or activity is None:
        return case.step_ms
    return max(0.0, case.step_ms - activity.compute_ms * activity.busy_percent / 100)

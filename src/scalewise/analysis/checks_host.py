"""Limits that lie in the host: its loader, its cores, and what interrupts it."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis.activity import (
    contention_ms,
    contention_ms_by_rank,
    contention_words,
    run_queue_ms,
    sm_activity,
)
from scalewise.analysis.diagnosis import Case, Diagnosis
from scalewise.analysis.lost_time import HICCUP_FACTOR, hiccups_of

SHARE = 0.10
"""Share of a step from which waiting is a limit: less than what repeats of a run differ by is
nothing that a user could see mended."""
STALL_SHARE = 0.05
"""Share of all time from which stalls are a limit; they are rare, so each of them is long."""
STALL_EVENTS = 3
"""So often at least: two interruptions took 5 and 7 % of healthy runs of a small model on one H200.
What they took is no limit then, but a doubt (:mod:`scalewise.analysis.lost_time`)."""
RARE = 0.2
"""Share of hiccups up to which they are exceptions; beyond, the steps are of two kinds."""


def stalls(case: Case) -> Iterator[Diagnosis]:
    found = hiccups_of(case.run)
    if found is None or found.events < STALL_EVENTS or found.count > RARE * found.steps:
        return
    cost = found.excess_ms
    # What the thread spent without a core is the crowd's doing and is named as such.
    if cost - max(run_queue_ms(case.run).values(), default=0.0) > STALL_SHARE * case.step_ms:
        yield Diagnosis(
            "stalls", cost, case.step_ms,
            f"{found.count} of {found.steps} steps, in {found.events} events, take more than "
            f"{HICCUP_FACTOR:g} medians ({found.median_ms:.3g} ms), the longest "
            f"{found.longest_ms:.3g} ms",
            "without periodic work (checkpoints, validation, logging, garbage collection) the 99th "
            "percentile comes down to the median",
        )  # fmt: skip


def input_bound(case: Case) -> Iterator[Diagnosis]:
    # Where there is a GPU, only what its stream waits for costs anything: a loader that is slow
    # while earlier steps still compute is hidden.
    wait, step = case.phases.phases_ms["data_wait"], case.phases.step_ms
    if wait is None or not step:
        return
    # A thread that waits for its loader has to be given a core again when the batch is there: all
    # of the crowd's delay may lie in the wait. It is named as the crowd's, and not twice.
    crowd = 0.0 if case.device else contention_ms(case.run)
    if wait - crowd > SHARE * step:
        who = "the GPU's stream" if case.device else "the training process"
        less = contention_words(crowd, case.step_ms)
        yield Diagnosis(
            "input-bound", wait - crowd, case.step_ms,
            f"{who} waits {wait:.3g} ms a step for its loader{less}",
            "with the batches held in memory (or more loader workers) the step gets shorter by it",
        )  # fmt: skip


def oversubscribed(case: Case) -> Iterator[Diagnosis]:
    delays = contention_ms_by_rank(case.run)
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

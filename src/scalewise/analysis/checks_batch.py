"""Limits that a larger batch would lift: what a step costs whatever it computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scalewise.analysis.activity import (
    LAUNCH_BOUND_SM_PERCENT,
    contention_ms,
    contention_words,
    sm_activity,
)
from scalewise.analysis.breakdown import ExposedCommunication
from scalewise.analysis.checks_host import input_bound, oversubscribed, stalls
from scalewise.analysis.checks_ranks import straggler, uneven_shards
from scalewise.analysis.diagnosis import Case, Diagnosis, median_compute_ms
from scalewise.analysis.pipeline import shares_samples
from scalewise.analysis.throughput import common_steps

SHARE = 0.10
"""Share of a step from which communication is a limit."""
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

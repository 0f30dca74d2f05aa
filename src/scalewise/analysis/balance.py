"""Load balance across ranks: who arrives last at the all-reduce, and by how much.

Balance is judged by *arrival*, the time from the start of a step until the last gradient bucket
is ready, step by step. Nothing else shows a straggler: synchronous data parallelism makes every
rank's step equally long, and a rank that waits reads 100 % utilisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from scalewise.analysis.comparability import grouped
from scalewise.analysis.steps import NotMeasuredError, timeline
from scalewise.records import Grade, ShardIndices, StepSeries, cv_text, grade

_WINDOWS = 20
_MIN_WINDOW_STEPS = 10
"""A window of fewer steps shows their noise."""


@dataclass(frozen=True)
class BalanceWindow:
    """Balance of some steps in a row."""

    first_step: int
    last_step: int
    cv_percent: float
    slowest_rank: int


@dataclass(frozen=True)
class LoadBalance:
    """Arrival of all ranks of one run."""

    cv_percent: float
    """Coefficient of variation of the ranks' arrival in a step, mean over the timed steps."""
    grade: Grade
    arrival_ms: tuple[float, ...]
    """Mean over the timed steps, one value a rank."""
    slowest_rank: int
    behind_ms: float
    """How much later the slowest rank arrives than the mean of the others."""
    timeline: str
    slowest_share: float
    """Share of the timed steps in which that rank arrived last."""
    history: tuple[BalanceWindow, ...]
    """The run cut into at most 20 windows of equally many steps, ten at least."""

    @property
    def explanation(self) -> str:
        others = self.arrival_ms[self.slowest_rank] - self.behind_ms
        return (
            f"arrival CV {cv_text(self.cv_percent)} % ({self.grade}): rank {self.slowest_rank} is "
            f"ready {self.behind_ms:.2f} ms after the mean of the others, which take "
            f"{others:.2f} ms, and last in {self.slowest_share:.0%} of the steps"
        )


ONE_RANK = "one rank: there is nothing to balance"


def measure_balance(ranks: Sequence[StepSeries]) -> LoadBalance:
    """Load balance of one run, from the common steps of all its ranks.

    Raises :class:`NotMeasuredError` for one rank, or where the last bucket was not timed.
    """
    if len(ranks) < 2:
        raise NotMeasuredError(ONE_RANK)
    line = timeline(ranks)
    arrivals = np.stack([one.column("arrival", line) for one in ranks])
    known = ~np.isnan(arrivals).any(axis=0)
    arrivals, numbers = arrivals[:, known], ranks[0].rows["step"][known]
    if arrivals.shape[1] == 0:
        raise NotMeasuredError("arrival was not timed: no gradient bucket reported ready")
    means = arrivals.mean(axis=1)
    if not float(means.mean()) > 0:
        raise NotMeasuredError("every arrival is zero: the step clock did not run")
    slowest = int(np.argmax(means))
    others = np.delete(arrivals, slowest, axis=0)
    behind = float(means[slowest] - others.mean())
    cv = _mean_cv_percent(arrivals)
    return LoadBalance(
        cv_percent=cv,
        grade=grade(cv),
        arrival_ms=tuple(means.tolist()),
        slowest_rank=slowest,
        behind_ms=behind,
        timeline=line,
        slowest_share=float(np.mean(arrivals[slowest] > others.max(axis=0))),
        history=_history(arrivals, numbers),
    )


def _mean_cv_percent(arrivals: npt.NDArray[np.float64]) -> float:
    """Step by step: ranks that are late in turns have equal means."""
    means = arrivals.mean(axis=0)
    moved = means > 0
    return float(100 * (arrivals.std(axis=0)[moved] / means[moved]).mean())


def _history(
    arrivals: npt.NDArray[np.float64], steps: npt.NDArray[np.int64]
) -> tuple[BalanceWindow, ...]:
    """``arrivals`` has shape ``[ranks, steps]``; a window of a stopped clock is left out."""
    found = []
    windows = min(_WINDOWS, max(1, len(steps) // _MIN_WINDOW_STEPS))
    for columns in np.array_split(np.arange(len(steps)), windows):
        means = arrivals[:, columns].mean(axis=1)
        if float(means.mean()) > 0:
            first, last = int(steps[columns[0]]), int(steps[columns[-1]])
            cv, slowest = _mean_cv_percent(arrivals[:, columns]), int(np.argmax(means))
            found.append(BalanceWindow(first, last, cv, slowest))
    return tuple(found)


ShardVerdict = Literal[
    "sharded", "replicated", "every rank sees all data", "overlap", "incomplete", "not the same",
    "not judged",
]  # fmt: skip


@dataclass(frozen=True)
class ShardAudit:
    """What the first epoch of all ranks looked like together."""

    verdict: ShardVerdict
    explanation: str
    dataset_size: int | None = None
    overlapping_samples: int | None = None
    """Distinct dataset indices that more than one rank fed."""
    coverage: float | None = None
    """Share of the data fed by some rank; None unless the epoch was complete on every rank."""


def audit_shards(
    shards: Sequence[ShardIndices], world_size: int, global_batch_size: int | None = None
) -> ShardAudit:
    """Judge the first epoch of ``world_size`` ranks from the indices they fed.

    A sampler that was never applied makes every rank train on all the data. Allowed are up to
    ``world_size - 1`` samples in two shards (a distributed sampler pads the last round) and less
    than a global batch left out (a dropped last batch).
    """
    if sorted(s.rank for s in shards) != list(range(world_size)):
        have = ", ".join(str(s.rank) for s in shards) or "none"
        return ShardAudit("not judged", f"indices of rank {have} were recorded, of {world_size}")
    size = shards[0].dataset_size
    parts = grouped(shards, lambda one: one.rank if one.data_shard is None else one.data_shard)
    for first, *others in parts.values():
        for other in others:
            if not np.array_equal(other.indices, first.indices):
                text = f"rank {other.rank} and rank {first.rank} hold parts of one replica, but "
                return ShardAudit("not the same", f"{text}fed it different samples", size)
    shards = [same[0] for same in parts.values()]
    world_size = len(shards)
    if world_size == 1:
        text = "all ranks fed the same samples, as this strategy means them to"
        return ShardAudit("replicated", text, size)
    unique = [np.unique(s.indices) for s in shards]
    if not any(len(u) for u in unique):
        return ShardAudit("not judged", "no rank recorded which samples it fed", size)
    if any(len(u) == 0 for u in unique):
        empty = ", ".join(str(s.rank) for s, u in zip(shards, unique, strict=True) if not len(u))
        return ShardAudit("incomplete", f"rank {empty} fed no sample at all", size)
    return _judge(shards, unique, size, global_batch_size or world_size)


def _judge(
    shards: Sequence[ShardIndices], unique: Sequence[npt.NDArray[np.int64]], size: int, allowed: int
) -> ShardAudit:
    """``allowed``: samples that may be left out."""
    each, ranks_each = np.unique(np.concatenate(unique), return_counts=True)
    world_size, seen, overlap = len(shards), len(each), int((ranks_each > 1).sum())
    coverage = seen / size if all(s.epoch_complete for s in shards) else None
    if overlap > world_size - 1:
        everything = coverage is not None and all(len(u) > size - allowed for u in unique)
        if everything or all(np.array_equal(s.indices, shards[0].indices) for s in shards):
            text = (
                f"each of {world_size} ranks fed the same {overlap:,} samples of {size:,}: the "
                f"sampler does not shard, an epoch costs {world_size} times what it should"
            )
            return ShardAudit("every rank sees all data", text, size, overlap, coverage)
        repeated = sum(len(s.indices) - len(u) for s, u in zip(shards, unique, strict=True))
        if repeated > world_size - 1:
            text = f"samples were drawn with replacement ({repeated:,} repeats within a rank)"
            return ShardAudit("not judged", text, size)
        text = f"{overlap:,} of {seen:,} samples were fed by more than one rank"
        return ShardAudit("overlap", text, size, overlap, coverage)
    if coverage is not None and size - seen >= max(allowed, world_size):
        text = f"{size - seen:,} of {size:,} samples were fed by no rank in a complete epoch"
        return ShardAudit("incomplete", text, size, overlap, coverage)
    covered = f"{coverage:.1%} of the data" if coverage is not None else "epoch not complete"
    text = f"{world_size} shards share {overlap} samples; {covered}"
    return ShardAudit("sharded", text, size, overlap, coverage)

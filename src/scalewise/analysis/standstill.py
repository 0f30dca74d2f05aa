"""Steps in which processes stood still: whose time they are not, and what is said of them.

Where all ranks stood still at once, the cell was suspended (by SLURM, with its container): that
tells nothing of how it trains, and the steps are left out of all figures. A rank that stood still
while others waited for it is a fault of the run like any straggler: its time stays in the figures,
with its name beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scalewise.analysis.spans import Span, merged
from scalewise.records import SET_ASIDE, STOOD_STILL, RankSummary, Standstill, StepSeries

_MOST_STEPS = 3
"""Steps that are named one by one."""


def set_aside(series: Sequence[StepSeries], ranks: Sequence[RankSummary]) -> tuple[StepSeries, ...]:
    """The same series, with ``SET_ASIDE`` in every step under way while all ranks stood still.

    Ranks may have been in two successive steps: both are set aside, for all.

    Args:
        series: of the ranks of one run.
        ranks: what these say of themselves.
    """
    suspensions = _suspensions_ns(series, ranks)
    if not suspensions:
        return tuple(series)
    under_way = [one.rows["step"][_within(one, suspensions)] for one in series]
    return tuple(_flagged(one, np.concatenate(under_way)) for one in series)


def time_aside(series: Sequence[StepSeries], ranks: Sequence[RankSummary] = ()) -> tuple[Span, ...]:
    """When the cell did not train as it does: in Unix time, apart and in order.

    It holds the whole of each step that is set aside, whose samples are counted nowhere, and the
    suspensions themselves: one between two steps (while a validation ran) is in no step.

    Args:
        series: of the ranks of one run, as :func:`set_aside` left them.
        ranks: what these say of themselves.
    """
    spans_ns = _suspensions_ns(series, ranks)
    for one in series:
        rows = one.rows[(one.rows["flags"] & SET_ASIDE) != 0]
        begins_ns = (rows["start_ns"] + one.epoch_offset_ns).tolist()
        lengths_ms = rows["host_step_ms"].tolist()
        spans_ns += [
            (begin, begin + round(ms * 1e6))
            for begin, ms in zip(begins_ns, lengths_ms, strict=True)
            if not np.isnan(ms)
        ]
    return merged((begin / 1e9, end / 1e9) for begin, end in spans_ns)


@dataclass(frozen=True)
class Still:
    """What is to be said of the standstills of one run."""

    rank: int | None
    """None for all of them."""
    steps: tuple[int, ...]
    seconds: float
    """What these steps took, on the rank on which they took longest."""

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.steps[:_MOST_STEPS]))
        more = len(self.steps) - _MOST_STEPS
        several = len(self.steps) > 1
        where = f"step{'s' if several else ''} {numbers}{f' and {more} more' if more > 0 else ''}"
        took = f"{where}, which took {self.seconds:.1f} s"
        if self.rank is None:
            return (
                f"it was suspended in {took} and {'are' if several else 'is'} left out of its "
                "figures (all of its processes stood still)"
            )
        return (
            f"rank {self.rank} stood still in {took} of its figures, while the others ran "
            "(stopped or frozen: look for who did that)"
        )


def standstills(series: Sequence[StepSeries]) -> tuple[Still, ...]:
    """All of one run, as :func:`set_aside` left them; empty where nothing stood still."""
    found, suspended = [], []
    for one in series:
        rows = _still(one)
        aside = (rows["flags"] & SET_ASIDE) != 0
        if aside.any():
            suspended.append(_told(None, rows[aside]))
        if not aside.all():
            found.append(_told(one.rank, rows[~aside]))
    whole = max(suspended, key=lambda one: one.seconds, default=None)
    return tuple(found) if whole is None else (whole, *found)


def _told(rank: int | None, rows: npt.NDArray[np.void]) -> Still:
    seconds = float(np.nansum(rows["host_step_ms"], dtype=np.float64)) / 1e3
    return Still(rank, tuple(int(number) for number in rows["step"]), seconds)


def _still(one: StepSeries) -> npt.NDArray[np.void]:
    rows: npt.NDArray[np.void] = one.rows[(one.rows["flags"] & STOOD_STILL) != 0]
    return rows


def _suspensions_ns(
    series: Sequence[StepSeries], ranks: Sequence[RankSummary]
) -> list[tuple[int, int]]:
    """When all ranks stood still at once: Unix times in ns."""
    stood_still = {rank.rank: rank.standstills for rank in ranks}
    return _together([_spans_ns(one, stood_still.get(one.rank, ())) for one in series])


def _together(ranks: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """What the spans of all ranks have in common."""
    common = list(ranks[0]) if ranks else []
    for spans in ranks[1:]:
        both = ((max(a, c), min(b, d)) for a, b in common for c, d in spans)
        common = [(begin, end) for begin, end in both if begin < end]
    return common


def _spans_ns(one: StepSeries, standstills: Sequence[Standstill]) -> list[tuple[int, int]]:
    """Unix times in ns."""
    offset = one.epoch_offset_ns
    return [(still.since_ns + offset, still.until_ns + offset) for still in standstills]


def _within(one: StepSeries, spans_ns: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Which steps were under way in any of these spans of Unix time."""
    begin = one.rows["start_ns"] + one.epoch_offset_ns
    # A step of unknown length ends nowhere: NaN compares as false.
    end = begin + one.rows["host_step_ms"].astype(np.float64) * 1e6
    found = np.zeros(len(one.rows), dtype=bool)
    for since, until in spans_ns:
        found |= (begin < until) & (end > since)
    return found


def _flagged(one: StepSeries, numbers: npt.NDArray[np.int64]) -> StepSeries:
    rows = one.rows.copy()
    rows["flags"][np.isin(rows["step"], numbers)] |= SET_ASIDE
    return replace(one, rows=rows)

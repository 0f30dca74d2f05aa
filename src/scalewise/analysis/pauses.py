"""Standstills that fell between steps: at start-up, during a validation or a checkpoint.

They are in no step, so no figure of steps has to be rid of them, and nothing but this names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewise.analysis.spans import Span, length_s, merged, without
from scalewise.analysis.standstill import time_aside
from scalewise.records import RankSummary, StepSeries

LEAST_S = 1.0
"""What a standstill within a step leaves before or after that step is shorter: it is known to a
quarter of a second."""


@dataclass(frozen=True)
class Pause:
    """What is to be said of the time in which one run stood still outside of its steps."""

    rank: int | None
    """None for all of them."""
    seconds: float
    """Of all its pauses together."""

    def __str__(self) -> str:
        if self.rank is None:
            return (
                f"it was suspended for {self.seconds:.1f} s outside of its timed steps (all of its "
                "processes stood still); no figure of steps holds that time"
            )
        return (
            f"rank {self.rank} stood still for {self.seconds:.1f} s outside of its timed steps, "
            "while others ran (stopped or frozen: look for who did that)"
        )


def pauses(series: Sequence[StepSeries], ranks: Sequence[RankSummary]) -> tuple[Pause, ...]:
    """All of one run; empty where nothing stood still but in steps.

    Args:
        series: of the ranks of one run, as :func:`scalewise.analysis.standstill.set_aside` left
            them.
        ranks: what these say of themselves.
    """
    suspended = time_aside(series, ranks)
    found = [Pause(None, _outside_s(suspended, time_aside(series)))]
    stood_still = {rank.rank: rank.standstills for rank in ranks}
    for one in series:
        own = merged(
            (_unix_s(still.since_ns, one), _unix_s(still.until_ns, one))
            for still in stood_still.get(one.rank, ())
        )
        found.append(Pause(one.rank, _outside_s(own, merged((*suspended, *_steps(one))))))
    return tuple(pause for pause in found if pause.seconds > 0)


def _outside_s(stood_still: Sequence[Span], named: Sequence[Span]) -> float:
    """Seconds of the spans that are not yet named, without scraps of them."""
    left = [part for span in stood_still for part in without(span, named)]
    return length_s((begin, end) for begin, end in left if end - begin >= LEAST_S)


def _steps(one: StepSeries) -> list[Span]:
    """Those of known length, timed or not: a standstill in any of them is named with it."""
    rows = one.rows[~np.isnan(one.rows["host_step_ms"])]
    return [
        (_unix_s(begin_ns, one), _unix_s(begin_ns + round(ms * 1e6), one))
        for begin_ns, ms in zip(
            rows["start_ns"].tolist(), rows["host_step_ms"].tolist(), strict=True
        )
    ]


def _unix_s(at_ns: int, one: StepSeries) -> float:
    return (at_ns + one.epoch_offset_ns) / 1e9

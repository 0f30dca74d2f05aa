"""Step anatomy: where the time of a step goes, phase by phase, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalewise.analysis.throughput import common_steps
from scalewise.records import PHASES, StepSeries


@dataclass(frozen=True)
class RankAnatomy:
    """Mean ms a step of one rank on one timeline."""

    rank: int
    timeline: str
    """``host`` or ``device``: never added to one another."""
    phases_ms: Mapping[str, float | None]
    """Every name of ``PHASES``; None where the phase was not measured."""
    step_ms: float | None


@dataclass(frozen=True)
class ExposedCommunication:
    """Mean ms a step between the last gradient bucket ready and the end of backward."""

    mean_ms: float
    """Over ranks, waiting included."""
    transfer_ms: float
    """What the rank that waits for nobody spends: the smallest of a step over the ranks."""
    wait_ms: float
    """The rest: waiting for the slowest rank, mean over ranks."""
    timeline: str


@dataclass(frozen=True)
class Anatomy:
    """The anatomy of one run."""

    ranks: tuple[RankAnatomy, ...]
    """Every rank on every timeline that was recorded."""
    communication: ExposedCommunication | None
    """None where nothing is reduced."""

    def mean(self, line: str) -> RankAnatomy | None:
        """Mean over the ranks on timeline ``line``; None if it was not recorded."""
        ranks = [r for r in self.ranks if r.timeline == line]
        if not ranks:
            return None
        phases = {name: _mean([r.phases_ms[name] for r in ranks]) for name in PHASES}
        return RankAnatomy(-1, line, phases, _mean([r.step_ms for r in ranks]))


def measure_anatomy(series: Sequence[StepSeries], world_size: int) -> Anatomy:
    """Mean ms a step for every phase, timeline and rank, over the steps all ranks timed.

    Raises :class:`~scalewise.analysis.throughput.NotMeasuredError`.
    """
    ranks = common_steps(series, world_size)
    lines = ["host"] + (["device"] if all(r.timeline == "device" for r in ranks) else [])
    anatomies = tuple(
        RankAnatomy(
            one.rank,
            line,
            {name: _present_mean(one.column(name, line)) for name in PHASES},
            _present_mean(one.column("step", line)),
        )
        for line in lines
        for one in ranks
    )
    return Anatomy(anatomies, exposed_communication(ranks, lines[-1]))


def exposed_communication(ranks: Sequence[StepSeries], line: str) -> ExposedCommunication | None:
    """Exposed communication split into transfer and waiting by comparing aligned ranks.

    In a synchronous all-reduce the rank that arrives last waits for nobody, so its exposed time
    is the transfer; what the other ranks spend beyond it is waiting (docs/method.md).
    """
    exposed = np.stack([one.column("exposed_comm", line) for one in ranks])
    exposed = exposed[:, ~np.isnan(exposed).any(axis=0)]
    if exposed.size == 0:
        return None
    transfer = float(exposed.min(axis=0).mean())
    mean = float(exposed.mean())
    return ExposedCommunication(mean, transfer, mean - transfer, line)


def _present_mean(values: npt.NDArray[np.float64]) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else None


def _mean(values: Sequence[float | None]) -> float | None:
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present else None

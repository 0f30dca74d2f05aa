"""The confusion matrix of a self-test and the detection limit of each fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from faults.observe import HEALTHY, Observation


@dataclass(frozen=True)
class Row:
    """All runs with one fault at one magnitude."""

    fault: str
    magnitude: str
    expected: str
    runs: int
    first: Counter[str]
    """How many runs had this named first."""

    @property
    def right(self) -> int:
        return self.first[self.expected]


@dataclass(frozen=True)
class Detection:
    """From which magnitude on a fault is named first."""

    fault: str
    expected: str
    limit: str | None
    """The smallest magnitude that was named first in every run, as all larger ones were."""
    strongest: str

    def __str__(self) -> str:
        if self.limit is None:
            return f"NOT named first in every run at {self.strongest}"
        return f"named first from {self.limit} on"


def rows(observations: Sequence[Observation]) -> list[Row]:
    """The confusion matrix, healthy runs first, then each fault by magnitude."""
    keys = dict.fromkeys(
        (o.fault, o.magnitude, o.expected)
        for o in sorted(observations, key=lambda o: (o.fault != HEALTHY, o.fault, o.strength))
    )
    found = []
    for fault, magnitude, expected in keys:
        mine = [o for o in observations if (o.fault, o.magnitude) == (fault, magnitude)]
        counts = Counter(o.first for o in mine)
        found.append(Row(fault, magnitude, expected, len(mine), counts))
    return found


def detections(observations: Sequence[Observation]) -> list[Detection]:
    """The detection limit of each planted fault."""
    found = []
    for fault in sorted({o.fault for o in observations} - {HEALTHY}):
        mine = [o for o in observations if o.fault == fault]
        limit = None
        for strength in sorted({o.strength for o in mine}, reverse=True):
            at = [o for o in mine if o.strength == strength]
            if not all(o.right for o in at):
                break
            limit = at[0].magnitude
        strongest = max(mine, key=lambda o: o.strength).magnitude
        found.append(Detection(fault, mine[0].expected, limit, strongest))
    return found


def accusations(observations: Sequence[Observation]) -> Counter[str]:
    """Faults named on healthy trainings, and on how many; a busy host is no fault of theirs."""
    return Counter(name for o in observations if o.is_healthy for name in o.accused)


def passed(observations: Sequence[Observation]) -> bool:
    """Every fault named first at its largest magnitude, none on a healthy run."""
    return not accusations(observations) and all(
        d.limit is not None for d in detections(observations)
    )

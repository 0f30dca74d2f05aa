"""What the ranks of a cell sent to each other, counted while it ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CommunicationRecord:
    """What one rank gave to collectives in its timed steps, on average for an optimizer step."""

    what: Literal["gradients", "parameters"]
    """Gradients are averaged before an optimizer steps, parameters after it has."""
    rounds_per_step: float
    """Times that all gradients (or parameters) were averaged. Above 1: more often than needed.
    1 / K where K steps share one."""
    payload_bytes_per_step: float
    """Bytes handed to the all-reduce, as compressed. A ring all-reduce over N ranks sends
    2 (N - 1) / N times as much over each link."""
    ms_per_step: float | None = None
    """Time the rank spent in it; None where the step records carry it as exposed communication."""

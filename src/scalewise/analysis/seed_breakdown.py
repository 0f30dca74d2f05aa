"""The communication breakdown of the TensorFlow study, row by row, on what DDP really does.

That study splits 58-85 ms of communication a step into five rows. DDP has no counterpart for
three of them: gradients never go to one place and back, and buffers are not made in every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.analysis.communication import Communication


@dataclass(frozen=True)
class SeedRow:
    """One row of that table."""

    name: str
    ms: float | None
    """None where DDP has no such step, or where it was not measured."""
    exists: bool
    """Whether anything in DDP corresponds to it."""
    meaning: str
    """What it is here, or why it is absent."""


def seed_rows(found: Communication) -> tuple[SeedRow, ...]:
    """All five, in the order of that table."""
    exposed = found.exposed
    ms, meaning = _all_reduce(found)
    return (
        SeedRow(
            "gradient collection",
            None,
            False,
            "absent: each gradient is written into its bucket by backward itself "
            "(gradient_as_bucket_view), and is in its time",
        ),
        SeedRow("all-reduce operation", ms, True, meaning),
        SeedRow(
            "gradient broadcast",
            None,
            False,
            "absent: an all-reduce leaves the mean on every rank; parameters are broadcast once, "
            "before the first step",
        ),
        SeedRow(
            "synchronization",
            exposed.wait_ms if exposed else None,
            True,
            "waiting for the slowest rank at the end of backward, mean over ranks",
        ),
        SeedRow(
            "buffer management",
            None,
            False,
            "absent: buckets and the collectives' buffers are made once and kept; batch "
            "statistics, where a model has them, are sent within forward",
        ),
    )


def _all_reduce(found: Communication) -> tuple[float | None, str]:
    """Ms a step, and which part of all collectives that is."""
    window, exposed = found.window, found.exposed
    if window is not None and window.total_ms is not None:
        return (
            window.total_ms,
            "all collectives of a step, from the profiler window, waiting inside them included",
        )
    if window is not None and window.transfer_ms is not None:
        return window.transfer_ms, "all collectives of a step, from the profiler window, no waiting"
    rest = ": the rest needs profile.window=true" if window is None else ""
    return (
        exposed.transfer_ms if exposed else None,
        f"the exposed part only, without waiting{rest}",
    )

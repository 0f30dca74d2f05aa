"""The limit that lies in the schedule of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis.diagnosis import Case, Diagnosis
from scalewise.analysis.pipeline import measure_pipeline

_SHARE = 0.10
"""Share of a step from which idle stages count as a limit."""


def idle_stages(case: Case) -> Iterator[Diagnosis]:
    """A pipeline whose stages wait for one another."""
    found = measure_pipeline(case.run.cell, case.run.anatomy)
    if found is None:
        return
    idle_ms = sum(found.idle_ms) / len(found.idle_ms)
    if idle_ms > _SHARE * case.step_ms:
        twice = 2 * found.schedule.microbatches
        p = found.schedule.stages
        yield Diagnosis(
            "idle pipeline stages", idle_ms, case.step_ms, str(found),
            f"with strategy.microbatches={twice} the bubble is {(p - 1) / (twice + p - 1):.0%}; "
            "what idles beyond it is unequal stages, transfers, or launching small microbatches",
        )  # fmt: skip

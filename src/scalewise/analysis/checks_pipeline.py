"""Limits that lie in the schedule of a pipeline, and in how small its pieces are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewise.analysis.diagnosis import Case, Diagnosis
from scalewise.analysis.pipeline import measure_pipeline
from scalewise.analysis.stage_activity import StageActivity, stage_activity
from scalewise.records import PipelineRecord

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
            "idle pipeline stages", idle_ms, case.step_ms, f"{found}{_busy_words(case)}",
            f"with strategy.microbatches={twice} the bubble is {(p - 1) / (twice + p - 1):.0%}; "
            "what idles beyond it is unequal stages, transfers, or launching small microbatches",
        )  # fmt: skip


def launch_bound_stages(case: Case) -> Iterator[Diagnosis]:
    """A stage whose GPU idles between the kernels of its microbatches: it sets the pace of all."""
    stages, found = stage_activity(case), measure_pipeline(case.run.cell, case.run.anatomy)
    if not stages or found is None:
        return
    worst = max(stages, key=lambda stage: stage.idle_ms)
    if not worst.is_launch_bound:
        return
    m = found.schedule.microbatches
    yield Diagnosis(
        "launch-bound stages", worst.idle_ms, case.step_ms,
        f"{_busy(stages)}: between the kernels of {m} microbatches a GPU idles",
        _with_fewer(found.schedule), worst.rank,
    )  # fmt: skip


def _with_fewer(schedule: PipelineRecord) -> str:
    p, half = schedule.stages, schedule.microbatches // 2
    if half == 0:
        return "with twice the batch (batch_size) a step takes less than twice as long"
    return (
        f"with strategy.microbatches={half} forwards and backwards take less a step, although the "
        f"bubble grows to {(p - 1) / (half + p - 1):.0%}"
    )


def _busy_words(case: Case) -> str:
    """How busy the stages are where that is no limit of its own; empty where it is not known."""
    stages = stage_activity(case)
    if not stages or any(stage.is_launch_bound for stage in stages):
        return ""
    return f"; {_busy(stages)}"


def _busy(stages: Sequence[StageActivity]) -> str:
    each = ", ".join(map(str, stages))
    return f"while the stages compute, their SMs have work for at most {each} a step"

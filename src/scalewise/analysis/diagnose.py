"""What limits a configuration: named from its measurements, with evidence, size and a way out.

Every check reads measurements alone (never what was asked for), names a limit only above its
threshold, gives its size in ms a step, and says which test would refute it. More than one may
hold; they are listed by size, faults that make the figures meaningless first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scalewise.analysis.activity import contention_ms
from scalewise.analysis.checks import CHECKS
from scalewise.analysis.diagnosis import Case, Diagnosis, compute_ms, median_compute_ms
from scalewise.analysis.imported import check_imported
from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration

WELL_SPENT = frozenset({"compute-bound", "memory-bound"})
"""Limits that are no loss: the device does nothing but its work."""
MOST_CONTENTION_SHARE = 1 / 3
"""Share of a step up to which computing is known without what a crowd had of it. In which phases
the delay fell is not counted: taken to be spread like the time of the step, it may be wrong by as
much again, and beyond a third that is half of what would be left."""


def diagnose(config: Configuration, twin: Configuration | None = None) -> tuple[Diagnosis, ...]:
    """The limits found in most runs of ``config``, largest first.

    Each with the figures of the run in the middle, whose repeat it names: evidence is of one run.
    ``twin`` is its single-device twin, where there is one: what dividing the work did not shrink
    is seen only beside it.
    """
    found = [_of_repeat(run, config, diagnose_run(run, twin)) for run in config.runs]
    kept: list[Diagnosis] = []
    for key in dict.fromkeys((d.limit, d.rank) for run in found for d in run):
        hits = [d for run in found for d in run if (d.limit, d.rank) == key]
        if 2 * len(hits) > len(found):
            middle = sorted(hits, key=lambda d: d.ms)[len(hits) // 2]
            seen = f" (in {len(hits)} of {len(found)} runs)" if len(hits) < len(found) else ""
            kept.append(replace(middle, evidence=middle.evidence + seen))
    return in_order(kept)


def _of_repeat(run: Run, config: Configuration, found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """One run needs no name: the tables' figures are its own."""
    repeat = run.cell.planned.repeat if len(config.runs) > 1 else None
    return [replace(diagnosis, repeat=repeat) for diagnosis in found]


def in_order(found: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """What makes the figures meaningless, then what costs time by size, then what it is spent on.

    A device that computes all the time is what one pays for; what keeps it from that, however
    small, is what one can mend.
    """
    return tuple(sorted(found, key=lambda d: (not d.invalidates, d.limit in WELL_SPENT, -d.ms)))


def diagnose_run(run: Run, twin: Configuration | None = None) -> list[Diagnosis]:
    """The limits of one run, and what a published line beside it contradicts.

    Empty where no step was recorded.
    """
    line = run.cell.imported
    contradictions = list(check_imported(line)) if line else []
    if run.anatomy is None or run.throughput is None:
        return contradictions
    host, device = run.anatomy.mean("host"), run.anatomy.mean("device")
    if host is None:
        return contradictions
    own = _twin_compute(run, twin)
    case = Case(
        run,
        run.throughput.step_time_ms.mean,
        host,
        device,
        own.compute_ms if own else None,
        _twin_step(twin),
        own.contention_ms if own else 0.0,
    )
    return contradictions + [diagnosis for check in CHECKS for diagnosis in check(case)]


def _twin_step(twin: Configuration | None) -> float | None:
    figure = twin.estimate("step_time_ms") if twin is not None else None
    return figure.value if figure else None


@dataclass(frozen=True)
class _OwnCompute:
    """Forward and backward of a typical step."""

    compute_ms: float
    """Without what other processes that held the cores had of it."""
    contention_ms: float
    """What it was reduced by."""


def _twin_compute(run: Run, twin: Configuration | None) -> _OwnCompute | None:
    """Mean over the runs of the twin; None unless it is known of more than half of them."""
    result = run.cell.result
    if twin is None or result is None or result.scaling != "strong":
        return None
    known = [own for r in twin.runs if (own := _own_compute(r)) is not None]
    if 2 * len(known) <= len(twin.runs):
        return None
    return _OwnCompute(
        sum(own.compute_ms for own in known) / len(known),
        sum(own.contention_ms for own in known) / len(known),
    )


def _own_compute(run: Run) -> _OwnCompute | None:
    """None where it was not timed, and where a crowd had more than :data:`MOST_CONTENTION_SHARE`.

    The delay is a mean over steps, which few long ones may make: it is taken from the mean, and
    the median stands where that is less.
    """
    median_ms = median_compute_ms(run)
    if median_ms is None or run.anatomy is None or run.anatomy.mean("device") is not None:
        return None if median_ms is None else _OwnCompute(median_ms, 0.0)
    host = run.anatomy.mean("host")
    mean_ms = compute_ms(host) if host is not None else None
    if host is None or mean_ms is None or not host.step_ms:
        return None
    contention_share = contention_ms(run) / host.step_ms
    if contention_share > MOST_CONTENTION_SHARE:
        return None
    own_ms = min(median_ms, mean_ms * (1 - contention_share))
    return _OwnCompute(own_ms, median_ms - own_ms)

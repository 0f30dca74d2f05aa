"""What limits a configuration: named from its measurements, with evidence, size and a way out.

Every check reads measurements alone (never what was asked for), names a limit only above its
threshold, gives its size in ms a step, and says which test would refute it. More than one may
hold; they are listed by size, faults that make the figures meaningless first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.device_checks import (
    activity,
    allocator,
    communication,
    divided_too_far,
    idle_stages,
    launch_bound_stages,
    throttled,
)
from scalewise.analysis.diagnosis_case import (
    Case,
    Diagnosis,
    Limit,
    compute_ms,
    contention_ms,
    median_compute_ms,
)
from scalewise.analysis.rank_checks import (
    input_bound,
    oversubscribed,
    parameter_averaging,
    redundant_reductions,
    sharding,
    stalls,
    straggler,
    uneven_shards,
)
from scalewise.analysis.run import Run
from scalewise.records import ImportedResult

CHECKS: tuple[Callable[[Case], Iterator[Diagnosis]], ...] = (
    sharding, uneven_shards, straggler, stalls, input_bound, communication, divided_too_far,
    activity, throttled, allocator, oversubscribed, redundant_reductions, parameter_averaging,
    idle_stages, launch_bound_stages,
)  # fmt: skip
"""Each reads the measurements of a run and yields what limits it; in no order of importance."""
TOLERANCE = 0.05
"""Relative difference up to which two figures count as the same: published ones are rounded."""


def check_imported(result: ImportedResult) -> tuple[Diagnosis, ...]:
    """What the figures contradict; empty where they agree.

    A throughput that was computed from the wrong batch looks like bad (or wonderful) scaling. The
    step time that stands beside it gives it away: ``samples/s * seconds a step`` is the batch that
    was counted, and it must be the global one.
    """
    found = []
    counted, n = result.counted_batch, result.devices
    if n > 1 and _same(counted, result.global_batch_size / n):
        found.append(
            Diagnosis(
                "per-replica throughput",
                result.step_time_ms * (1 - 1 / n),
                result.step_time_ms,
                f"{result.samples_per_s:,.6g} samples/s at {result.step_time_ms:.3g} ms a step "
                f"count {counted:.4g} samples: one replica's share of a global batch of "
                f"{result.global_batch_size}; the throughput of all is {n} times higher",
                "one device with that share of the batch gives the same figure",
                invalidates=True,
            )
        )
    elif n > 1 and _same(counted, result.global_batch_size * n):
        found.append(
            Diagnosis(
                "inflated throughput",
                result.step_time_ms * (n - 1),
                result.step_time_ms,
                f"{result.samples_per_s:,.6g} samples/s at {result.step_time_ms:.3g} ms a step "
                f"count {counted:.4g} samples, {n} times the global batch: a global figure was "
                "multiplied by the devices once more",
                "the samples of an epoch over its wall time give the lower figure",
                invalidates=True,
            )
        )
    communication = result.communication_ms
    if communication is not None and communication > result.step_time_ms * (1 + TOLERANCE):
        found.append(
            Diagnosis(
                "unsynchronised timing",
                communication - result.step_time_ms,
                result.step_time_ms,
                f"{communication:.3g} ms of communication stand inside a step of "
                f"{result.step_time_ms:.3g} ms: the timer enclosed other work, or did not wait",
                "the same span timed by events on the device is no longer than the step",
                invalidates=True,
            )
        )
    return tuple(found)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * b


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
    several = len(config.runs) > 1
    found = [
        [replace(d, repeat=run.cell.planned.repeat if several else None) for d in limits]
        for run in config.runs
        for limits in [diagnose_run(run, twin)]
    ]
    kept: list[Diagnosis] = []
    for key in dict.fromkeys((d.limit, d.rank) for run in found for d in run):
        hits = [d for run in found for d in run if (d.limit, d.rank) == key]
        if 2 * len(hits) > len(found):
            middle = sorted(hits, key=lambda d: d.ms)[len(hits) // 2]
            seen = f" (in {len(hits)} of {len(found)} runs)" if len(hits) < len(found) else ""
            kept.append(replace(middle, evidence=middle.evidence + seen))
    return in_order(kept)


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
    compute_ms, crowd_ms = _twin_compute(run, twin)
    step = twin.estimate("step_time_ms") if twin is not None else None
    step_ms = step.value if step else None
    mean_ms = run.throughput.step_time_ms.mean
    case = Case(run, mean_ms, host, device, compute_ms, step_ms, crowd_ms)
    return contradictions + [diagnosis for check in CHECKS for diagnosis in check(case)]


def _twin_compute(run: Run, twin: Configuration | None) -> tuple[float | None, float]:
    """Forward and backward of the twin's typical step in ms, and what a crowd had of it beside.

    Means over its runs; None unless it is known of more than half of them.
    """
    result = run.cell.result
    if twin is None or result is None or result.scaling != "strong":
        return None, 0.0
    known = [own for r in twin.runs if (own := _own_compute(r)) is not None]
    if 2 * len(known) <= len(twin.runs):
        return None, 0.0
    compute_ms, contention_ms = (sum(each) / len(known) for each in zip(*known, strict=True))
    return compute_ms, contention_ms


def _own_compute(run: Run) -> tuple[float, float] | None:
    """The same of one run; None where it was not timed.

    None too where a crowd had more than :data:`MOST_CONTENTION_SHARE`.

    The delay is a mean over steps, which few long ones may make: it is taken from the mean, and
    the median stands where that is less.
    """
    median_ms = median_compute_ms(run)
    if median_ms is None or run.anatomy is None or run.anatomy.mean("device") is not None:
        return None if median_ms is None else (median_ms, 0.0)
    host = run.anatomy.mean("host")
    mean_ms = compute_ms(host) if host is not None else None
    if host is None or mean_ms is None or not host.step_ms:
        return None
    contention_share = contention_ms(run) / host.step_ms
    if contention_share > MOST_CONTENTION_SHARE:
        return None
    own_ms = min(median_ms, mean_ms * (1 - contention_share))
    return own_ms, median_ms - own_ms


REMEDIES: Mapping[Limit, str] = {
    "launch-bound": "take the host out of the step (execution=cudagraph, or execution=compile), or "
    "give each launch more work (a larger batch_size); more devices add launches, not speed",
    "input-bound": "load beside the training (dataset.loader.num_workers=4), ahead of it "
    "(dataset.loader.device_prefetch=2), or keep the data on the device "
    "(dataset.loader.device_resident=true)",
    "communication-bound": "reduce less often (accumulate_grad_batches=4 with a larger batch, or "
    "strategy=local_sgd) or less (strategy.compression=bf16 or powersgd), or compute more between "
    "reductions (a larger batch_size); see what the links give: scalewise doctor",
    "straggler": "run without the slow rank's device (hardware.gpus=[...]) and compare; give it a "
    "share it can keep up with (strategy=heterogeneous)",
    "stalls": "find what the host does then (validation, checkpoints, logging, other users); "
    "look at the longest steps' phases",
    "uneven shards": "share the batches evenly: a dataset whose loader scalewise builds is",
    "not sharded": "each rank needs a part of its own: let scalewise or Lightning put the "
    "distributed sampler in; the speedup of this run means nothing",
    "batch too small": "a larger batch_size; under scaling=strong, fewer devices",
    "memory-bound": "less traffic: execution=compile fuses, precision=bf16-mixed halves it",
    "compute-bound": "this is what more devices are for; precision=bf16-mixed or tf32 where it is "
    "fp32",
    "throttled": "cooling and power first; the figures hold for this clock only",
    "allocator thrash": "a smaller batch_size, execution.activation_checkpointing=true, or "
    "strategy=fsdp; then the allocator needs no retries",
    "host oversubscribed": "more cores for each rank, fewer loader workers, or a quieter host",
    "redundant reductions": "strategy.no_sync=true: reduce once an optimizer step",
    "launch-bound stages": "fewer microbatches (strategy.microbatches) or a larger batch_size, so "
    "that each launch has more work, against the bubble that grows with fewer",
    "idle pipeline stages": "more microbatches, or a cut of the model that balances the stages",
    "per-replica throughput": "multiply by the replicas, or measure again; this figure is one's",
    "inflated throughput": "measure again: it counts samples that nobody trained on",
    "unsynchronised timing": "measure again with the device waited for; see docs/method.md",
}  # fmt: skip
"""What to change, as it is typed: to be tried, not believed.

A remedy is the lever that acts on the time the diagnosis measured; whether it pays is for a sweep
of the change against what there is to say.
"""

"""Runs that are not what they claim to be: their figures get no verdict, no cost and no rank.

A speedup is arithmetic on two rates. Where ranks fed the same data, counted something else than
samples, shared a GPU or trained nothing, the rates are right and the speedup means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scalewise.analysis.balance import ShardAudit
from scalewise.analysis.comparability import grouped
from scalewise.analysis.losses import Losses, divergence
from scalewise.analysis.model import CellRecords
from scalewise.analysis.remarks import Remark
from scalewise.records import PHASES, CellResult, ImportedResult, RankSummary, StepSeries

if TYPE_CHECKING:
    from scalewise.analysis.step_figures import StepFigures

UNTRAINED_UP_TO = 0.05
"""Share of steps without a loss up to which a run is still compared: a loop that leaves out a bad
batch now and then gains at most as much."""


def invalid_ranks(ranks: Sequence[RankSummary], run: str = "") -> Iterator[Remark]:
    """Every reason that the ranks of one run give themselves."""
    for uuid, sharing in grouped(ranks, lambda rank: rank.device.uuid).items():
        if uuid is not None and len(sharing) > 1:
            each = " and ".join(map(str, sorted(rank.rank for rank in sharing)))
            yield Remark("shared_device", {"ranks": each, "uuid": uuid}, run=run)
            break
    if turned := _another_dimension(ranks):
        yield Remark("sample_count", turned, run=run)
    left_out = untrained_steps(ranks)
    if left_out and left_out["steps"] > UNTRAINED_UP_TO * left_out["of"]:
        yield Remark("untrained", left_out, run=run)
    elif any(rank.parameters_changed is False for rank in ranks):
        yield Remark("frozen", {"of": max(rank.steps_completed for rank in ranks)}, run=run)
    if differing := _differing_replicas(ranks):
        yield Remark("replicas_differ", differing, run=run)


REPLICAS_SAME: Final = 1e-5
"""Share of their norm by which the parameters of two replicas may differ."""


def _differing_replicas(ranks: Sequence[RankSummary]) -> dict[str, Any] | None:
    """By how much the rank that differs most has other parameters than the first; None if none."""
    known = [(one.rank, one.replica_fingerprint) for one in ranks if one.replica_fingerprint]
    if not known:
        return None
    first, (norm, projection) = known[0]
    apart = {
        rank: max(abs(own_norm - norm), abs(own_projection - projection)) / max(norm, own_norm)
        for rank, (own_norm, own_projection) in known[1:]
        if max(norm, own_norm) > 0
    }
    furthest = max(apart, key=lambda rank: apart[rank], default=None)
    if furthest is None or apart[furthest] <= REPLICAS_SAME:
        return None
    return {"first": first, "other": furthest, "share": apart[furthest]}


def _another_dimension(ranks: Sequence[RankSummary]) -> dict[str, Any] | None:
    """Of a rank in which another dimension than the one that is counted is as long as a batch."""
    for rank in ranks:
        asked, shape = rank.loader_batch_size, rank.batch_shape or (None,)
        if shape[0] != asked and asked in shape[1:]:
            return {"counted": shape[0], "shape": " x ".join(map(str, shape)), "asked": asked}
    return None


def untrained_steps(ranks: Sequence[RankSummary]) -> dict[str, int] | None:
    """How many of its steps gave no loss, of the worst rank; None where all did."""
    each = [(rank.steps_without_loss or 0, rank.steps_completed) for rank in ranks]
    steps, of = max(each, key=lambda one: one[0] / max(1, one[1]), default=(0, 0))
    return {"steps": steps, "of": of} if steps else None


SHARED_DATA: Final = ("every rank sees all data", "overlap", "not the same")
"""Verdicts on shards whose ranks fed the same."""


def invalid_run(
    cell: CellRecords,
    result: CellResult,
    steps: StepFigures,
    shards: ShardAudit | None,
    losses: Losses,
) -> Iterator[Remark]:
    """Every reason why the figures of a finished cell mean nothing; one rank has no ``shards``."""
    run = cell.planned.name
    if shards is not None and shards.verdict in SHARED_DATA:
        yield Remark("shards_overlap", {"explanation": shards.explanation}, run=run)
    yield from invalid_ranks(result.ranks, run)
    if told := steps.contradiction or next(_outside(cell, result, steps), None):
        yield Remark("records_contradict", {"contradiction": told}, run=run)
    if diverged := divergence(losses):
        yield Remark("loss_not_finite", {"loss": diverged}, run=run)


PUBLISHED_TOLERANCE: Final = 0.05
"""Relative difference up to which two figures count as the same: published ones are rounded."""


def check_published(result: ImportedResult) -> Iterator[Remark]:
    """What the figures contradict; nothing where they agree.

    ``samples/s * seconds a step`` is the batch that was counted: it must be the global one.
    """
    counted, batch = result.counted_batch, result.global_batch_size
    figures = {
        "rate": result.samples_per_s, "step_ms": result.step_time_ms, "counted": counted,
        "batch": batch, "times": counted / batch, "communication_ms": result.communication_ms,
    }  # fmt: skip
    if abs(counted - batch) > PUBLISHED_TOLERANCE * batch:
        yield Remark("counted_batch", figures)
    if (result.communication_ms or 0) > result.step_time_ms * (1 + PUBLISHED_TOLERANCE):
        yield Remark("unsynchronised_timing", figures)


SAME: Final = 1e-3
"""Share by which two records of one time may differ; times below 1 us do not count."""
_SAME_MS: Final = 1e-3
DEVICE_SHARE: Final = 0.15  # Of the host's time, by which a window on the device may differ.

OUTSIDE_S: Final = 1.0
"""Seconds by which the clocks around a run's steps may differ from those of the steps."""
DEVICE_S: Final = 0.5
"""Seconds by which it may differ, where DEVICE_SHARE of a short window is less."""


def contradiction(series: Sequence[StepSeries]) -> str | None:
    """The first contradiction in the steps of a run's ranks, in words; None for none.

    A step ends before the next one begins, and its phases add up to it. The device has a clock of
    its own, so only sums of whole windows are compared with the host's.
    """
    for one in series:
        for found in _contradictions(one):
            return f"the step times of rank {one.rank} contradict each other: {found}"
    return None


def _outside(cell: CellRecords, result: CellResult, steps: StepFigures) -> Iterator[str]:
    """Where the steps contradict the run, its batch or its device: who alters step files can make
    their checksums anew, and would have to alter each of these too."""
    rate = steps.throughput
    for one in steps.ranks:
        lasted_s = one.edges_s[2] - one.edges_s[0] if one.edges_s else 0.0
        if lasted_s > result.elapsed_s + OUTSIDE_S:
            yield f"steps of {lasted_s:.4g} s in a run of {result.elapsed_s:.4g} s"
    if rate is None or rate.samples is None or rate.global_samples_per_s is None:
        return
    each, batch = rate.samples / rate.steps, result.global_batch_size
    # A few steps may be larger than the batch: by no more than the largest was.
    more = max((one.largest_step_samples or 1) / (one.step_samples or 1) for one in result.ranks)
    if batch is not None and each > batch * more * (1 + SAME):
        yield f"{each:,.6g} samples a step, of a batch of {batch:,}"
    declared = [one.flops_per_sample for one in result.ranks if one.flops_per_sample]
    peak = max(cell.provenance.peak_tflops.values(), default=None) if cell.provenance else None
    if declared and peak is not None:
        tflops = max(declared) * rate.global_samples_per_s / result.world_size / 1e12
        if tflops > peak:
            name = result.ranks[0].device.name
            yield f"{tflops:,.4g} TFLOP/s a device, where a {name} has {peak:,.4g} in any format"


def _contradictions(series: StepSeries) -> Iterator[str]:
    rows = series.rows
    lasted_ms = rows["host_step_ms"][:-1].astype(np.float64)
    apart_ms = np.diff(rows["start_ns"]) / 1e6
    for at in np.flatnonzero(lasted_ms - apart_ms > SAME * np.abs(apart_ms) + _SAME_MS)[:1]:
        yield (
            f"step {rows['step'][at]:,} took {lasted_ms[at]:.6g} ms on the host, and the next one "
            f"began {apart_ms[at]:.6g} ms after it began"
        )
    for line in ("host", "device"):
        # A replayed step has no phases but its data's.
        divided = ~np.isnan(rows[f"{line}_optimizer_ms"])
        if not divided.any():
            continue
        whole_ms = rows[f"{line}_step_ms"].astype(np.float64)
        each_ms = np.array([rows[f"{line}_{phase}_ms"] for phase in PHASES], dtype=np.float64)
        parts_ms = np.nan_to_num(each_ms).sum(axis=0)
        same = np.abs(parts_ms - whole_ms) <= SAME * np.abs(whole_ms) + _SAME_MS
        for at in np.flatnonzero(divided & ~same)[:1]:
            yield (
                f"step {rows['step'][at]:,} took {whole_ms[at]:.6g} ms on the {line}, and its "
                f"phases together {parts_ms[at]:.6g} ms"
            )
    if len(rows) > 2 and np.median(apart_ms - lasted_ms) > 0.5 * np.median(apart_ms):
        yield (
            f"they began {np.median(apart_ms):.6g} ms after one another and took "
            f"{np.median(lasted_ms):.6g} ms (medians): most of the time is in no step"
        )
    timed = series.timed()
    on_device = timed.column("step", "device")
    known = ~np.isnan(on_device)
    device_s, host_s = (
        float(times[known].sum()) / 1e3 for times in (on_device, timed.column("step", "host"))
    )
    if abs(device_s - host_s) > max(DEVICE_SHARE * host_s, DEVICE_S):
        yield (
            f"its {int(known.sum()):,} timed steps took {device_s:.4g} s on the device and "
            f"{host_s:.4g} s on the host"
        )

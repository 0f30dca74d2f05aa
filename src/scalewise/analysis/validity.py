"""Runs that are not what they claim to be: their figures get no verdict, no cost and no rank.

A speedup is arithmetic on two rates. Where ranks fed the same data, counted something else than
samples, shared a GPU or trained nothing, the rates are right and the speedup means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from scalewise.analysis.balance import ShardAudit
from scalewise.analysis.comparability import grouped
from scalewise.analysis.losses import divergence
from scalewise.analysis.model import CellRecords
from scalewise.records import PHASES, ImportedResult, MetricRow, RankSummary, StepSeries

Code = Literal[
    "shards_overlap",
    "sample_count",
    "shared_device",
    "loss_not_finite",
    "records_contradict",
    "untrained",
    "superlinear",
    "invalid_baseline",
    "per_replica_throughput",
    "inflated_throughput",
    "unsynchronised_timing",
]

UNTRAINED_UP_TO = 0.05
"""Share of steps without a loss up to which a run is still compared: a loop that leaves out a bad
batch now and then gains at most as much."""


@dataclass(frozen=True)
class Invalid:
    """Why a figure means nothing."""

    code: Code
    reason: str


DoubtCode = Literal[
    "learns_less", "fell_back", "contention", "disturbed", "superlinear", "untrained",
    "batch_size", "medians", "long_step", "unsteady", "mixed", "set_aside", "clocks",
    "replaced", "few_runs", "unequal_samples", "allocator", "outliers",
    "fp8", "missing", "power_cap", "unseen",
]  # fmt: skip
"""The gravest first: a terminal names the first doubt about a configuration."""


@dataclass(frozen=True)
class Doubt:
    """A reason not to take a figure as it stands: one for the terminal and for every file."""

    code: DoubtCode
    text: str
    brief: str = ""
    """In a few words, for the terminal; what has none is counted there, and told in files."""
    of: str = ""
    """A cell, or the label of a configuration; empty where ``text`` names its own."""
    about: tuple[str, ...] = ()
    """``config_id`` of those whose figure is doubted; empty: no single one's."""


def invalid_ranks(ranks: Sequence[RankSummary]) -> Iterator[Invalid]:
    """Every reason that the ranks of one run give themselves."""
    shared = _shared_device(ranks)
    if shared is not None:
        yield Invalid("shared_device", shared)
    turned = next((rank for rank in ranks if _counts_another_dimension(rank)), None)
    if turned is not None:
        yield Invalid("sample_count", f"{_count_words(turned)}: put the batch dimension first")
    worst = max(ranks, key=_untrained_share, default=None)
    if worst is not None and _untrained_share(worst) > UNTRAINED_UP_TO:
        yield Invalid("untrained", _untrained_words(worst))
    elif worst is not None and any(rank.parameters_changed is False for rank in ranks):
        words = f"no parameter changed in {_own_steps(worst):,} steps (learning rate 0, or frozen)"
        yield Invalid("untrained", words)


def count_doubt(ranks: Sequence[RankSummary]) -> str | None:
    """That a batch has another length than its loader says; None where it has not, or is invalid.

    A loader that leaves out bad samples, or joins two views of each, is no fault.
    """
    for rank in ranks:
        if _is_miscounted(rank) and not _counts_another_dimension(rank):
            return f"{_count_words(rank)}: samples/s are wrong where these are no samples"
    return None


def _is_miscounted(rank: RankSummary) -> bool:
    asked, shape = rank.loader_batch_size, rank.batch_shape
    return asked is not None and bool(shape) and shape is not None and shape[0] != asked


def _counts_another_dimension(rank: RankSummary) -> bool:
    """Whether another dimension than the one that is counted has the length of a batch."""
    return _is_miscounted(rank) and rank.loader_batch_size in (rank.batch_shape or ())[1:]


def _count_words(rank: RankSummary) -> str:
    assert rank.batch_shape is not None
    shape = " x ".join(map(str, rank.batch_shape))
    return (
        f"{rank.batch_shape[0]:,} samples of a batch were counted (its first tensor is {shape}), "
        f"but the loader's batch_size is {rank.loader_batch_size:,}"
    )


def untrained_steps(ranks: Sequence[RankSummary]) -> str | None:
    """``3 of 100 steps trained nothing``, of the worst rank; None where all trained."""
    worst = max(ranks, key=_untrained_share, default=None)
    return _untrained_words(worst) if worst is not None and worst.steps_without_loss else None


def _untrained_share(rank: RankSummary) -> float:
    """Share of its steps that gave no loss, 0 to 1."""
    return (rank.steps_without_loss or 0) / max(1, _own_steps(rank))


def _untrained_words(rank: RankSummary) -> str:
    """``3 of 100 steps trained nothing`` and why."""
    return (
        f"{rank.steps_without_loss:,} of {_own_steps(rank):,} steps trained nothing "
        "(training_step returned no loss in them): their time is not that of training"
    )


def _shared_device(ranks: Sequence[RankSummary]) -> str | None:
    for uuid, sharing in grouped(ranks, lambda rank: rank.device.uuid).items():
        if uuid is not None and len(sharing) > 1:
            each = " and ".join(map(str, sorted(rank.rank for rank in sharing)))
            return f"ranks {each} computed on one GPU ({uuid})"
    return None


def _own_steps(rank: RankSummary) -> int:
    """Of this try: those of an earlier one have no record of their losses."""
    return rank.steps_completed - (rank.resumed_at_step or 0)


_SHARD_FAULTS = ("every rank sees all data", "overlap", "not the same")


def invalid_run(
    cell: CellRecords,
    shards: ShardAudit | None,
    losses: Sequence[MetricRow],
    contradicted: str | None,
) -> Iterator[Invalid]:
    """Every reason why the figures of a finished cell mean nothing.

    Args:
        cell: with its result.
        shards: what its ranks fed, judged; None for one rank.
        losses: of the run, as :func:`~scalewise.analysis.losses.run_losses` has them.
        contradicted: how its step times contradict each other; None where they do not.
    """
    if shards is not None and shards.verdict in _SHARD_FAULTS:
        yield Invalid("shards_overlap", shards.explanation)
    if cell.result is None:
        return
    yield from invalid_ranks(cell.result.ranks)
    if contradicted is not None:
        yield Invalid("records_contradict", contradicted)
    diverged = divergence(losses)
    if diverged is not None:
        yield Invalid("loss_not_finite", diverged)


PUBLISHED_TOLERANCE: Final = 0.05
"""Relative difference up to which two figures count as the same: published ones are rounded."""


def check_published(result: ImportedResult) -> tuple[Invalid, ...]:
    """What the figures contradict; empty where they agree.

    A throughput that was computed from the wrong batch looks like bad (or wonderful) scaling. The
    step time that stands beside it gives it away: ``samples/s * seconds a step`` is the batch that
    was counted, and it must be the global one.
    """
    found = []
    counted, n = result.counted_batch, result.devices
    figures = (
        f"{result.samples_per_s:,.6g} samples/s at {result.step_time_ms:.3g} ms a step count "
        f"{counted:.4g} samples"
    )
    if n > 1 and _same(counted, result.global_batch_size / n):
        found.append(
            Invalid(
                "per_replica_throughput",
                f"{figures}: one replica's share of a global batch of {result.global_batch_size}; "
                f"the throughput of all is {n} times higher",
            )
        )
    elif n > 1 and _same(counted, result.global_batch_size * n):
        found.append(
            Invalid(
                "inflated_throughput",
                f"{figures}, {n} times the global batch: a global figure was multiplied by the "
                "devices once more",
            )
        )
    communication = result.communication_ms
    if communication is not None and communication > result.step_time_ms * (
        1 + PUBLISHED_TOLERANCE
    ):
        found.append(
            Invalid(
                "unsynchronised_timing",
                f"{communication:.3g} ms of communication stand inside a step of "
                f"{result.step_time_ms:.3g} ms: the timer enclosed other work, or did not wait",
            )
        )
    return tuple(found)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= PUBLISHED_TOLERANCE * b


SAME: Final = 1e-3
"""Share by which two records of one time may differ; times below 1 us do not count."""

_SAME_MS: Final = 1e-3
DEVICE_SHARE: Final = 0.15

DEVICE_S: Final = 0.5
"""A window on the device differs from the host's by less than the larger of these."""


def contradiction(series: Sequence[StepSeries]) -> str | None:
    """The first contradiction in the steps of a run's ranks, in words; None for none.

    A step ends before the next one begins, and its phases add up to it: in every step file kept in
    ``docs/results`` and ``tests/golden`` both hold to 1e-7. The device's timeline has a clock of
    its own, so only the sums of whole windows are compared with the host's.
    """
    for one in series:
        for found in _contradictions(one):
            return f"the step times of rank {one.rank} contradict each other: {found}"
    return None


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
        parts_ms = np.zeros(len(whole_ms))
        for phase in PHASES:
            own_ms = rows[f"{line}_{phase}_ms"].astype(np.float64)
            parts_ms += np.where(np.isnan(own_ms), 0.0, own_ms)
        same = np.abs(parts_ms - whole_ms) <= SAME * np.abs(whole_ms) + _SAME_MS
        for at in np.flatnonzero(divided & ~same)[:1]:
            yield (
                f"step {rows['step'][at]:,} took {whole_ms[at]:.6g} ms on the {line}, and its "
                f"phases together {parts_ms[at]:.6g} ms"
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

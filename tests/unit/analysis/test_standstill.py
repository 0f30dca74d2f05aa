"""A suspended cell's figures are those of the time in which it ran."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scalewise.analysis import standstill
from scalewise.analysis.standstill import standstills, time_aside
from scalewise.analysis.throughput import measure_throughput
from scalewise.records import (
    STEP_DTYPE,
    STOOD_STILL,
    RankSummary,
    Standstill,
    StepSeries,
)

STEP_MS = 100.0
STEPS = 10
SAMPLES = 16
STOP_MS = 20_000.0
RUNNING_PER_S = SAMPLES / STEP_MS * 1e3


def series(rank: int, long: int, *, stood_still: bool, offset_ns: int = 0) -> StepSeries:
    """Ten steps of which ``long`` takes 20 s more; each host's clock begins elsewhere."""
    rows = np.zeros(STEPS, STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        if name.endswith("_ms"):
            rows[name] = np.nan
    rows["step"] = np.arange(STEPS)
    rows["samples"] = SAMPLES
    rows["host_step_ms"] = STEP_MS
    rows["host_step_ms"][long] += STOP_MS
    ends_ns = np.cumsum(rows["host_step_ms"].astype(np.float64) * 1e6).astype(np.int64)
    rows["start_ns"] = np.concatenate([[0], ends_ns[:-1]]) - offset_ns
    if stood_still:
        rows["flags"][long] = STOOD_STILL
    return StepSeries(rank, rows, offset_ns)


def set_aside(series: Sequence[StepSeries]) -> tuple[StepSeries, ...]:
    """As the analysis does it, with ranks that have told of their flagged steps."""
    return standstill.set_aside(series, [summary(one) for one in series])


def summary(one: StepSeries) -> RankSummary:
    """Of a rank that stood still from 50 ms after the beginning of each flagged step to its end."""
    flagged = one.rows[(one.rows["flags"] & STOOD_STILL) != 0]
    begins, lengths = flagged["start_ns"], flagged["host_step_ms"].astype(np.int64) * 1_000_000
    spans = [
        Standstill(int(begin) + 50_000_000, int(begin + length))
        for begin, length in zip(begins, lengths, strict=True)
    ]
    told: Any = SimpleNamespace(rank=one.rank, standstills=tuple(spans))
    return told  # type: ignore[no-any-return]


def test_a_single_devices_stop_is_in_no_figure() -> None:
    (one,) = aside = set_aside([series(0, 4, stood_still=True)])
    measured = measure_throughput(aside, 1)
    assert measured.global_samples_per_s == pytest.approx(RUNNING_PER_S)
    assert measured.steps == STEPS - 1
    assert one.timed().rows["step"].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert time_aside(aside) == ((0.4, 20.5),)
    (told,) = standstills(aside)
    assert str(told) == (
        "it was suspended in step 4, which took 20.1 s and is left out of its figures "
        "(all of its processes stood still)"
    )


@pytest.mark.parametrize("offset_ns", [0, 7_000_000_000_000])
def test_ranks_that_were_in_successive_steps_lose_both(offset_ns: int) -> None:
    aside = set_aside(
        [series(0, 5, stood_still=True), series(1, 4, stood_still=True, offset_ns=offset_ns)]
    )
    measured = measure_throughput(aside, 2)
    assert measured.global_samples_per_s == pytest.approx(2 * RUNNING_PER_S)
    assert measured.steps == STEPS - 2
    assert all((one.timed().rows["step"] != 4).all() for one in aside)
    assert [told.rank for told in standstills(aside)] == [None]


def test_one_ranks_stop_stays_in_the_figures_and_is_named() -> None:
    ranks = [series(0, 4, stood_still=False), series(1, 4, stood_still=True)]
    aside = set_aside(ranks)
    assert measure_throughput(aside, 2) == measure_throughput(ranks, 2)
    assert time_aside(aside) == ()
    (told,) = standstills(aside)
    assert str(told) == (
        "rank 1 stood still in step 4, which took 20.1 s of its figures, while the others ran "
        "(stopped or frozen: look for who did that)"
    )


def test_ranks_that_stood_still_one_after_the_other_were_not_suspended() -> None:
    """In the same step, in which each waited for the other."""
    ranks = [series(rank, 4, stood_still=True) for rank in (0, 1)]
    start_ns = int(ranks[0].rows["start_ns"][4])
    half_ns = start_ns + int(STOP_MS * 0.5e6)
    spans = [(start_ns, half_ns), (half_ns, start_ns + int(STOP_MS * 1e6))]
    told: Any = [
        SimpleNamespace(rank=rank, standstills=(Standstill(*span),))
        for rank, span in enumerate(spans)
    ]
    aside = standstill.set_aside(ranks, told)
    assert time_aside(aside) == ()
    assert [told.rank for told in standstills(aside)] == [0, 1]


def test_the_records_themselves_are_not_changed() -> None:
    raw = series(0, 4, stood_still=True)
    set_aside([raw])
    assert raw.rows["flags"].tolist() == [0, 0, 0, 0, STOOD_STILL, 0, 0, 0, 0, 0]


def test_many_steps_are_counted() -> None:
    one = series(0, 4, stood_still=True)
    one.rows["flags"][:] = STOOD_STILL
    (told,) = standstills(set_aside([one]))
    assert str(told).startswith(
        "it was suspended in steps 0, 1, 2 and 7 more, which took 21.0 s and are left out"
    )


def test_a_suspension_between_two_steps_sets_none_aside_and_is_no_time_of_training() -> None:
    """While a validation ran; of two ranks, only what their standstills have in common."""
    ranks = [series(0, 9, stood_still=False), series(1, 9, stood_still=False, offset_ns=10**12)]
    for one in ranks:
        one.rows["start_ns"][5:] += 30_000_000_000
    stood_still = [(1_000_000_000, 21_000_000_000), (2_000_000_000, 22_000_000_000)]
    told: Any = [
        SimpleNamespace(
            rank=one.rank,
            standstills=(
                Standstill(since - one.epoch_offset_ns, until - one.epoch_offset_ns),
            ),
        )
        for one, (since, until) in zip(ranks, stood_still, strict=True)
    ]  # fmt: skip
    aside = standstill.set_aside(ranks, told)
    assert [len(one.timed()) for one in aside] == [STEPS, STEPS]
    assert time_aside(aside) == ()
    assert time_aside(aside, told) == ((2.0, 21.0),)

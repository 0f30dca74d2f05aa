"""Rates of copies between the host's memory and its devices, in a sweep's own report."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis.figures import MISSING
from scalewise.analysis.summary import Analysis
from scalewise.records.doctor import RankMeasurements
from scalewise.records.doctor_rates import CopyRate
from scalewise.report.doctor import rate_text
from scalewise.report.table import Table

_DIRECTIONS = {"h2d": "host to device", "d2h": "device to host"}
_COPIES = {
    "pinned": ("pinned", False),
    "pinned, all at once": ("pinned", True),
    "pageable": ("pageable", False),
}
"""Words to the host's memory and whether all devices copied at once."""


def copies_table(analysis: Analysis) -> Table:
    """GB/s of each device and direction; empty where no device has a memory of its own."""
    headers = ("device", "copy", *(f"{how} (GB/s)" for how in _COPIES))
    rows = []
    report = analysis.doctor
    for rank in report.ranks if report is not None else ():
        assert report is not None
        for direction, words in _DIRECTIONS.items():
            rates = [_rate(rank, f"{direction}_{memory}", together)
                     for memory, together in _COPIES.values()]  # fmt: skip
            if any(rates):
                name = f"{rank.rank}: {report.devices[rank.rank].device.name}"
                each = (MISSING if rate is None else rate_text(rate.gb_s) for rate in rates)
                rows.append((name, words, *each))
    return Table(headers, tuple(rows), frozenset({2, 3, 4})).without_empty_columns()


def unmeasured(analysis: Analysis) -> Iterator[str]:
    """Which rates between host and device there are not, and why."""
    report = analysis.doctor
    if report is None:
        return
    if all(facts.device.kind == "cpu" for facts in report.devices):
        # Who asked for training knows that: it is said where the examination is all there is.
        if not analysis.measured:
            yield (
                "no copies between host and device were timed: these devices are cores of the "
                "host and compute in its memory"
            )
        return
    for rank in report.ranks:
        lost = [f"{key}: {why}" for key, why in rank.missing.items() if _concerns_copies(key)]
        if lost:
            yield f"copies between host and rank {rank.rank} not measured: {'; '.join(lost)}"
        elif not any(rate.kind[:3] in _DIRECTIONS for rate in rank.copies):
            yield (
                f"copies between host and rank {rank.rank} not measured: its examination ended "
                f"at {rank.stage!r}"
            )


def _concerns_copies(key: str) -> bool:
    return key == "host staging" or key[:3] in _DIRECTIONS


def _rate(rank: RankMeasurements, kind: str, together: bool) -> CopyRate | None:
    found = (rate for rate in rank.copies if rate.kind == kind and rate.together is together)
    return next(found, None)

"""What the doctor said of the devices that a sweep ran on, in the sweep's own report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewise.analysis.figures import number
from scalewise.analysis.summary import Analysis
from scalewise.records.doctor_rates import CollectiveRate
from scalewise.report import host_copies
from scalewise.report.doctor import rate_text, size_text, spread_text
from scalewise.report.table import Table

SPREAD = (
    "Times are medians over repetitions; *spread* is from the fastest to the slowest of them, in "
    "percent of the median."
)
_GEMM = ("fp32", "tf32", "bf16", "fp16", "fp8")


def doctor_lines(analysis: Analysis) -> Iterator[str]:
    """Findings with their evidence and advice; one line if there is nothing to complain of."""
    report = analysis.doctor
    if report is None:
        return
    for finding in report.findings:
        text = finding.text.rstrip(".")
        yield f"{finding.severity}: {text} ({finding.evidence}). {finding.advice}"
    if not report.findings:
        yield f"no known fault was found on {len(report.devices)} devices"
    yield from (f"not examined: {what}: {why}" for what, why in report.missing.items())
    yield from host_copies.unmeasured(analysis)


def examined_tables(analysis: Analysis) -> Iterator[Table]:
    """Whatever was measured of the devices, alone and together, without empty tables."""
    tables = (
        ceilings_table(analysis),
        host_copies.copies_table(analysis),
        collectives_table(analysis),
    )
    yield from (table for table in tables if table.rows)


def ceilings_table(analysis: Analysis) -> Table:
    """Rates of every examined device: matrix products by number format, copies, launches."""
    report = analysis.doctor
    headers = (
        "device", *(f"{name} GEMM (TFLOP/s)" for name in _GEMM), "memory copy (GB/s)",
        "launch (us)",
    )  # fmt: skip
    rows = []
    for rank in report.ranks if report else ():
        best: dict[str, float] = {
            g.precision: g.tflops for g in sorted(rank.gemm, key=lambda g: g.tflops)
        }
        copies = [c.gb_s for c in rank.copies if c.kind in ("device", "host")]
        launches = [c.timing.median_us for c in rank.launch if c.kind == "stream"]
        name = report.devices[rank.rank].device.name if report else ""
        rows.append(
            (
                f"{rank.rank}: {name}",
                *(number(best.get(name)) for name in _GEMM),
                number(max(copies, default=None)),
                number(min(launches, default=None)),
            )
        )
    numeric = frozenset(range(1, len(headers)))
    return Table(headers, tuple(rows), numeric).without_empty_columns()


def collectives_table(analysis: Analysis) -> Table:
    """Time and bus bandwidth of every collective at the least, a middle and the largest size."""
    headers = ("collective", "ranks", "time (us)", "spread", "bus bandwidth (GB/s)")
    by_kind: dict[tuple[str, str], list[CollectiveRate]] = {}
    for rate in analysis.doctor.collectives if analysis.doctor else ():
        by_kind.setdefault((rate.backend, rate.collective), []).append(rate)
    rows = []
    for (backend, collective), rates in by_kind.items():
        for rate in _three_sizes(rates):
            name = f"{backend} {collective.replace('_', '-')}, {size_text(rate.bytes)}"
            rows.append(
                (
                    name if rate.correct else f"{name}: WRONG DATA",
                    str(rate.ranks),
                    f"{rate.timing.median_us:,.1f}",
                    spread_text(rate.timing),
                    rate_text(rate.bus_gb_s),
                )
            )
    return Table(headers, tuple(rows), frozenset({1, 2, 3, 4}))


def _three_sizes(rates: Sequence[CollectiveRate]) -> list[CollectiveRate]:
    ordered = sorted(rates, key=lambda rate: rate.bytes)
    places = dict.fromkeys((0, (len(ordered) - 1) // 2, len(ordered) - 1))
    return [ordered[place] for place in places]

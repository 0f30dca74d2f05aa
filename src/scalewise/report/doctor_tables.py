"""What the doctor measured and found: on a terminal, and in the report of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

from scalewise.analysis import Analysis, number
from scalewise.records import Backend, DoctorReport, RankMeasurements, Timing
from scalewise.report.sections import (
    NOTES,
    Column,
    Line,
    Section,
    Table,
    by_text,
    lines,
    section,
    table,
    words,
)

_BACKENDS: tuple[Backend, ...] = ("nccl", "gloo")


def doctor_sections(report: DoctorReport) -> list[Section]:
    """All that was measured, then what is missing, then the advice."""
    advice: list[str | Line] = []
    for one in report.findings:
        because = f"evidence: {one.evidence}", f"do: {one.advice}", f"wrong if: {one.refuted_by}"
        advice += [Line(one.text, verdict=one.severity), *because]
    collectives = (_collectives(report, backend) for backend in _BACKENDS)
    tables = _host(report), _devices(report), _pairs(report), *collectives
    return [
        section("doctor_tables", "", *tables, lines(NOTES["bandwidths"], "faint")),
        section("doctor_missing", "Not measured", lines(_missing(report), "plain")),
        section(
            "doctor_findings",
            "Advice",
            lines(advice or ["No known fault was found in what could be measured."], "plain"),
            lines([f"examined in {report.duration_s:.0f} s"], "faint"),
        ),
    ]


def _host(report: DoctorReport) -> Table:
    host = report.host
    limit = _mib(host.memory_limit_mib) if host.memory_limit_mib else "none"
    memory = f"{_mib(host.memory_available_mib)} free of {_mib(host.memory_total_mib)}"
    nodes = "; ".join(f"{n.node}: {len(n.cores)} cores" for n in host.numa_nodes)
    quota = f", cgroup quota {host.cpu_quota:g}" if host.cpu_quota is not None else ""
    pressure = host.cpu_pressure_percent
    versions = sorted({item for rank in report.ranks for item in rank.versions.items()})
    rows = (
        ("processor", host.processor),
        ("usable cores", f"{len(host.usable_cores)}{quota}"),
        ("NUMA nodes", nodes or None),
        ("CPU governor", host.cpu_governor),
        ("CPU pressure", None if pressure is None else f"{pressure:g} % of the last 10 s"),
        ("memory", f"{memory}, cgroup limit {limit}"),
        ("/dev/shm", f"{_mib(host.shm_free_mib)} free of {_mib(host.shm_total_mib)}"),
        ("driver", report.driver),
        ("software", ", ".join(f"{k} {v}" for k, v in versions) or None),
    )
    return table(
        "host", (words("", "", itemgetter(0)), words("", "", itemgetter(1))), rows, title="Host"
    )


def _devices(report: DoctorReport) -> Table:
    """One column a rank, so that equal devices can be compared along a row."""
    columns = [words("measured", "", itemgetter(0))]
    for rank, facts in enumerate(report.devices):
        index = facts.device.index
        where = "" if index is None else f" (GPU {index})"
        heading = f"rank {rank}{where}: {facts.device.name}"
        columns.append(Column(f"rank{rank}", heading, "", itemgetter(rank + 1)))
    rows: dict[str, list[str | None]] = {}
    for measured in report.ranks:
        for label, text in _device_cells(measured):
            rows.setdefault(label, [label, *[None] * len(report.devices)])[measured.rank + 1] = text
    return table("devices", columns, rows.values(), title="Devices")


def _device_cells(rank: RankMeasurements) -> Iterator[tuple[str, str]]:
    for gemm in rank.gemm:
        label = f"product {gemm.precision}, TFLOP/s"
        yield label, f"{number(gemm.tflops)} (spread {_spread(gemm.timing)}, n={gemm.size})"
    for copy in rank.copies:
        kind = f"{copy.kind.replace('_', ' ')}, {'all at once' if copy.together else 'alone'}"
        own = "copy in memory, read+write" if copy.kind in ("device", "host") else kind
        yield f"{own}, GB/s", f"{rate_text(copy.gb_s)} (spread {_spread(copy.timing)})"
    for cost in rank.launch:
        label = f"launch: {cost.kind.replace('_', ' ')}, us"
        yield label, f"{cost.timing.median_us:.3g} (spread {_spread(cost.timing)})"
    if link := rank.pcie:
        each = link.generation, link.max_generation, link.lanes, link.max_lanes
        yield "PCIe under load", "gen {} of {}, x{} of x{}".format(*(n or "?" for n in each))
    if rank.soak is not None and rank.soak.windows:
        windows = rank.soak.windows
        rates = [w.tflops for w in windows]
        said = f"{rates[0]:.3g} first, {rates[-1]:.3g} last, {min(rates):.3g} least"
        yield f"soak {windows[-1].at_s:.0f} s {rank.soak.precision}, TFLOP/s", said
        if hot := [w.temperature_c for w in windows if w.temperature_c is not None]:
            yield "soak: hottest, C", f"{max(hot):.0f}"
        if clocks := [w.sm_clock_mhz for w in windows if w.sm_clock_mhz is not None]:
            yield "soak: SM clock, MHz", f"{min(clocks):.0f} to {max(clocks):.0f}"
        if limits := [w.throttle_reasons for w in windows if w.throttle_reasons is not None]:
            yield "soak: clock limits", ", ".join(sorted(set().union(*limits))) or "none"


_DATA = {True: "right", False: "WRONG"}


def _pairs(report: DoctorReport) -> Table:
    links = {(link.first, link.second): link.kind for link in report.links}
    columns = (
        words("ranks", "ranks", lambda pair: f"{pair.first}-{pair.second}"),
        words("link", "link", lambda pair: links.get((pair.first, pair.second))),
        words("how", "how", lambda pair: "direct" if pair.direct else "through the host"),
        Column("size", "size", "", lambda pair: pair.bytes, size_text),
        Column("there", "there", "", lambda pair: pair.forward_gb_s, rate_text),
        Column("back", "back", "", lambda pair: pair.backward_gb_s, rate_text),
        Column("both", "both", "", lambda pair: pair.both_gb_s, rate_text),
        Column("spread", "spread", "", lambda pair: pair.forward, _spread),
        Column("data", "data", "", lambda pair: pair.correct, _DATA.__getitem__),
    )
    return table("pairs", columns, report.pairs, title="Pairs, point to point (GB/s)")


def _collectives(report: DoctorReport, backend: Backend) -> Table:
    rates = [rate for rate in report.collectives if rate.backend == backend]
    ranks = max((rate.ranks for rate in rates), default=0)
    columns = (
        words("collective", "collective", lambda rate: rate.collective.replace("_", "-")),
        Column("size", "size", "", lambda rate: rate.bytes, size_text),
        Column("time_us", "time us", "", lambda rate: rate.timing.median_us, "{:,.1f}".format),
        Column("spread", "spread", "", lambda rate: rate.timing, _spread),
        Column("algorithm", "alg. GB/s", "", lambda rate: rate.algorithm_gb_s, rate_text),
        Column("bus", "bus GB/s", "", lambda rate: rate.bus_gb_s, rate_text),
        Column("data", "data", "", lambda rate: rate.correct, _DATA.__getitem__),
    )
    title = f"Collectives, {backend}, {ranks} ranks"
    return table(f"collectives_{backend}", columns, rates, title=title)


def _missing(report: DoctorReport) -> list[str]:
    of_all = {**report.missing, **report.host.missing}
    owners = [
        *((f"rank {n}", facts.missing) for n, facts in enumerate(report.devices)),
        *((f"rank {rank.rank}", rank.missing) for rank in report.ranks),
    ]
    found = ((rank, f"{key}: {why}") for rank, missing in owners for key, why in missing.items())
    return [*(f"{key}: {why}" for key, why in of_all.items()), *by_text(found, "rank")]


def examined(analysis: Analysis) -> Section:
    """What the doctor said of the devices that a sweep ran on; its tables are on the page."""
    report = analysis.doctor
    if report is None:
        return section("doctor", "")
    each = (_collectives(report, backend) for backend in _BACKENDS)
    return section(
        "doctor",
        "What the doctor found",
        lines(_doctor_lines(report)),
        lines(_missing(report), where="page"),
        *(replace(one, where="page") for one in (_devices(report), _pairs(report), *each)),
        lines(NOTES["bandwidths"], "faint", "page"),
    )


def _doctor_lines(report: DoctorReport) -> Iterator[str]:
    """Findings with their evidence and advice; one line if there is nothing to complain of."""
    for finding in report.findings:
        text = finding.text.rstrip(".")
        yield f"{finding.severity}: {text} ({finding.evidence}). {finding.advice}"
    if not report.findings:
        yield f"no known fault was found on {len(report.devices)} devices"
    yield from (f"not examined: {what}: {why}" for what, why in report.missing.items())


def rate_text(gb_s: float) -> str:
    """Three digits without an exponent."""
    if gb_s < 0.01:
        return "<0.01"
    return f"{gb_s:.{2 if gb_s < 10 else 1 if gb_s < 100 else 0}f}"


def _spread(timing: Timing) -> str:
    return f"{timing.spread_percent:.0f}%"


def size_text(byte_count: int) -> str:
    """Bytes in the largest binary unit of which they are one."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if byte_count >= unit:
            return f"{byte_count / unit:.4g} {name}"
    return f"{byte_count} B"


def _mib(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value / 1024:.1f} GiB" if value >= 1024 else f"{value:.0f} MiB"

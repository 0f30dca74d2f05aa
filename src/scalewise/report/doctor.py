"""What ``scalewise doctor`` found, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewise.records.doctor import DoctorReport, RankMeasurements
from scalewise.records.doctor_rates import Backend, Timing

_COLOURS = {"fault": "red", "warning": "yellow", "note": "cyan"}
_UNKNOWN = "-"


def show(report: DoctorReport, console: Console) -> None:
    """Tables of all that was measured, then what is missing, then the advice."""
    collectives = (_collectives(report, "nccl"), _collectives(report, "gloo"))
    for table in (_host(report), _devices(report), _pairs(report), *collectives):
        if table.row_count:
            console.print(table)
    console.print(
        "[dim]algorithm bandwidth: bytes / time. Bus bandwidth: times 2(n-1)/n for all-reduce, "
        "(n-1)/n for all-gather and reduce-scatter, 1 for broadcast.\n"
        "Spread: (slowest - fastest repetition) / median. GB/s: 10^9 bytes a second.[/dim]"
    )
    _missing(report, console)
    _findings(report, console)
    console.print(f"[dim]examined in {report.duration_s:.0f} s[/dim]")


def _host(report: DoctorReport) -> Table:
    host = report.host
    table = _plain_table("Host", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    nodes = "; ".join(f"{n.node}: {len(n.cores)} cores" for n in host.numa_nodes)
    quota = f", cgroup quota {host.cpu_quota:g}" if host.cpu_quota is not None else ""
    rows = (
        ("processor", host.processor),
        ("usable cores", f"{len(host.usable_cores)}{quota}"),
        ("NUMA nodes", nodes or None),
        ("CPU governor", host.cpu_governor),
        ("CPU pressure", _with_unit(host.cpu_pressure_percent, "% of the last 10 s")),
        (
            "memory",
            f"{_mib(host.memory_available_mib)} free of {_mib(host.memory_total_mib)}, "
            f"cgroup limit {_mib(host.memory_limit_mib) if host.memory_limit_mib else 'none'}",
        ),
        ("/dev/shm", f"{_mib(host.shm_free_mib)} free of {_mib(host.shm_total_mib)}"),
        ("driver", report.driver),
        ("software", ", ".join(f"{k} {v}" for k, v in _versions(report))),
    )
    for name, value in rows:
        table.add_row(name, escape(value or _UNKNOWN))
    return table


def _devices(report: DoctorReport) -> Table:
    """One column a rank, so that twins can be compared along a row."""
    table = _plain_table("Devices")
    table.add_column("")
    for number, facts in enumerate(report.devices):
        index = facts.device.index
        where = "" if index is None else f" (GPU {index})"
        table.add_column(f"rank {number}{where}\n{escape(facts.device.name)}", justify="right")
    rows: dict[str, dict[int, str]] = {}
    for rank in report.ranks:
        for label, text in _device_cells(rank):
            rows.setdefault(label, {})[rank.rank] = text
    for label, cells in rows.items():
        table.add_row(label, *(cells.get(r, _UNKNOWN) for r in range(len(report.devices))))
    return table


def _device_cells(rank: RankMeasurements) -> Iterable[tuple[str, str]]:
    for gemm in rank.gemm:
        label = f"product {gemm.precision}, TFLOP/s"
        yield label, f"{gemm.tflops:.3g} (spread {spread_text(gemm.timing)}, n={gemm.size})"
    for copy in rank.copies:
        words = {"device": "copy in memory, read+write", "host": "copy in memory, read+write"}
        how = "" if copy.kind in words else (", all at once" if copy.together else ", alone")
        label = f"{words.get(copy.kind, copy.kind.replace('_', ' '))}{how}, GB/s"
        yield label, f"{rate_text(copy.gb_s)} (spread {spread_text(copy.timing)})"
    for cost in rank.launch:
        label = f"launch: {cost.kind.replace('_', ' ')}, us"
        yield label, f"{cost.timing.median_us:.3g} (spread {spread_text(cost.timing)})"
    if rank.pcie is not None:
        link = rank.pcie
        yield (
            "PCIe under load",
            f"gen {link.generation or '?'} of {link.max_generation or '?'}, "
            f"x{link.lanes or '?'} of x{link.max_lanes or '?'}",
        )
    if rank.soak is not None and rank.soak.windows:
        windows = rank.soak.windows
        rates = [w.tflops for w in windows]
        yield (
            f"soak {windows[-1].at_s:.0f} s {rank.soak.precision}, TFLOP/s",
            f"{rates[0]:.3g} first, {rates[-1]:.3g} last, {min(rates):.3g} least",
        )
        hot = [w.temperature_c for w in windows if w.temperature_c is not None]
        clocks = [w.sm_clock_mhz for w in windows if w.sm_clock_mhz is not None]
        limits = sorted({r for w in windows for r in w.throttle_reasons or ()})
        if hot:
            yield "soak: hottest, C", str(max(hot))
        if clocks:
            yield "soak: SM clock, MHz", f"{min(clocks)} to {max(clocks)}"
        if any(w.throttle_reasons is not None for w in windows):
            yield "soak: clock limits", ", ".join(limits) or "none"


def _pairs(report: DoctorReport) -> Table:
    table = _plain_table("Pairs, point to point (GB/s)")
    for name in ("ranks", "link", "how"):
        table.add_column(name)
    for name in ("size", "there", "back", "both", "spread", "latency us", "data"):
        table.add_column(name, justify="right")
    links = {(link.first, link.second): link for link in report.links}
    for pair in report.pairs:
        link = links.get((pair.first, pair.second))
        how: str = pair.transport
        if pair.direct is not None:
            how = "direct" if pair.direct else "through the host"
        table.add_row(
            f"{pair.first}-{pair.second}",
            (link.kind if link else None) or _UNKNOWN,
            how,
            size_text(pair.bytes),
            rate_text(pair.forward_gb_s),
            rate_text(pair.backward_gb_s),
            rate_text(pair.both_gb_s),
            spread_text(pair.forward),
            _UNKNOWN if pair.latency_us is None else f"{pair.latency_us:.1f}",
            _right(pair.correct),
        )
    return table


def _collectives(report: DoctorReport, backend: Backend) -> Table:
    rates = [rate for rate in report.collectives if rate.backend == backend]
    ranks = max((rate.ranks for rate in rates), default=0)
    table = _plain_table(f"Collectives, {backend}, {ranks} ranks")
    table.add_column("collective")
    for name in ("size", "time us", "spread", "alg. GB/s", "bus GB/s", "data"):
        table.add_column(name, justify="right")
    last = ""
    for rate in rates:
        name = rate.collective.replace("_", "-")
        table.add_row(
            "" if name == last else name,
            size_text(rate.bytes),
            f"{rate.timing.median_us:.1f}",
            spread_text(rate.timing),
            rate_text(rate.algorithm_gb_s),
            rate_text(rate.bus_gb_s),
            _right(rate.correct),
        )
        last = name
    return table


def _missing(report: DoctorReport, console: Console) -> None:
    reasons: dict[str, list[str]] = {}
    for owner, missing in _all_missing(report):
        for key, reason in missing.items():
            reasons.setdefault(f"{key}: {reason}", []).append(owner)
    if reasons:
        console.print("[bold]Not measured[/bold]")
    for text, owners in reasons.items():
        named = [owner for owner in owners if owner]
        where = f" ({', '.join(named)})" if named else ""
        console.print(f"  {escape(text)}{escape(where)}")


def _all_missing(report: DoctorReport) -> Sequence[tuple[str, dict[str, str]]]:
    return [
        ("", dict(report.missing)),
        ("", dict(report.host.missing)),
        *((f"rank {n}", dict(facts.missing)) for n, facts in enumerate(report.devices)),
        *((f"rank {rank.rank}", dict(rank.missing)) for rank in report.ranks),
    ]


def _findings(report: DoctorReport, console: Console) -> None:
    if not report.findings:
        console.print("[green]No known fault was found in what could be measured.[/green]")
        return
    console.print("[bold]Advice[/bold]")
    for finding in report.findings:
        colour = _COLOURS[finding.severity]
        console.print(f"[{colour}]{finding.severity}[/{colour}] {escape(finding.text)}")
        console.print(f"  evidence: {escape(finding.evidence)}")
        console.print(f"  do: {escape(finding.advice)}")
        console.print(f"  wrong if: {escape(finding.refuted_by)}")


def _versions(report: DoctorReport) -> list[tuple[str, str]]:
    return sorted({item for rank in report.ranks for item in rank.versions.items()})


def _plain_table(title: str, *, show_header: bool = True) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_header=show_header)


def rate_text(gb_s: float) -> str:
    """Three digits without an exponent."""
    if gb_s < 0.01:
        return "<0.01"
    return f"{gb_s:.{2 if gb_s < 10 else 1 if gb_s < 100 else 0}f}"


def spread_text(timing: Timing) -> str:
    return f"{timing.spread_percent:.0f}%"


def _right(correct: bool) -> str:
    return "right" if correct else "[red]WRONG[/red]"


def size_text(byte_count: int) -> str:
    """Bytes in the largest binary unit that keeps them whole."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if byte_count >= unit and byte_count % unit == 0:
            return f"{byte_count // unit} {name}"
    return f"{byte_count} B"


def _mib(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value / 1024:.1f} GiB" if value >= 1024 else f"{value:.0f} MiB"


def _with_unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"

"""Findings of an examination: pure functions from the report, worded by findings.toml. Torch-free.

Each finding looks at one known fault and needs its measurement: what is not known is not accused.
The thresholds are wide, so that a healthy host gets no finding.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from scalewise.host import plural
from scalewise.records import (
    SEVERITIES,
    CopyRate,
    DeviceFacts,
    DoctorReport,
    Finding,
    PairLink,
    PcieLink,
    RankMeasurements,
    Soak,
    Timing,
    build,
    words_beside,
)

_FAR_BELOW = 0.4
"""Share of a link's rate under which it is not merely protocol overhead."""

_SLOW_DEVICE = 0.92
"""GPUs of one kind differ by a few percent on one host; this far below its peers is a finding."""

_STEADY = 0.95
"""The endurance run's last third over its first."""

_THERMAL = ("thermal", "hardware slowdown", "power brake")
_LEAST_WINDOWS = 6  # Of an endurance run, to be judged: two in each third.
_SLOW_LAUNCH_US = 20.0  # Beyond it the host is late with the kernels of small models.
_ENOUGH_SHM_MIB = 1024.0  # Size of /dev/shm, through which workers of a loader hand over batches.
_FREE_SHM_MIB = 256.0  # Of it, at least.
_BUSY_PERCENT = 10.0  # Of the last 10 s, in which some process waited for a core.
_ENOUGH_MEMORY_MIB = {"cuda": 16_384.0, "cpu": 2_048.0}  # Of the host, for each rank.
_LARGE_MESSAGE_BYTES = 2**27  # From which an all-reduce tells the link's rate.

_NVLINK_GB_S = 25.0
"""One NVLink, one direction: NVLink 2 to 4 alike (NVIDIA's V100, A100 and H100 data sheets give
300 GB/s over 6, 600 over 12 and 900 over 18 links, both directions together). NVLink 5 has twice
that, so that it is judged mildly here."""

_PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""One lane, one direction, after line coding (PCI-SIG's figures)."""


_Found = tuple[str, Mapping[str, Any]]
"""A code of ``findings.toml``, and the figures that its words name."""


@cache
def known_findings() -> Mapping[str, Finding]:
    """Every finding by its code, the gravest first; text and evidence wait for their figures."""
    words = words_beside(__file__, dict[str, Any], "findings.toml")
    known = [build(Finding, {"code": code, **said}) for code, said in words.items()]
    known.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return {finding.code: finding for finding in known}


def advise(report: DoctorReport) -> list[Finding]:
    """All findings, the gravest first."""
    found = [*_wrong_data(report), *_links(report), *_host(report)]
    for number, facts in enumerate(report.devices):
        found += _device(rank_names(report, number), facts)
        found += _slow_device(report, number)
    for rank in report.ranks:
        kind = report.devices[rank.rank].device.kind
        found += _measured(rank_names(report, rank.rank), rank, kind)
    found.sort(key=lambda one: [*known_findings()].index(one[0]))
    each = ((known_findings()[code], figures) for code, figures in found)
    return [replace(one, text=one.text.format(**f), evidence=one.evidence.format(**f))
            for one, f in each]  # fmt: skip


def _wrong_data(report: DoctorReport) -> Iterator[_Found]:
    """Something arrived other than it was sent."""
    wrong = [f"{r.backend} {r.collective} of {r.bytes} bytes"
             for r in report.collectives if not r.correct]  # fmt: skip
    wrong += [f"{p.transport} between ranks {p.first} and {p.second}"
              for p in report.pairs if not p.correct]  # fmt: skip
    wrong += [f"{c.kind} on rank {r.rank}" for r in report.ranks for c in r.copies if not c.correct]
    if wrong:
        yield "wrong_data", {"wrong": "; ".join(wrong)}


def _links(report: DoctorReport) -> Iterator[_Found]:
    """GPUs that do not use the path between them."""
    rates = {(pair.first, pair.second): pair for pair in report.pairs}
    reduced = [r for r in report.collectives if (r.backend, r.collective) == ("nccl", "all_reduce")]
    switched_off = report.host.environment.get("NCCL_P2P_DISABLE") == "1"
    direct = [link for link in report.links if has_direct_path(link.kind)]
    if switched_off and direct:
        best = max(reduced, key=lambda r: r.bytes, default=None)
        rate = f"; all-reduce of {best.bytes} bytes: {best.bus_gb_s:.1f} GB/s" if best else ""
        yield "p2p_disabled_by_environment", {"link": direct[0], "rate": rate}
    for link in direct:
        pair = rates.get((link.first, link.second))
        figures = {"names": rank_names(report, link.first, link.second), "link": link, "pair": pair}
        refused = pair is not None and pair.direct is False
        if refused or link.peer_access not in (None, "ok", "unknown"):
            cuda = "not asked" if pair is None else "no" if refused else "yes"
            rate = f", {pair.forward_gb_s:.1f} GB/s" if pair else ""
            driver = link.peer_access or "does not tell"
            yield "p2p_unavailable", {**figures, "driver": driver, "cuda": cuda + rate}
        expected = expected_gb_s(report, link)
        if pair is None or refused or expected is None:
            continue
        slower = min(pair.forward_gb_s, pair.backward_gb_s)
        if slower < _FAR_BELOW * expected:
            yield "p2p_below_link", {**figures, "slower": slower, "expected": expected}
    large = [r for r in reduced if r.bytes >= _LARGE_MESSAGE_BYTES]
    all_nvlink = all((link.kind or "").startswith("NV") for link in report.links)
    if report.links and all_nvlink and not switched_off and rates and large:
        copy = min(min(p.forward_gb_s, p.backward_gb_s) for p in rates.values())
        best = max(large, key=lambda r: r.bus_gb_s)
        if best.bus_gb_s < _FAR_BELOW * copy:
            yield "nccl_below_link", {"rate": best, "copy": copy}


def _host(report: DoctorReport) -> Iterator[_Found]:
    host, count = report.host, len(report.devices)
    kind = report.devices[0].device.kind if report.devices else "cpu"
    shm, free = host.shm_total_mib, host.shm_free_mib
    if shm is not None and free is not None and (shm < _ENOUGH_SHM_MIB or free < _FREE_SHM_MIB):
        yield "small_shm", {"total": shm, "free": free, "count": count}
    affinity, quota = len(host.usable_cores), host.cpu_quota
    cores = affinity if quota is None else min(affinity, max(1, int(quota)))
    if cores < (2 * count if kind == "cuda" else count):
        usable = f"{cores} usable {plural(cores, 'core')}"
        figures = {"cores": usable, "count": count, "affinity": affinity}
        yield "few_cores", {**figures, "quota": quota or "none"}
    limits = (host.memory_limit_mib, "cgroup limit"), (host.memory_total_mib, "the machine")
    memory, source = min(((m, s) for m, s in limits if m is not None), default=(None, ""))
    if memory is not None and count and memory / count < _ENOUGH_MEMORY_MIB[kind]:
        figures = {"share": memory / count, "memory": memory, "count": count}
        yield "memory_cap", {**figures, "source": source}
    if (pressure := host.cpu_pressure_percent or 0.0) > _BUSY_PERCENT:
        yield "busy_host", {"pressure": pressure}
    if host.cpu_governor in ("powersave", "conservative"):
        yield "cpu_governor", {"governor": host.cpu_governor}


def _device(name: str, facts: DeviceFacts) -> Iterator[_Found]:
    if facts.ecc_uncorrected:
        remapped = "?" if facts.remapped_rows is None else facts.remapped_rows
        yield "ecc_errors", {"name": name, "errors": facts.ecc_uncorrected, "remapped": remapped}
    near, own = set(facts.near_cores), set(facts.device.cores)
    if near and own and not near & own:
        yield "far_cores", {"name": name, "near": len(near)}
    if facts.other_processes:
        yield "busy_device", {"name": name, "processes": facts.other_processes}


def _measured(name: str, rank: RankMeasurements, device_kind: str) -> Iterator[_Found]:
    if rank.pcie is not None:
        yield from _pcie(name, rank.pcie, [c for c in rank.copies if c.kind.endswith("pinned")])
    if rank.soak is not None and len(rank.soak.windows) >= _LEAST_WINDOWS:
        yield from _steadiness(name, rank.soak)
    timing = next((c.timing for c in rank.launch if c.kind == "enqueue"), None)
    if device_kind == "cuda" and timing is not None and timing.median_us > _SLOW_LAUNCH_US:
        repetitions = len(timing.samples_us)
        yield "slow_launches", {"name": name, "timing": timing, "repetitions": repetitions}


def _pcie(name: str, link: PcieLink, pinned: Sequence[CopyRate]) -> Iterator[_Found]:
    of_each = (
        ("generation {} of {}", link.generation, link.max_generation),
        ("{} lanes of {}", link.lanes, link.max_lanes),
    )
    parts = [text.format(has, can) for text, has, can in of_each if has and can and has < can]
    if parts:
        rates = "".join(f"; {c.kind} {c.gb_s:.1f} GB/s" for c in pinned[:2])
        yield "pcie_below_maximum", {"name": name, "parts": " and ".join(parts), "rates": rates}
    expected = pcie_gb_s(link.generation, link.lanes)
    slow = min((c for c in pinned if not c.together), key=lambda c: c.gb_s, default=None)
    if expected is not None and slow is not None and slow.gb_s < _FAR_BELOW * expected:
        yield "staging_below_link", {"name": name, "copy": slow, "expected": expected}


def _steadiness(name: str, soak: Soak) -> Iterator[_Found]:
    rates = [window.tflops for window in soak.windows]
    third = len(rates) // 3
    ratio = statistics.median(rates[-third:]) / statistics.median(rates[:third])
    reasons = sorted({r for w in soak.windows for r in w.throttle_reasons or ()})
    if ratio < _STEADY or any(word in reason.lower() for reason in reasons for word in _THERMAL):
        hottest = max((w.temperature_c for w in soak.windows if w.temperature_c), default=None)
        figures = {"percent": 100 * ratio, "windows": len(soak.windows),
                   "hottest": "?" if hottest is None else f"{hottest:.0f}",
                   "limits": ", ".join(reasons) or "none read"}  # fmt: skip
        yield "not_steady", {"name": name, **figures}


def _slow_device(report: DoctorReport, number: int) -> Iterator[_Found]:
    """A device behind others of its kind, in figures enough to rule out a bad moment.

    On a GPU these are the copy or half of the products. Shares of a CPU disturb one another, so
    that there all figures must agree.
    """
    device = report.devices[number].device
    own = _figures(report, number)
    kin = [n for n, facts in enumerate(report.devices) if facts.device.name == device.name]
    peers = [_figures(report, other) for other in kin if other != number]
    compared: dict[str, str] = {}
    for key, timing in own.items():
        compared[key[0]] = _behind(timing, [peer[key] for peer in peers if key in peer])
    behind = {name: text for name, text in compared.items() if text}
    if device.kind == "cpu":
        enough = len(behind) == len(own)
    else:
        products = [bool(text) for name, text in compared.items() if name.startswith("gemm")]
        enough = sum(products) < len(behind) or 2 * sum(products) >= len(products)
    if behind and enough:
        each = "; ".join(f"{name}: {text}" for name, text in behind.items())
        figures = {"name": rank_names(report, number), "figures": ", ".join(behind), "behind": each}
        yield "slow_device", figures


def _figures(report: DoctorReport, number: int) -> dict[tuple[str, int], Timing]:
    """The products and the copy in memory that a rank measured, by name and size."""
    own = [rank for rank in report.ranks if rank.rank == number]
    found = {(f"gemm {g.precision}", g.size): g.timing for rank in own for g in rank.gemm}
    copies = (c for rank in own for c in rank.copies if c.kind in ("device", "host"))
    found |= {(f"{c.kind} copy", c.bytes): c.timing for c in copies}
    return dict(sorted(found.items()))


def _behind(own: Timing, others: Sequence[Timing]) -> str:
    """How far a device is behind the median of the others; "" if no further than they scatter."""
    if not others:
        return ""
    others_us = statistics.median(t.median_us for t in others)
    apart = min(own.samples_us) > statistics.median(max(t.samples_us) for t in others)
    if others_us / own.median_us >= _SLOW_DEVICE or not apart:
        return ""
    slower = 100 * (1 - others_us / own.median_us)
    return f"{slower:.0f} % slower ({own.median_us:.1f} us against {others_us:.1f} us)"


def has_direct_path(kind: str | None) -> bool:
    """Whether GPUs joined so can be expected to reach each other without the host's processor."""
    return kind is not None and (kind.startswith("NV") or kind in ("PIX", "PXB", "INT"))


def pcie_gb_s(generation: int | None, lanes: int | None) -> float | None:
    """10^9 bytes a second one way; None where generation or width is not known."""
    lane = _PCIE_LANE_GB_S.get(generation or 0)
    return lane * lanes if lane and lanes else None


def expected_gb_s(report: DoctorReport, link: PairLink) -> float | None:
    """10^9 bytes a second that a link carries one way; None where none are expected."""
    if link.kind is None or not has_direct_path(link.kind):
        return None
    if link.kind.startswith("NV"):
        count = link.kind.removeprefix("NV")
        return _NVLINK_GB_S * int(count) if count.isdecimal() else None
    joined = (link.first, link.second)
    ends = [rank.pcie for rank in report.ranks if rank.rank in joined and rank.pcie]
    rates = [rate for end in ends if (rate := pcie_gb_s(end.generation, end.lanes)) is not None]
    return min(rates, default=None) if len(ends) == 2 else None


def rank_names(report: DoctorReport, *ranks: int) -> str:
    """``GPU 0 and GPU 3`` (NVML's numbers), or ``rank 1`` on a CPU host."""
    each = ((rank, report.devices[rank].device.index) for rank in ranks)
    return " and ".join(f"rank {rank}" if i is None else f"GPU {i}" for rank, i in each)

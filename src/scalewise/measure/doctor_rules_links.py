"""Findings about what the ranks send one another."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.measure.doctor_links import (
    expected_gb_s,
    has_direct_path,
    measured_pairs,
    rank_names,
)
from scalewise.records.doctor import DoctorReport, Finding

FAR_BELOW = 0.4
"""Share of a link's rate under which it is not merely protocol overhead."""


def wrong_data(report: DoctorReport) -> Iterator[Finding]:
    """Something arrived other than it was sent."""
    wrong = [
        f"{r.backend} {r.collective} of {r.bytes} bytes"
        for r in report.collectives
        if not r.correct
    ]
    wrong += [
        f"{p.transport} between ranks {p.first} and {p.second}"
        for p in report.pairs
        if not p.correct
    ]
    wrong += [
        f"{copy.kind} on rank {rank.rank}"
        for rank in report.ranks
        for copy in rank.copies
        if not copy.correct
    ]
    if wrong:
        yield Finding(
            "wrong_data",
            "fault",
            "Data arrives corrupted: nothing trained on these devices can be trusted.",
            "; ".join(wrong),
            "Switch the IOMMU or PCIe ACS off for these GPUs (or pass them through properly to "
            "the virtual machine); until then set NCCL_P2P_DISABLE=1 and examine again.",
            "the same operations come back right in a second examination",
        )


def peer_to_peer_switched_off(report: DoctorReport) -> Iterator[Finding]:
    """NCCL is told to go through host memory although the GPUs have a path of their own."""
    value = report.host.environment.get("NCCL_P2P_DISABLE")
    direct = [link for link in report.links if has_direct_path(link.kind)]
    if value != "1" or not direct:
        return
    best = max(
        (r for r in report.collectives if r.backend == "nccl" and r.collective == "all_reduce"),
        key=lambda r: r.bytes,
        default=None,
    )
    rate = f"; all-reduce of {best.bytes} bytes: {best.bus_gb_s:.1f} GB/s" if best else ""
    yield Finding(
        "p2p_disabled_by_environment",
        "warning",
        "NCCL_P2P_DISABLE=1 sends everything through host memory, and these GPUs could talk "
        "directly.",
        f"{direct[0].kind} between ranks {direct[0].first} and {direct[0].second}{rate}",
        "Remove NCCL_P2P_DISABLE from the environment and examine again.",
        "the bus bandwidth is the same without the variable",
    )


def peer_to_peer_refused(report: DoctorReport) -> Iterator[Finding]:
    """GPUs with NVLink or a common PCIe switch that may not read each other's memory."""
    rates = measured_pairs(report)
    for link in report.links:
        rate = rates.get((link.first, link.second))
        refused = link.peer_access not in (None, "ok", "unknown")
        if not has_direct_path(link.kind) or not (refused or (rate and rate.direct is False)):
            continue
        gb_s = f", {rate.forward_gb_s:.1f} GB/s" if rate else ""
        yield Finding(
            "p2p_unavailable",
            "warning",
            f"{rank_names(report, link.first, link.second)} are joined by {link.kind}, and CUDA "
            "does not let them reach each other's memory.",
            f"driver: {link.peer_access or 'does not tell'}; CUDA: "
            f"{'no' if rate and rate.direct is False else 'yes' if rate else 'not asked'}{gb_s}",
            "Look at PCIe ACS and the IOMMU (lspci -vvv, kernel command line), at the virtual "
            "machine's pass-through, and for NVLink at the fabric manager.",
            "nvidia-smi topo -p2p r shows OK for this pair",
        )


def peer_to_peer_slow(report: DoctorReport) -> Iterator[Finding]:
    """Direct copies far below what their link carries: they do not take it."""
    for (first, second), rate in measured_pairs(report).items():
        expected = expected_gb_s(report, first, second)
        slower = min(rate.forward_gb_s, rate.backward_gb_s)
        if expected is None or rate.direct is False or slower >= FAR_BELOW * expected:
            continue
        kind = next(x.kind for x in report.links if (x.first, x.second) == (first, second))
        yield Finding(
            "p2p_below_link",
            "warning",
            f"{rank_names(report, first, second)} reach {slower:.1f} GB/s over {kind}, which "
            f"carries about {expected:.0f}.",
            f"{rate.bytes} bytes: {rate.forward_gb_s:.1f} GB/s one way, "
            f"{rate.backward_gb_s:.1f} the other, {rate.both_gb_s:.1f} both ways together",
            "PCIe ACS redirects peer traffic through the root complex, and an IOMMU translates "
            "it: switch ACS off on the switches between the GPUs. For NVLink see "
            "nvidia-smi nvlink -s for links that are down.",
            "a second examination on an idle host reaches the link's rate",
        )


def collectives_miss_the_link(report: DoctorReport) -> Iterator[Finding]:
    """Copies use NVLink and NCCL does not."""
    pairs = measured_pairs(report)
    nvlink = [x for x in report.links if (x.kind or "").startswith("NV")]
    all_nvlink = len(nvlink) == len(report.links) > 0
    if not all_nvlink or report.host.environment.get("NCCL_P2P_DISABLE") == "1" or not pairs:
        return
    copy = min(min(p.forward_gb_s, p.backward_gb_s) for p in pairs.values())
    large = [
        r
        for r in report.collectives
        if r.backend == "nccl" and r.collective == "all_reduce" and r.bytes >= 2**27
    ]
    if not large:
        return
    best = max(large, key=lambda r: r.bus_gb_s)
    if best.bus_gb_s < FAR_BELOW * copy:
        yield Finding(
            "nccl_below_link",
            "warning",
            f"NCCL reaches {best.bus_gb_s:.1f} GB/s where copies between the same GPUs reach "
            f"{copy:.1f}.",
            f"all-reduce of {best.bytes} bytes on {best.ranks} ranks, bus bandwidth",
            "Run with NCCL_DEBUG=INFO and look for the transport of each channel (P2P expected, "
            "SHM or NET found?), for NCCL_P2P_LEVEL and NCCL_ALGO in the environment and in "
            "/etc/nccl.conf, and for containers without a common IPC namespace.",
            "NCCL_DEBUG=INFO names P2P for every channel and nccl-tests gives the same figure",
        )

"""Findings about what the ranks send one another, and what each kind of link carries."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.records import DoctorReport, Finding, PairRate

FAR_BELOW = 0.4
"""Share of a link's rate under which it is not merely protocol overhead."""

_NVLINK_GB_S = 25.0
"""One NVLink, one direction: NVLink 2 to 4 alike (NVIDIA's V100, A100 and H100 data sheets give
300 GB/s over 6, 600 over 12 and 900 over 18 links, both directions together). NVLink 5 has twice
that, so that it is judged mildly here."""

_PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""One lane, one direction, after line coding (PCI-SIG's figures)."""


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


def has_direct_path(kind: str | None) -> bool:
    """Whether GPUs joined so can be expected to reach each other without the host's processor."""
    return kind is not None and (kind.startswith("NV") or kind in ("PIX", "PXB", "INT"))


def pcie_gb_s(generation: int | None, lanes: int | None) -> float | None:
    """10^9 bytes a second one way; None where generation or width is not known."""
    lane = _PCIE_LANE_GB_S.get(generation or 0)
    return lane * lanes if lane and lanes else None


def expected_gb_s(report: DoctorReport, first: int, second: int) -> float | None:
    """10^9 bytes a second that two ranks' link carries one way; None where none are expected."""
    kind = next((x.kind for x in report.links if (x.first, x.second) == (first, second)), None)
    if kind is None or not has_direct_path(kind):
        return None
    if kind.startswith("NV"):
        count = kind.removeprefix("NV")
        return _NVLINK_GB_S * int(count) if count.isdecimal() else None
    ends = [rank.pcie for rank in report.ranks if rank.rank in (first, second)]
    rates = [pcie_gb_s(end.generation, end.lanes) for end in ends if end is not None]
    if len(rates) < 2:
        return None
    return min((rate for rate in rates if rate is not None), default=None)


def measured_pairs(report: DoctorReport) -> dict[tuple[int, int], PairRate]:
    """The copies between GPUs, by their ranks."""
    return {(p.first, p.second): p for p in report.pairs if p.transport == "cuda copy"}


def rank_names(report: DoctorReport, *ranks: int) -> str:
    """``GPU 0 and GPU 3`` (NVML's numbers), or ``rank 1`` on a CPU host."""
    names = []
    for rank in ranks:
        index = report.devices[rank].device.index
        names.append(f"rank {rank}" if index is None else f"GPU {index}")
    return " and ".join(names)

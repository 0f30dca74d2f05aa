"""Findings of an examination: pure functions from the report. Torch-free.

Each finding looks at one known fault and needs its measurement: what is not known is not accused.
The thresholds are wide, so that a healthy host gets no finding.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from scalewise.host import plural
from scalewise.records import (
    DeviceFacts,
    DoctorReport,
    Finding,
    PairRate,
    RankMeasurements,
    Soak,
    Timing,
)

_FAR_BELOW = 0.4
"""Share of a link's rate under which it is not merely protocol overhead."""

_SLOW_DEVICE = 0.92
"""GPUs of one kind differ by a few percent on one host; this far below its peers is a finding."""

_STEADY = 0.95
"""The endurance run's last third over its first."""

_THERMAL = ("thermal", "hardware slowdown", "power brake")
_LEAST_WINDOWS = 6
_SLOW_LAUNCH_US = 20.0
_ENOUGH_SHM_MIB = 1024.0
_FREE_SHM_MIB = 256.0
_BUSY_PERCENT = 10.0
_ENOUGH_MEMORY_MIB = {"cuda": 16_384.0, "cpu": 2_048.0}
_LARGE_MESSAGE_BYTES = 2**27

_NVLINK_GB_S = 25.0
"""One NVLink, one direction: NVLink 2 to 4 alike (NVIDIA's V100, A100 and H100 data sheets give
300 GB/s over 6, 600 over 12 and 900 over 18 links, both directions together). NVLink 5 has twice
that, so that it is judged mildly here."""

_PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""One lane, one direction, after line coding (PCI-SIG's figures)."""


class _Kind(NamedTuple):
    severity: Literal["fault", "warning", "note"]
    advice: str
    refuted_by: str


_KINDS: Mapping[str, _Kind] = {
    "wrong_data": _Kind(
        "fault",
        "Switch the IOMMU or PCIe ACS off for these GPUs (or pass them through properly to the "
        "virtual machine); until then set NCCL_P2P_DISABLE=1 and examine again.",
        "the same operations come back right in a second examination",
    ),
    "ecc_errors": _Kind(
        "fault",
        "Take the GPU out of service and reset it; have it replaced if errors return.",
        "the count stays at 0 after a reset under load",
    ),
    "p2p_disabled_by_environment": _Kind(
        "warning",
        "Remove NCCL_P2P_DISABLE from the environment and examine again.",
        "the bus bandwidth is the same without the variable",
    ),
    "p2p_unavailable": _Kind(
        "warning",
        "Look at PCIe ACS and the IOMMU (lspci -vvv, kernel command line), at the virtual "
        "machine's pass-through, and for NVLink at the fabric manager.",
        "nvidia-smi topo -p2p r shows OK for this pair",
    ),
    "p2p_below_link": _Kind(
        "warning",
        "PCIe ACS redirects peer traffic through the root complex, and an IOMMU translates it: "
        "switch ACS off on the switches between the GPUs. For NVLink see nvidia-smi nvlink -s for "
        "links that are down.",
        "a second examination on an idle host reaches the link's rate",
    ),
    "nccl_below_link": _Kind(
        "warning",
        "Run with NCCL_DEBUG=INFO and look for the transport of each channel (P2P expected, SHM "
        "or NET found?), for NCCL_P2P_LEVEL and NCCL_ALGO in the environment and in "
        "/etc/nccl.conf, and for containers without a common IPC namespace.",
        "NCCL_DEBUG=INFO names P2P for every channel and nccl-tests gives the same figure",
    ),
    "pcie_below_maximum": _Kind(
        "warning",
        "Reseat the card or riser, check which slot shares its lanes, and the BIOS setting of the "
        "slot's speed.",
        "nvidia-smi -q -d PCI shows the maximum while copies run",
    ),
    "staging_below_link": _Kind(
        "warning",
        "Bind the process to the cores and memory of the GPU's NUMA node; look at the IOMMU and "
        "at the virtual machine.",
        "numactl --cpunodebind and --membind to the GPU's node change nothing",
    ),
    "slow_device": _Kind(
        "warning",
        "Every synchronous step waits for it. Compare clocks, temperature and power limit "
        "(nvidia-smi -q -d CLOCK,POWER,PERFORMANCE); look for other work on the device or its "
        "cores; else leave it out with --gpus.",
        "the difference moves to another device, or goes, when examined again",
    ),
    "not_steady": _Kind(
        "warning",
        "Improve cooling or the placing of the card; warm up before measuring, and let runs that "
        "are compared be long enough to reach the same temperature.",
        "a longer --soak shows a constant rate and no thermal limit",
    ),
    "small_shm": _Kind(
        "warning",
        "Loader workers hand their batches over there, and NCCL uses it between GPUs without "
        "direct access; 'Bus error' is what happens when it is full. Start the container with "
        "--shm-size=8g or --ipc=host, or remount /dev/shm larger.",
        "df /dev/shm inside the container shows more",
    ),
    "few_cores": _Kind(
        "warning",
        "Each rank launches kernels from a core of its own and needs at least one more to load "
        "data: give the job more cores (--cpus-per-task, --cpus), or use fewer devices.",
        "the run queue stays empty while all devices train (/proc/pressure/cpu)",
    ),
    "memory_cap": _Kind(
        "warning",
        "A rank with its loader workers may be killed without a word (exit status -9): ask for "
        "more memory (--mem), or use fewer workers.",
        "the peak resident set of a run's ranks and workers stays far below this",
    ),
    "far_cores": _Kind(
        "warning",
        "Ask the scheduler for cores of the GPU's node (--gpu-bind=closest, --cpuset-cpus).",
        "pinned copies reach the link's rate all the same",
    ),
    "busy_host": _Kind(
        "warning",
        "Examine again when the host is idle.",
        "an examination of the idle host gives the same figures",
    ),
    "busy_device": _Kind(
        "warning",
        "Examine again when it is free, or choose others with --gpus.",
        "nvidia-smi shows no process on it",
    ),
    "slow_launches": _Kind(
        "note",
        "Small models are limited by this: use execution=cudagraph, a faster core, or look for "
        "what else runs on the rank's cores.",
        "the GPU shows no gaps between kernels in a profile",
    ),
    "cpu_governor": _Kind(
        "note",
        "Where launches are slow, try 'performance'. (With intel_pstate, powersave may run at "
        "full speed all the same.)",
        "launch costs are the same under 'performance'",
    ),
}
"""What each finding advises, by its code; the order is that of findings of the same severity."""

_Found = tuple[str, str, str]
"""Code, text and evidence."""


def advise(report: DoctorReport) -> list[Finding]:
    """All findings, the gravest first."""
    found = [*_wrong_data(report), *_links(report), *_host(report)]
    for number, facts in enumerate(report.devices):
        found += _device(rank_names(report, number), facts)
        found += _slow_device(report, number)
    for rank in report.ranks:
        kind = report.devices[rank.rank].device.kind
        found += _measured(rank_names(report, rank.rank), rank, kind)
    codes = sorted(_KINDS, key=lambda code: ("fault", "warning", "note").index(_KINDS[code][0]))
    return [
        Finding(code, _KINDS[code].severity, text, evidence, *_KINDS[code][1:])
        for code, text, evidence in sorted(found, key=lambda one: codes.index(one[0]))
    ]


def _wrong_data(report: DoctorReport) -> Iterator[_Found]:
    """Something arrived other than it was sent."""
    checked = [
        *(
            (f"{r.backend} {r.collective} of {r.bytes} bytes", r.correct)
            for r in report.collectives
        ),
        *(
            (f"{p.transport} between ranks {p.first} and {p.second}", p.correct)
            for p in report.pairs
        ),
        *((f"{c.kind} on rank {r.rank}", c.correct) for r in report.ranks for c in r.copies),
    ]
    wrong = [name for name, correct in checked if not correct]
    if wrong:
        text = "Data arrives corrupted: nothing trained on these devices can be trusted."
        yield "wrong_data", text, "; ".join(wrong)


def _links(report: DoctorReport) -> Iterator[_Found]:
    """GPUs that do not use the path between them."""
    rates = measured_pairs(report)
    reduced = [r for r in report.collectives if (r.backend, r.collective) == ("nccl", "all_reduce")]
    switched_off = report.host.environment.get("NCCL_P2P_DISABLE") == "1"
    direct = [link for link in report.links if has_direct_path(link.kind)]
    if switched_off and direct:
        best = max(reduced, key=lambda r: r.bytes, default=None)
        rate = f"; all-reduce of {best.bytes} bytes: {best.bus_gb_s:.1f} GB/s" if best else ""
        yield (
            "p2p_disabled_by_environment",
            "NCCL_P2P_DISABLE=1 sends everything through host memory, and these GPUs could talk "
            "directly.",
            f"{direct[0].kind} between ranks {direct[0].first} and {direct[0].second}{rate}",
        )
    for link in direct:
        pair = rates.get((link.first, link.second))
        names = rank_names(report, link.first, link.second)
        refused = pair is not None and pair.direct is False
        if refused or link.peer_access not in (None, "ok", "unknown"):
            cuda = "not asked" if pair is None else "no" if refused else "yes"
            yield (
                "p2p_unavailable",
                f"{names} are joined by {link.kind}, and CUDA does not let them reach each "
                "other's memory.",
                f"driver: {link.peer_access or 'does not tell'}; CUDA: {cuda}"
                + (f", {pair.forward_gb_s:.1f} GB/s" if pair else ""),
            )
        expected = expected_gb_s(report, link.first, link.second)
        if pair is None or refused or expected is None:
            continue
        slower = min(pair.forward_gb_s, pair.backward_gb_s)
        if slower < _FAR_BELOW * expected:
            yield (
                "p2p_below_link",
                f"{names} reach {slower:.1f} GB/s over {link.kind}, which carries about "
                f"{expected:.0f}.",
                f"{pair.bytes} bytes: {pair.forward_gb_s:.1f} GB/s one way, "
                f"{pair.backward_gb_s:.1f} the other, {pair.both_gb_s:.1f} both ways together",
            )
    large = [r for r in reduced if r.bytes >= _LARGE_MESSAGE_BYTES]
    all_nvlink = all((link.kind or "").startswith("NV") for link in report.links)
    if report.links and all_nvlink and not switched_off and rates and large:
        copy = min(min(p.forward_gb_s, p.backward_gb_s) for p in rates.values())
        best = max(large, key=lambda r: r.bus_gb_s)
        if best.bus_gb_s < _FAR_BELOW * copy:
            yield (
                "nccl_below_link",
                f"NCCL reaches {best.bus_gb_s:.1f} GB/s where copies between the same GPUs reach "
                f"{copy:.1f}.",
                f"all-reduce of {best.bytes} bytes on {best.ranks} ranks, bus bandwidth",
            )


def _host(report: DoctorReport) -> Iterator[_Found]:
    host, count = report.host, len(report.devices)
    kind = report.devices[0].device.kind if report.devices else "cpu"
    shm, free = host.shm_total_mib, host.shm_free_mib
    if shm is not None and free is not None and (shm < _ENOUGH_SHM_MIB or free < _FREE_SHM_MIB):
        text = f"/dev/shm holds {shm:.0f} MiB, {free:.0f} of them free."
        yield "small_shm", text, f"{count} ranks share it"
    cores = len(host.usable_cores)
    if host.cpu_quota is not None:
        cores = min(cores, max(1, int(host.cpu_quota)))
    if cores < (2 * count if kind == "cuda" else count):
        yield (
            "few_cores",
            f"{cores} usable {plural(cores, 'core')} for {count} devices.",
            f"affinity: {len(host.usable_cores)}; cgroup quota: {host.cpu_quota or 'none'}",
        )
    known = [m for m in (host.memory_limit_mib, host.memory_total_mib) if m is not None]
    if known and count and min(known) / count < _ENOUGH_MEMORY_MIB[kind]:
        source = "cgroup limit" if min(known) == host.memory_limit_mib else "the machine"
        yield (
            "memory_cap",
            f"{min(known) / count:.0f} MiB of host memory for each device.",
            f"{source}: {min(known):.0f} MiB for {count} devices",
        )
    pressure = host.cpu_pressure_percent
    if pressure is not None and pressure > _BUSY_PERCENT:
        yield (
            "busy_host",
            "Tasks on this host wait for a core: these figures are lower than the host can do.",
            f"in {pressure:.0f} % of the 10 s before the examination (/proc/pressure/cpu)",
        )
    if host.cpu_governor in ("powersave", "conservative"):
        text = f"The CPU governor is {host.cpu_governor}."
        yield "cpu_governor", text, "of the first usable core"


def _device(name: str, facts: DeviceFacts) -> Iterator[_Found]:
    if facts.ecc_uncorrected:
        remapped = "?" if facts.remapped_rows is None else facts.remapped_rows
        yield (
            "ecc_errors",
            f"{name} has had memory errors that could not be corrected.",
            f"{facts.ecc_uncorrected} since the driver was loaded; {remapped} rows remapped",
        )
    near, own = set(facts.near_cores), set(facts.device.cores)
    if near and own and not near & own:
        yield (
            "far_cores",
            f"{name}: none of its rank's cores is on its NUMA node.",
            f"{len(near)} cores are near, and this process may use none of them",
        )
    if facts.other_processes:
        yield (
            "busy_device",
            f"{name} is in use by others: its figures are too low.",
            f"{facts.other_processes} compute processes before the examination",
        )


def _measured(name: str, rank: RankMeasurements, device_kind: str) -> Iterator[_Found]:
    """Findings of what one rank measured alone."""
    pinned = [c for c in rank.copies if c.kind.endswith("pinned")]
    if (link := rank.pcie) is not None:
        parts = []
        if link.generation and link.max_generation and link.generation < link.max_generation:
            parts.append(f"generation {link.generation} of {link.max_generation}")
        if link.lanes and link.max_lanes and link.lanes < link.max_lanes:
            parts.append(f"{link.lanes} lanes of {link.max_lanes}")
        if parts:
            rates = "".join(f"; {c.kind} {c.gb_s:.1f} GB/s" for c in pinned[:2])
            yield (
                "pcie_below_maximum",
                f"{name}: the PCIe link runs at {' and '.join(parts)}.",
                f"read while pinned copies were running{rates}",
            )
        expected = pcie_gb_s(link.generation, link.lanes)
        slow = min((c for c in pinned if not c.together), key=lambda c: c.gb_s, default=None)
        if expected is not None and slow is not None and slow.gb_s < _FAR_BELOW * expected:
            yield (
                "staging_below_link",
                f"{name}: {slow.kind} reaches {slow.gb_s:.1f} GB/s; the link carries about "
                f"{expected:.0f}.",
                f"{slow.bytes} bytes, nothing else copying",
            )
    if rank.soak is not None and len(windows := rank.soak.windows) >= _LEAST_WINDOWS:
        ratio = thermal_ratio(rank.soak)
        reasons = sorted({r for w in windows for r in w.throttle_reasons or ()})
        thermal = any(word in reason.lower() for reason in reasons for word in _THERMAL)
        hottest = max((w.temperature_c for w in windows if w.temperature_c), default="?")
        if ratio < _STEADY or thermal:
            yield (
                "not_steady",
                f"{name}: under steady load the rate ends at {100 * ratio:.1f} % of its begin.",
                f"{len(windows)} windows; hottest {hottest} C; limits: "
                f"{', '.join(reasons) or 'none read'}",
            )
    cost = next((c.timing.median_us for c in rank.launch if c.kind == "enqueue"), 0.0)
    if device_kind == "cuda" and cost > _SLOW_LAUNCH_US:
        yield (
            "slow_launches",
            f"{name}: launching a kernel takes the host {cost:.1f} us.",
            "200 launches of the smallest kernel, median of 7 repetitions",
        )


def thermal_ratio(soak: Soak) -> float:
    """The median rate of the last third of an endurance run over that of its first third."""
    rates = [window.tflops for window in soak.windows]
    third = max(1, len(rates) // 3)
    return statistics.median(rates[-third:]) / statistics.median(rates[:third])


def _slow_device(report: DoctorReport, number: int) -> Iterator[_Found]:
    """A device behind others of its kind, in figures enough to rule out a bad moment.

    On a GPU these are the copy or half of the products. Shares of a CPU disturb one another, so
    that there all figures must agree.
    """
    device = report.devices[number].device
    own = _figures(report, number)
    peers = [
        _figures(report, other)
        for other, facts in enumerate(report.devices)
        if other != number and facts.device.name == device.name
    ]
    behind = {}
    for (name, size), timing in own.items():
        others = [figures[name, size] for figures in peers if (name, size) in figures]
        if text := _behind(timing, others):
            behind[name] = text
    products = [name.startswith("gemm") for name, _ in own]
    slow_products = [name.startswith("gemm") for name in behind]
    if device.kind == "cpu":
        enough = len(behind) == len(own)
    else:
        enough = not all(slow_products) or 2 * len(slow_products) >= sum(products)
    if behind and enough:
        yield (
            "slow_device",
            f"{rank_names(report, number)} is slower than its peers: {', '.join(behind)}.",
            "; ".join(f"{name}: {text}" for name, text in behind.items()),
        )


def _figures(report: DoctorReport, number: int) -> dict[tuple[str, int], Timing]:
    """The products and the copy in memory that a rank measured, by name and size."""
    found: dict[tuple[str, int], Timing] = {}
    for rank in report.ranks:
        if rank.rank == number:
            found.update({(f"gemm {g.precision}", g.size): g.timing for g in rank.gemm})
            copies = (c for c in rank.copies if c.kind in ("device", "host"))
            found.update({(f"{c.kind} copy", c.bytes): c.timing for c in copies})
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
    indices = [report.devices[rank].device.index for rank in ranks]
    names = zip(ranks, indices, strict=True)
    return " and ".join(f"rank {rank}" if i is None else f"GPU {i}" for rank, i in names)

"""Findings of an examination: pure functions from the report. Torch-free.

Each rule looks at one known fault and returns nothing where the measurement it needs is missing:
what is not known is not accused. The thresholds are wide, so that a healthy host gets no finding.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from scalewise.doctor import link_rules
from scalewise.doctor.link_rules import FAR_BELOW, pcie_gb_s, rank_names
from scalewise.host import plural
from scalewise.records import DoctorReport, Finding, Soak, Timing

_Times = dict[int, Timing]
"""The repetitions of one measurement by rank."""

_SLOW_TWIN = 0.92
"""GPUs of one kind differ by a few percent on one host; this far below its twins is a finding."""

_STEADY = 0.95
"""The endurance run's last third over its first."""

_THERMAL = ("thermal", "hardware slowdown", "power brake")
_SLOW_LAUNCH_US = 20.0
_ENOUGH_SHM_MIB = 1024.0
_FREE_SHM_MIB = 256.0
_BUSY_PERCENT = 10.0
_ENOUGH_MEMORY_MIB = {"cuda": 16_384.0, "cpu": 2_048.0}


def advise(report: DoctorReport) -> list[Finding]:
    """All findings, the gravest first."""
    rank = {"fault": 0, "warning": 1, "note": 2}
    found = [finding for rule in RULES for finding in rule(report)]
    return sorted(found, key=lambda finding: rank[finding.severity])


def pcie_below_maximum(report: DoctorReport) -> Iterator[Finding]:
    """A link to the host that is narrower or slower than both ends allow."""
    for rank in report.ranks:
        link = rank.pcie
        if link is None:
            continue
        parts = []
        if link.generation and link.max_generation and link.generation < link.max_generation:
            parts.append(f"generation {link.generation} of {link.max_generation}")
        if link.lanes and link.max_lanes and link.lanes < link.max_lanes:
            parts.append(f"{link.lanes} lanes of {link.max_lanes}")
        if parts:
            pinned = [c for c in rank.copies if c.kind.endswith("pinned")]
            rates = ", ".join(f"{c.kind} {c.gb_s:.1f} GB/s" for c in pinned[:2])
            yield Finding(
                "pcie_below_maximum",
                "warning",
                f"{rank_names(report, rank.rank)}: the PCIe link runs at {' and '.join(parts)}.",
                "read while pinned copies were running" + (f"; {rates}" if rates else ""),
                "Reseat the card or riser, check which slot shares its lanes, and the BIOS "
                "setting of the slot's speed.",
                "nvidia-smi -q -d PCI shows the maximum while copies run",
            )


def staging_below_link(report: DoctorReport) -> Iterator[Finding]:
    """Pinned copies far below what the PCIe link carries."""
    for rank in report.ranks:
        if rank.pcie is None:
            continue
        expected = pcie_gb_s(rank.pcie.generation, rank.pcie.lanes)
        alone = [c for c in rank.copies if c.kind.endswith("pinned") and not c.together]
        if expected is None or not alone:
            continue
        slow = min(alone, key=lambda c: c.gb_s)
        if slow.gb_s < FAR_BELOW * expected:
            yield Finding(
                "staging_below_link",
                "warning",
                f"{rank_names(report, rank.rank)}: {slow.kind} reaches {slow.gb_s:.1f} GB/s; the "
                f"link carries about {expected:.0f}.",
                f"{slow.bytes} bytes, nothing else copying",
                "Bind the process to the cores and memory of the GPU's NUMA node; look at the "
                "IOMMU and at the virtual machine.",
                "numactl --cpunodebind and --membind to the GPU's node change nothing",
            )


def slow_twin(report: DoctorReport) -> Iterator[Finding]:
    """One device behind others of its kind, in figures enough to rule out a bad moment."""
    by_name: dict[str, list[int]] = {}
    for rank, facts in enumerate(report.devices):
        by_name.setdefault(facts.device.name, []).append(rank)
    for ranks in by_name.values():
        figures = _comparable(report, ranks)
        for rank in ranks:
            behind = {name: text for name, times in figures if (text := _behind(times, rank))}
            measured = [name for name, times in figures if rank in times]
            if not _enough(behind, measured, report.devices[rank].device.kind):
                continue
            yield Finding(
                "slow_device",
                "warning",
                f"{rank_names(report, rank)} is slower than its twins: {', '.join(behind)}.",
                "; ".join(f"{name}: {text}" for name, text in behind.items()),
                "Every synchronous step waits for it. Compare clocks, temperature and power limit "
                "(nvidia-smi -q -d CLOCK,POWER,PERFORMANCE); look for other work on the device or "
                "its cores; else leave it out with --gpus.",
                "the difference moves to another device, or goes, when examined again",
            )


def _comparable(report: DoctorReport, ranks: Collection[int]) -> list[tuple[str, _Times]]:
    """Each figure of these ranks, where they measured the same: times by rank."""
    figures: defaultdict[tuple[str, int], _Times] = defaultdict(dict)
    for measured in report.ranks:
        if measured.rank in ranks:
            for gemm in measured.gemm:
                figures[f"gemm {gemm.precision}", gemm.size][measured.rank] = gemm.timing
            for copy in measured.copies:
                if copy.kind in ("device", "host"):
                    figures[f"{copy.kind} copy", copy.bytes][measured.rank] = copy.timing
    return [(figure, figures[figure, size]) for figure, size in sorted(figures)]


def _behind(times: _Times, rank: int) -> str:
    """How far a rank is behind the median of its twins; "" if no further than they scatter."""
    others = [t for r, t in times.items() if r != rank]
    if not others or rank not in times:
        return ""
    median_us = times[rank].median_us
    twin_us = statistics.median(t.median_us for t in others)
    apart = min(times[rank].samples_us) > statistics.median(max(t.samples_us) for t in others)
    if twin_us / median_us >= _SLOW_TWIN or not apart:
        return ""
    slower = 100 * (1 - twin_us / median_us)
    return f"{slower:.0f} % slower ({median_us:.1f} us against {twin_us:.1f} us)"


def _enough(behind: Collection[str], measured: Sequence[str], kind: str) -> bool:
    """On a GPU half of the products, or the copy; shares of a CPU disturb one another, so that
    there all figures must agree."""
    if not behind:
        return False
    if kind == "cpu":
        return len(behind) == len(measured)
    products = [name for name in measured if name.startswith("gemm")]
    slow_products = [name for name in behind if name.startswith("gemm")]
    return len(behind) > len(slow_products) or 2 * len(slow_products) >= len(products)


def worn_memory(report: DoctorReport) -> Iterator[Finding]:
    for rank, facts in enumerate(report.devices):
        if facts.ecc_uncorrected:
            yield Finding(
                "ecc_errors",
                "fault",
                f"{rank_names(report, rank)} has had memory errors that could not be corrected.",
                f"{facts.ecc_uncorrected} since the driver was loaded; "
                f"{facts.remapped_rows if facts.remapped_rows is not None else '?'} rows remapped",
                "Take the GPU out of service and reset it; have it replaced if errors return.",
                "the count stays at 0 after a reset under load",
            )


def unsteady(report: DoctorReport) -> Iterator[Finding]:
    """A rate that falls as the device grows warm, or thermal limits."""
    for rank in report.ranks:
        if rank.soak is None or len(rank.soak.windows) < 6:
            continue
        ratio = thermal_ratio(rank.soak)
        reasons = sorted({r for w in rank.soak.windows for r in w.throttle_reasons or ()})
        thermal = [r for r in reasons if any(word in r.lower() for word in _THERMAL)]
        if ratio >= _STEADY and not thermal:
            continue
        hottest = max((w.temperature_c for w in rank.soak.windows if w.temperature_c), default=None)
        yield Finding(
            "not_steady",
            "warning",
            f"{rank_names(report, rank.rank)}: under steady load the rate ends at "
            f"{100 * ratio:.1f} % of its begin.",
            f"{len(rank.soak.windows)} windows; hottest {hottest or '?'} C; limits: "
            f"{', '.join(reasons) or 'none read'}",
            "Improve cooling or the placing of the card; warm up before measuring, and let runs "
            "that are compared be long enough to reach the same temperature.",
            "a longer --soak shows a constant rate and no thermal limit",
        )


def thermal_ratio(soak: Soak) -> float:
    """The median rate of the last third of an endurance run over that of its first third."""
    rates = [window.tflops for window in soak.windows]
    third = max(1, len(rates) // 3)
    return statistics.median(rates[-third:]) / statistics.median(rates[:third])


def slow_launches(report: DoctorReport) -> Iterator[Finding]:
    for rank in report.ranks:
        if report.devices[rank.rank].device.kind != "cuda":
            continue
        cost = next((c.timing.median_us for c in rank.launch if c.kind == "enqueue"), None)
        if cost is not None and cost > _SLOW_LAUNCH_US:
            yield Finding(
                "slow_launches",
                "note",
                f"{rank_names(report, rank.rank)}: launching a kernel takes the host "
                f"{cost:.1f} us.",
                "200 launches of the smallest kernel, median of 7 repetitions",
                "Small models are limited by this: use execution=cudagraph, a faster core, or "
                "look for what else runs on the rank's cores.",
                "the GPU shows no gaps between kernels in a profile",
            )


def small_shared_memory(report: DoctorReport) -> Iterator[Finding]:
    total, free = report.host.shm_total_mib, report.host.shm_free_mib
    if total is None or free is None:
        return
    if total < _ENOUGH_SHM_MIB or free < _FREE_SHM_MIB:
        yield Finding(
            "small_shm",
            "warning",
            f"/dev/shm holds {total:.0f} MiB, {free:.0f} of them free.",
            f"{len(report.devices)} ranks share it",
            "Loader workers hand their batches over there, and NCCL uses it between GPUs "
            "without direct access; 'Bus error' is what happens when it is full. Start the "
            "container with --shm-size=8g or --ipc=host, or remount /dev/shm larger.",
            "df /dev/shm inside the container shows more",
        )


def few_cores(report: DoctorReport) -> Iterator[Finding]:
    host, devices = report.host, report.devices
    usable = len(host.usable_cores)
    if host.cpu_quota is not None:
        usable = min(usable, max(1, int(host.cpu_quota)))
    gpus = any(facts.device.kind == "cuda" for facts in devices)
    need = 2 * len(devices) if gpus else len(devices)
    if usable >= need:
        return
    yield Finding(
        "few_cores",
        "warning",
        f"{usable} usable {plural(usable, 'core')} for {len(devices)} devices.",
        f"affinity: {len(host.usable_cores)}; cgroup quota: {host.cpu_quota or 'none'}",
        "Each rank launches kernels from a core of its own and needs at least one more to load "
        "data: give the job more cores (--cpus-per-task, --cpus), or use fewer devices.",
        "the run queue stays empty while all devices train (/proc/pressure/cpu)",
    )


def busy_host(report: DoctorReport) -> Iterator[Finding]:
    pressure = report.host.cpu_pressure_percent
    if pressure is not None and pressure > _BUSY_PERCENT:
        yield Finding(
            "busy_host",
            "warning",
            "Tasks on this host wait for a core: these figures are lower than the host can do.",
            f"in {pressure:.0f} % of the 10 s before the examination (/proc/pressure/cpu)",
            "Examine again when the host is idle.",
            "an examination of the idle host gives the same figures",
        )
    for rank, facts in enumerate(report.devices):
        if facts.other_processes:
            yield Finding(
                "busy_device",
                "warning",
                f"{rank_names(report, rank)} is in use by others: its figures are too low.",
                f"{facts.other_processes} compute processes before the examination",
                "Examine again when it is free, or choose others with --gpus.",
                "nvidia-smi shows no process on it",
            )


def memory_cap(report: DoctorReport) -> Iterator[Finding]:
    host, devices = report.host, report.devices
    known = [m for m in (host.memory_limit_mib, host.memory_total_mib) if m is not None]
    if not known or not devices:
        return
    share = min(known) / len(devices)
    enough = _ENOUGH_MEMORY_MIB[devices[0].device.kind]
    if share < enough:
        capped = host.memory_limit_mib is not None and host.memory_limit_mib <= min(known)
        yield Finding(
            "memory_cap",
            "warning",
            f"{share:.0f} MiB of host memory for each device.",
            f"{'cgroup limit' if capped else 'the machine'}: {min(known):.0f} MiB for "
            f"{len(devices)} devices",
            "A rank with its loader workers may be killed without a word (exit status -9): ask "
            "for more memory (--mem), or use fewer workers.",
            "the peak resident set of a run's ranks and workers stays far below this",
        )


def far_cores(report: DoctorReport) -> Iterator[Finding]:
    """A rank that may not run on any core near its GPU."""
    for rank, facts in enumerate(report.devices):
        near, own = set(facts.near_cores), set(facts.device.cores)
        if near and own and not near & own:
            yield Finding(
                "far_cores",
                "warning",
                f"{rank_names(report, rank)}: none of its rank's cores is on its NUMA node.",
                f"{len(near)} cores are near, and this process may use none of them",
                "Ask the scheduler for cores of the GPU's node (--gpu-bind=closest, "
                "--cpuset-cpus).",
                "pinned copies reach the link's rate all the same",
            )


def power_saving(report: DoctorReport) -> Iterator[Finding]:
    if report.host.cpu_governor in ("powersave", "conservative"):
        yield Finding(
            "cpu_governor",
            "note",
            f"The CPU governor is {report.host.cpu_governor}.",
            "of the first usable core",
            "Where launches are slow, try 'performance'. (With intel_pstate, powersave may run "
            "at full speed all the same.)",
            "launch costs are the same under 'performance'",
        )


RULES: tuple[Callable[[DoctorReport], Iterator[Finding]], ...] = (
    link_rules.wrong_data,
    worn_memory,
    link_rules.peer_to_peer_switched_off,
    link_rules.peer_to_peer_refused,
    link_rules.peer_to_peer_slow,
    link_rules.collectives_miss_the_link,
    pcie_below_maximum,
    staging_below_link,
    slow_twin,
    unsteady,
    small_shared_memory,
    few_cores,
    memory_cap,
    far_cores,
    busy_host,
    slow_launches,
    power_saving,
)

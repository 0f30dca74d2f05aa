"""Findings about what the host grants."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.measure.doctor_links import rank_names
from scalewise.plurals import plural
from scalewise.records.doctor import DoctorReport, Finding

_ENOUGH_SHM_MIB = 1024.0
_FREE_SHM_MIB = 256.0
_BUSY_PERCENT = 10.0
_ENOUGH_MEMORY_MIB = {"cuda": 16_384.0, "cpu": 2_048.0}


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

"""``scalewise doctor``: what the devices of this host can do, and what is wrong with them.

    python -m scalewise.measure.doctor [--json] [--out FOLDER] [--quick] [--soak S] ...

This process imports no torch: it starts one process a device, which measures and records, and
turns the records into a report with advice. No setting of any device is changed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from scalewise.hardware import HardwareConfig
from scalewise.host import usable_cores
from scalewise.measure.doctor_advice import advise
from scalewise.measure.doctor_devices import describe_devices
from scalewise.measure.doctor_plan import Plan
from scalewise.measure.doctor_ranks import run_ranks
from scalewise.measure.host_checks import host_facts
from scalewise.measure.scratch import scratch_folder
from scalewise.records import DeviceInfo
from scalewise.records.doctor import DoctorReport, save_doctor
from scalewise.records.files import SCHEMA_VERSION
from scalewise.sweep.lease import Host, HostMismatch, Lease, Leases, discover
from scalewise.validation import to_plain

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def run_doctor(argv: list[str]) -> int:
    """Examine this host.

    Exit status: 0 examined; 1 a fault was found, or a rank did not end well; 2 the options do not
    fit this host; 130 interrupted. Warnings do not change it.
    """
    options = _doctor_parser().parse_args(argv)
    plan = Plan(options.quick, options.soak, options.backend)
    try:
        host = find_devices(options.devices, options.gpus, options.backend)
        slots = host.slots[: options.devices or len(host.slots)]
        with leased(slots) as lease:
            report = examine(plan, slots, host.driver, lease.descriptors)
        path = save_doctor(options.out, report) if options.out is not None else None
    except (HostMismatch, OSError) as error:
        _say(f"error: {error}")
        return EXIT_USAGE
    except KeyboardInterrupt:
        _say("interrupted: nothing is recorded")
        return EXIT_INTERRUPTED
    _show_doctor(report, as_json=options.json)
    if path is not None:
        _say(f"recorded: {path}")
    failed = any(key.startswith("rank ") for key in report.missing)
    return EXIT_FAULT if failed or any(f.severity == "fault" for f in report.findings) else 0


def examine(
    plan: Plan,
    slots: Sequence[DeviceInfo],
    driver: str | None = None,
    locks: tuple[int, ...] = (),
) -> DoctorReport:
    """Examine these devices, which must be the caller's to use: see :class:`Leases`.

    ``locks``: descriptors that hold them, which the ranks inherit.
    Raises OSError where no process can be started.
    """
    begun = time.time()
    host = host_facts()
    devices, links = describe_devices(slots)
    with scratch_folder("doctor") as folder:
        ranks, missing = run_ranks(plan, slots, folder, locks)
    taken_s = time.time() - begun
    report = DoctorReport(
        begun, taken_s, plan.quick, host, driver, devices, links, ranks, (), missing
    )
    return replace(report, findings=tuple(advise(report)))


@contextmanager
def leased(slots: Sequence[DeviceInfo]) -> Iterator[Lease]:
    """Keep other scalewise jobs off the devices. Raises :class:`HostMismatch` if one is there."""
    lease = Leases().try_lease(slots, len(slots))
    if lease is None:
        raise HostMismatch(
            "another scalewise job is using one of the devices; wait until it is done, or choose "
            "others with --gpus"
        )
    try:
        yield lease
    finally:
        lease.release()


def find_devices(devices: int | None, gpus: tuple[int | str, ...] | None, backend: str) -> Host:
    """The host's devices. Raises :class:`HostMismatch` for what is not there."""
    config = HardwareConfig("auto", gpus=gpus or "all")
    host = discover(config)
    on_cpu = host.slots[0].kind == "cpu"
    if on_cpu and backend == "nccl":
        raise HostMismatch(f"--backend: found nccl, and this host has no GPU ({host.no_gpu})")
    if devices is None:
        return host
    if on_cpu:
        # A CPU host has as many devices as its cores are divided into.
        cores = len(usable_cores())
        if devices > cores:
            raise HostMismatch(f"--devices: found {devices}; allowed: 1 to {cores}, one a core")
        return discover(replace(config, cores_per_device=cores // devices))
    if devices > len(host.slots):
        raise HostMismatch(f"--devices: found {devices}; allowed: 1 to {len(host.slots)}")
    return host


def _doctor_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scalewise doctor",
        description="Measure what the devices of this host can do alone and together, and name "
        "known faults. Nothing is changed on any device.",
    )
    add = parser.add_argument
    add("--json", action="store_true", help="print the whole record as JSON")
    add("--out", type=Path, metavar="FOLDER", help="write doctor.json there")
    add("--quick", action="store_true", help="fewer sizes and repetitions")
    add(
        "--soak",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="then multiply for S seconds and watch clocks and temperature",
    )
    add("--devices", type=_count, metavar="N", help="the first N devices; default: all")
    add("--gpus", type=_gpus, metavar="LIST", help="these GPUs, by index or UUID: 2,3")
    add(
        "--backend",
        choices=("auto", "nccl", "gloo"),
        default="auto",
        help="what the ranks talk with; auto: NCCL and gloo on GPUs, gloo on CPUs",
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"found {text}; allowed: 0 to 86400 seconds")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"found {text}; allowed: 1 or more")
    return count


def _gpus(text: str) -> tuple[int | str, ...]:
    names = [name.strip() for name in text.strip("[]").split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a list like 0,1 or UUIDs")
    return tuple(int(name) if name.isdecimal() else name for name in names)


def _show_doctor(report: DoctorReport, *, as_json: bool) -> None:
    if as_json:
        plain = {"schema_version": SCHEMA_VERSION, **to_plain(report)}
        sys.stdout.write(json.dumps(plain, indent=2, allow_nan=False) + "\n")
        return
    from scalewise.report import show_doctor
    from scalewise.terminal import open_console

    show_doctor(report, open_console())
    sys.stdout.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")

"""An examination: one process a device measures and records, and rules judge what they found.

This process imports no torch. No setting of any device is changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from scalewise.config import HardwareConfig
from scalewise.doctor.host_facts import describe_devices, host_facts
from scalewise.doctor.plan import ENV_DEVICE, Plan
from scalewise.doctor.rules import advise
from scalewise.gpu import Host, HostMismatch, Lease, Leases, discover
from scalewise.host import (
    ENV_LISTENER,
    ENV_SUPERVISOR,
    end_child,
    listen,
    on_loopback,
    rendezvous,
    say,
    scrubbed,
    usable_cores,
)
from scalewise.records import (
    DeviceInfo,
    DoctorReport,
    RankMeasurements,
    RecordError,
    load_json,
    save_json,
    to_plain,
)

_GRACE_S = 8.0
"""For the others to finish what they do alone, once a rank has failed."""

_POLL_S = 0.05
_LAST_LINES = 3

_PACKAGE_ROOT = str(Path(__file__).parents[2])
"""Where this very package lies: the ranks must not find another one."""


def examine(
    plan: Plan, slots: Sequence[DeviceInfo], driver: str | None = None, locks: tuple[int, ...] = ()
) -> DoctorReport:
    """Examine these devices, which must be the caller's to use: see :class:`Leases`.

    ``locks``: descriptors that hold them, which the ranks inherit. Raises OSError where no process
    can be started.
    """
    begun, host = time.time(), host_facts()
    devices, links = describe_devices(slots)
    with TemporaryDirectory(prefix="scalewise-doctor-", ignore_cleanup_errors=True) as folder:
        ranks, missing = run_ranks(plan, slots, Path(folder), locks)
    taken_s = time.time() - begun
    report = DoctorReport(
        begun, taken_s, plan.quick, host, driver, devices, links, ranks, missing=missing
    )
    return replace(report, findings=tuple(advise(report)))


def leased(slots: Sequence[DeviceInfo]) -> Lease:
    """Keep other scalewise jobs off the devices; waits, as a sweep does, until none has one."""
    leases, said = Leases(), False
    while (lease := leases.try_lease(slots, len(slots))) is None:
        if not said:
            say(f"waiting: {leases.holder or 'another sweep'} holds this host's devices")
            said = True
        time.sleep(_POLL_S)
    return lease


def find_devices(devices: int | None, gpus: tuple[int | str, ...] | None) -> Host:
    """The host's devices. Raises :class:`HostMismatch` for what is not there."""
    config = HardwareConfig("auto", gpus=gpus or "all")
    host = discover(config)
    if devices is None:
        return host
    if host.slots[0].kind == "cpu":
        # A CPU host has as many devices as its cores are divided into.
        host = discover(replace(config, cores_per_device=max(1, len(usable_cores()) // devices)))
    if devices > len(host.slots):
        raise HostMismatch(f"--devices: found {devices}; allowed: 1 to {len(host.slots)}")
    return host


def run_ranks(
    plan: Plan, slots: Sequence[DeviceInfo], folder: Path, locks: tuple[int, ...] = ()
) -> tuple[tuple[RankMeasurements, ...], dict[str, str]]:
    """Measure on every slot at once. No process is left when this returns or raises,
    but one that is stuck in the kernel.

    Returns what each rank recorded, and for a rank that did not end well the reason.
    """
    save_json(folder / "plan.json", plan)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        with listen() as listener:
            for number in range(len(slots)):
                environment = _environment(slots, number, listener.getsockname()[1])
                inherited = locks
                if number == 0:  # it accepts the others there
                    environment[ENV_LISTENER] = str(listener.fileno())
                    inherited += (listener.fileno(),)
                command = [sys.executable, "-m", "scalewise.doctor.worker", str(folder)]
                with (folder / f"rank{number}.log").open("wb") as log:
                    ranks.append(subprocess.Popen(
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                        stderr=subprocess.STDOUT, pass_fds=inherited,
                    ))  # fmt: skip
        _wait(ranks, plan.limit_s(len(slots)))
    finally:
        codes = [rank.poll() for rank in ranks]
        for rank in ranks:
            end_child(rank)
    measured = tuple(_measured(folder, number) for number in range(len(ranks)))
    ended = zip(measured, codes, strict=True)
    return measured, {f"rank {m.rank}": _problem(folder, m, code) for m, code in ended if code != 0}


def _wait(ranks: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    deadline, failed = time.monotonic() + limit_s, False
    while time.monotonic() < deadline:
        codes = [rank.poll() for rank in ranks]
        if None not in codes:
            return
        if any(codes) and not failed:
            deadline, failed = min(deadline, time.monotonic() + _GRACE_S), True
        time.sleep(_POLL_S)


def _measured(folder: Path, number: int) -> RankMeasurements:
    """The record of a rank, up to where it came."""
    try:
        return load_json(folder / f"rank{number}.json", RankMeasurements)
    except RecordError as error:
        return RankMeasurements(number, "start", missing={"record": str(error)})


def _problem(folder: Path, measured: RankMeasurements, code: int | None) -> str:
    """Why a rank did not end well, in one line; ``code`` is None for one that was ended."""
    if code is None:
        return f"was ended while at {measured.stage!r}: it hung, or another rank had failed"
    text = (folder / f"rank{measured.rank}.log").read_text(encoding="utf-8", errors="replace")
    last = " | ".join(line.strip() for line in text.strip().splitlines()[-_LAST_LINES:])
    return f"ended with status {code} while at {measured.stage!r}: {last or 'it said nothing'}"


def _environment(slots: Sequence[DeviceInfo], rank: int, port: int) -> dict[str, str]:
    threads = str(max(1, len(slots[rank].cores)))
    return {
        **on_loopback(slots[rank].kind == "cuda"),
        **scrubbed(os.environ),
        **rendezvous(rank, rank, len(slots), port),
        # Every rank sees all GPUs of the examination: rank r's is number r.
        "CUDA_VISIBLE_DEVICES": ",".join(s.uuid for s in slots if s.uuid is not None),
        "PYTHONPATH": os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH")))),
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads),
        ENV_SUPERVISOR: str(os.getpid()),
        ENV_DEVICE: json.dumps(to_plain(slots[rank])),
    }

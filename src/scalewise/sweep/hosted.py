"""What a cell needs on the host that runs it, where that is not the sweep's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from scalewise.config import CellConfig
from scalewise.records import CellFolder
from scalewise.sweep.demand import Demand
from scalewise.sweep.lease import Host, HostMismatch, Lease, Leases, discover
from scalewise.sweep.unrecorded import attempt_until_now

_LEASE_S = 60.0
"""How long a device may stay locked by an earlier job that is just ending."""
_LOOK_S = 0.5


def granted(cell: CellConfig, wanted: Demand) -> Host:
    """The devices that the cluster gave this job on this host.

    CUDA_VISIBLE_DEVICES and the cores of the cgroup are honoured by ``discover``. Raises
    :class:`HostMismatch` where they are fewer than asked for.
    """
    hardware = cell.hardware
    on_cpu = wanted.gpus_per_node == 0 or hardware.kind == "cpu"
    if on_cpu:
        hardware = replace(hardware, kind="cpu", cores_per_device=wanted.cpus_per_device)
    host = discover(hardware)
    if not on_cpu and any(slot.kind != "cuda" for slot in host.slots):
        raise HostMismatch(
            f"{wanted.gpus_per_node} GPUs were granted, and none can be seen here "
            f"({host.no_gpu}); use hardware=cpu to train on the CPU"
        )
    if len(host.slots) < wanted.devices_per_node:
        raise HostMismatch(
            f"found {len(host.slots)} devices in this job; {wanted.devices_per_node} were asked for"
        )
    return host


@contextmanager
def leased(
    host: Host, width: int, limit_s: float = _LEASE_S, go_on: Callable[[], bool] = lambda: True
) -> Iterator[Lease]:
    """Devices that no other cell of this user on this host has.

    Raises :class:`HostMismatch` after ``limit_s``, or when ``go_on`` says that nobody waits.
    """
    leases = Leases()
    deadline = time.monotonic() + limit_s
    while (lease := leases.try_lease(host.slots, width)) is None:
        if not go_on():
            raise HostMismatch(f"stopped while it waited for {width} devices of this host")
        if time.monotonic() > deadline:
            raise HostMismatch(
                f"{width} devices were granted here, but another scalewise process on this host "
                "uses them; end it"
            )
        time.sleep(_LOOK_S)
    try:
        yield lease
    finally:
        lease.release()


def record(
    folder: CellFolder,
    message: str,
    cause: Literal["host", "supervisor", "interrupted", "preempted"] = "host",
) -> None:
    """Record that this job never got as far as to train, or lost its supervisor."""
    outcome: Literal["failed", "interrupted"] = (
        "interrupted" if cause in ("interrupted", "preempted") else "failed"
    )
    folder.save_attempt(attempt_until_now(folder, outcome, cause, message))

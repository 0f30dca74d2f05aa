"""A cell's supervisor on a host that is not the sweep's own.

    python -m scalewise.sweep.host_agent < order

A Ray actor starts it. It leases the devices there, and from then on is the supervisor of a local
sweep: when its standard input closes, or nothing has come through it for too long, the sweep is
gone and so is this cell.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

from scalewise.config import CellConfig, ConfigError, build_cell
from scalewise.gpu import Host, HostMismatch, Lease, Leases, discover
from scalewise.host import become_subreaper, free_port, plural
from scalewise.records import CellFolder, PlannedCell, RecordError, build, to_plain
from scalewise.supervisor import (
    Job,
    Nodes,
    NodesApart,
    Origin,
    Outcome,
    Settings,
    Supervisor,
    Wakeup,
    announce,
    meet,
    read_line,
)
from scalewise.sweep import attempt_until_now, settings_of

# What a cell asks of a cluster, whichever way the cluster is reached.


class Capacity(Protocol):
    """The keys of ``hydra.launcher`` that say what one host holds."""

    @property
    def gpus_per_device(self) -> int | Literal["auto"]:
        """1, or 0 for hosts without GPUs; ``auto`` is 0 with a CPU profile and 1 with others."""

    @property
    def cpus_per_device(self) -> int:
        """CPU cores of one rank."""

    @property
    def devices_per_node(self) -> int | None:
        """What ``strategy.devices=auto`` means, and the widest cell that one host can run."""


@dataclass(frozen=True)
class Demand:
    """What one cell asks for."""

    width: int
    """Devices of the whole cell."""
    nodes: int
    gpus_per_node: int
    cpus_per_device: int

    @property
    def devices_per_node(self) -> int:
        return self.width // self.nodes

    @property
    def cpus_per_node(self) -> int:
        return self.cpus_per_device * self.devices_per_node

    def __str__(self) -> str:
        kind = "GPU" if self.gpus_per_node else "CPU device"
        where = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.width} {plural(self.width, kind)}{where}"


def demand(cell: CellConfig, capacity: Capacity) -> Demand:
    """Raises :class:`HostMismatch` where the cell's width or node count cannot be told."""
    width = cell.strategy.devices
    if width == "auto":
        if capacity.devices_per_node is None:
            raise HostMismatch(
                f"strategy={cell.strategy.name} with devices=auto is all of a host, which is not "
                "known before the cluster has chosen one; set strategy.devices or "
                "hydra.launcher.devices_per_node"
            )
        width = capacity.devices_per_node
        if width < 2:
            raise HostMismatch(
                f"strategy={cell.strategy.name} with devices=auto needs two devices or more; found "
                f"hydra.launcher.devices_per_node={width}: use strategy=single"
            )
    nodes = math.ceil(width / (capacity.devices_per_node or width))
    if width % nodes:
        raise HostMismatch(
            f"strategy.devices: found {width}, which {nodes} nodes of "
            f"{capacity.devices_per_node} devices cannot share equally; allowed: a multiple of it"
        )
    try:
        cell.per_device_batch_size(width)
    except ConfigError as error:
        raise HostMismatch(str(error)) from None
    gpus, cores = per_device(cell, capacity)
    return Demand(width, nodes, width // nodes * gpus, cores)


def per_device(cell: CellConfig, capacity: Capacity) -> tuple[int, int]:
    """GPUs and CPU cores of one rank."""
    gpus: int | str = capacity.gpus_per_device
    if gpus == "auto":
        gpus = 0 if cell.hardware.kind == "cpu" else 1
    cores = cell.hardware.cores_per_device if cell.hardware.kind == "cpu" else None
    return int(gpus), cores or capacity.cpus_per_device


# What a cell needs on the host that runs it, where that is not the sweep's own.


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


# What a sweep asks of another host, and what the host answers: one line each way. Torch-free.


T = TypeVar("T")


MARK = b"scalewise: "
"""Before every answer: the interpreter's own start may print lines."""


FORWARDED = ("NCCL_", "GLOO_", "TORCH_")
"""Variables of the sweep's environment that mean the same on every host."""


@dataclass(frozen=True)
class Order:
    """One host's part of one try at one cell."""

    folder: str
    cell: PlannedCell
    wanted: Demand
    origin: Origin
    key: str
    """Of this try: by it the hosts of a cell find each other, and no others."""
    index: int = 0
    """Of this host among those of the cell."""
    address: str = ""
    """Where the other hosts reach this one; needed of the first of several."""
    co_tenants: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    lease_s: float = 60.0
    """How long the devices may stay locked by someone else."""


def to_line(message: object) -> bytes:
    return json.dumps(to_plain(message)).encode() + b"\n"


def from_line(cls: type[T], line: bytes) -> T:
    """Raises DataError where the line is not a ``cls``."""
    return build(cls, json.loads(line))


def answer_in(output: bytes) -> bytes | None:
    """What a host said; None while its answer is not whole."""
    _, mark, rest = output.rpartition(MARK)
    line, end, _ = rest.partition(b"\n")
    return line if mark and end else None


def forwarded(environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """What another host gets of ``environment``, and ``hydra.launcher.env`` on top."""
    kept = {k: v for k, v in environment.items() if k.startswith(FORWARDED)}
    return {**kept, **own}


SILENCE_S = 30.0
"""The sweep says something at least every few seconds. A connection that was cut may never close:
without this limit, a cell would go on here while the sweep starts it anew elsewhere."""


class LinkedWakeup(Wakeup):
    """Also takes a sweep for gone that has been silent for too long."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = time.monotonic()

    def wait(self, timeout_s: float) -> None:
        super().wait(timeout_s)
        if time.monotonic() - self._heard > SILENCE_S:
            self.sweep_gone = True

    def _hear(self) -> None:
        super()._hear()
        self._heard = time.monotonic()

    def wanted(self) -> bool:
        """Whether anybody still waits for this cell; looks without waiting."""
        self.wait(0)
        return not (self.sweep_gone or self.stop_asked)


def main() -> int:
    """Exit status 0 if the cell is done."""
    become_subreaper()
    wakeup = LinkedWakeup()
    line, told = read_line()
    wakeup.tell(told)
    outcome = run(from_line(Order, line), wakeup)
    _answer(outcome)
    return 0 if outcome.state == "done" else 1


def _answer(message: object) -> None:
    sys.stdout.buffer.write(b"\n" + MARK + to_line(message))
    sys.stdout.buffer.flush()


def run(order: Order, wakeup: LinkedWakeup) -> Outcome:
    """Train this host's part of the cell."""
    os.environ.update(order.environment)
    folder = CellFolder(order.folder)
    try:
        cell = build_cell(folder.load_config())
        host = granted(cell, order.wanted)
        width = order.wanted.devices_per_node
        with leased(host, width, order.lease_s, wakeup.wanted) as lease:
            nodes = _meet_others(folder, order, wakeup)
            settings = settings_of(cell, order.wanted.width)
            job = _job(order, settings, lease, host, nodes)
            return Supervisor(job, wakeup, locks=lease.descriptors).run()
    except (HostMismatch, NodesApart) as mismatch:
        record(folder, str(mismatch))
        return Outcome("failed", str(mismatch))
    except RecordError as error:
        return Outcome(
            "failed",
            f"this host does not see the cell's folder ({error}); allowed: a hydra.sweep.dir on a "
            "file system that all hosts share",
        )


def _meet_others(folder: CellFolder, order: Order, wakeup: LinkedWakeup) -> Nodes | None:
    """None for a cell on one host. Raises :class:`NodesApart`."""
    count = order.wanted.nodes
    if count == 1:
        return None
    if order.index > 0:
        return meet(folder, order.key, order.index, count, wakeup.wanted)
    return announce(folder, order.key, count, order.address, free_port("0.0.0.0"))


def _job(order: Order, settings: Settings, lease: Lease, host: Host, nodes: Nodes | None) -> Job:
    return Job(
        folder=order.folder,
        cell=order.cell,
        settings=settings,
        slots=lease.slots,
        cwd=order.origin.cwd,
        python_path=order.origin.python_path,
        command=order.origin.command,
        driver=host.driver,
        topology=host.topology,
        co_tenants=order.co_tenants,
        nodes=nodes,
        samples_devices=True,
    )


if __name__ == "__main__":
    sys.exit(main())

"""One host's part of a cell that SLURM or Ray runs: its demand, its devices, its supervisor."""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from scalewise.config import CellConfig, ConfigError, build_cell
from scalewise.gpu import Host, HostMismatch, Lease, Leases, discover
from scalewise.host import free_port, plural
from scalewise.records import Attempt, CellFolder, PlannedCell
from scalewise.supervisor import Job, Nodes, Origin, Outcome, announce, meet, supervisor_command
from scalewise.sweep import attempt_until_now, settings_of

_LEASE_S = 60.0
"""How long a device may stay locked by an earlier job that is just ending."""
_LOOK_S = 0.5


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
    on_cpu = cell.hardware.kind == "cpu"
    gpus = capacity.gpus_per_device
    if gpus == "auto":
        gpus = 0 if on_cpu else 1
    cores = cell.hardware.cores_per_device if on_cpu else None
    return gpus, cores or capacity.cpus_per_device


@dataclass(frozen=True)
class Order:
    """One host's part of one try at one cell. It travels pickled: plain data only."""

    folder: str
    cell: PlannedCell
    wanted: Demand
    origin: Origin
    key: str = ""
    """Of this try: by it the hosts of a cell find each other, and no others."""
    index: int = 0
    """Of this host among those of the cell."""
    address: str = ""
    """Where the other hosts reach this one; needed of the first of several."""
    co_tenants: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def train_here(
    order: Order,
    supervise: Callable[[Job, tuple[int, ...]], Outcome],
    go_on: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Lease devices, meet the cell's other hosts, and train this host's part of the cell.

    Raises :class:`HostMismatch`, ``NodesApart``, or RecordError where the folder is not seen.

    Args:
        order: what to train.
        supervise: runs the supervisor of a job, which inherits the locks with these descriptors.
        go_on: whether anybody still waits for the cell.
    """
    folder = CellFolder(order.folder)
    cell = build_cell(folder.load_config())
    host = granted(cell, order.wanted)
    with leased(host, order.wanted.devices_per_node, go_on) as lease:
        job = Job(
            folder=order.folder,
            cell=order.cell,
            settings=settings_of(cell, order.wanted.width),
            slots=lease.slots,
            cwd=order.origin.cwd,
            python_path=order.origin.python_path,
            command=order.origin.command,
            driver=host.driver,
            topology=host.topology,
            co_tenants=order.co_tenants,
            nodes=_meet_others(folder, order, go_on),
        )
        return supervise(job, lease.descriptors)


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
def leased(host: Host, width: int, go_on: Callable[[], bool] = lambda: True) -> Iterator[Lease]:
    """Devices that no other cell of this user on this host has.

    Raises :class:`HostMismatch` after a minute, or when ``go_on`` says that nobody waits.
    """
    leases = Leases()
    deadline = time.monotonic() + _LEASE_S
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


def _meet_others(folder: CellFolder, order: Order, go_on: Callable[[], bool]) -> Nodes | None:
    """None for a cell on one host. Raises ``NodesApart``."""
    count = order.wanted.nodes
    if count == 1:
        return None
    if order.index > 0:
        return meet(folder, order.key, order.index, count, go_on)
    return announce(folder, order.key, count, order.address, free_port("0.0.0.0"))


class HeldSupervisor:
    """A supervisor as a child of this process, which holds its liveness pipe.

    The supervisor ends its cell when that closes: by :meth:`stop`, or because this process is gone.

    Args:
        job: what it supervises.
        locks: descriptors that it and its ranks inherit.
        options: of ``subprocess.Popen``.
    """

    def __init__(self, job: Job, locks: tuple[int, ...], **options: Any) -> None:
        number = job.nodes.index if job.nodes is not None and job.nodes.index > 0 else ""
        self._errors = Path(job.folder) / f"supervisor{number}.err"
        self._lock = threading.Lock()
        with self._errors.open("wb") as stderr:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                supervisor_command(locks),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                pass_fds=locks,
                **options,
            )
        self.tell(job.to_line())

    def tell(self, line: bytes) -> None:
        """Write a line to its standard input, unless it has ended or was told to."""
        assert self.process.stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def stop(self) -> None:
        """Have it end and record its part."""
        assert self.process.stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def outcome(self) -> Outcome:
        """Wait for its answer. Where it died without one, nothing ``is_recorded``."""
        assert self.process.stdout is not None
        answer = self.process.stdout.read()
        status = self.process.wait()
        self.process.stdout.close()
        self.stop()
        if answer.endswith(b"\n"):
            return Outcome.from_line(answer)
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited {status}"
        message = f"the supervisor {how}; see {self._errors.name}"
        return Outcome("failed", message, cause="supervisor", is_recorded=False)


def result_of(folder: CellFolder) -> tuple[Outcome, float]:
    """How a cell that is done ended, and the seconds it took."""
    return Outcome("done"), folder.load_result().took_s


def attempt_since(folder: CellFolder, first: int) -> Attempt | None:
    """The last attempt with a number of ``first`` or more."""
    attempts = [attempt for attempt in folder.attempts() if attempt.number >= first]
    return attempts[-1] if attempts else None


def record(
    folder: CellFolder, message: str, cause: Literal["host", "supervisor", "interrupted"] = "host"
) -> None:
    """Record that a cell never got as far as to train on this host, or lost its supervisor."""
    outcome: Literal["failed", "interrupted"] = (
        "interrupted" if cause == "interrupted" else "failed"
    )
    folder.save_attempt(attempt_until_now(folder, outcome, cause, message))

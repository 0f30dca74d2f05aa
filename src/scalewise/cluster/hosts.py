"""One host's part of a cell that SLURM or Ray runs: its demand, its devices, its supervisor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import PositiveInt

from scalewise.config import CellConfig, ConfigError, build_cell
from scalewise.gpu import Host, HostMismatch, Lease, Leases, discover
from scalewise.host import free_port, plural
from scalewise.records import CellFolder, Ending, PlannedCell
from scalewise.supervisor import Job, Origin, announce, meet
from scalewise.sweep import LauncherConfig, settings_of

_LEASE_S = 60.0
"""How long a device may stay locked by an earlier job that is just ending."""
_LOOK_S = 0.5


@dataclass(frozen=True)
class ClusterConfig(LauncherConfig):
    """The keys of ``hydra.launcher`` that SLURM and Ray have in common."""

    gpus_per_device: Literal[0, 1, "auto"] = "auto"
    """1, or 0 for nodes without GPUs; ``auto`` is 0 with a CPU profile and 1 with any other."""
    cpus_per_device: PositiveInt = 1
    """CPU cores of one rank; on CPU nodes this is the device, unless the profile says otherwise."""
    devices_per_node: PositiveInt | None = None
    """The meaning of ``strategy.devices=auto``, and the widest cell that one node can run."""


@dataclass(frozen=True)
class ClusterDemand:
    width: int
    """Devices of the whole cell; orders and submissions are stored with this name."""
    nodes: int
    gpus_per_node: int
    cpus_per_device: int

    @property
    def world_size(self) -> int:
        return self.width

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


def demand(cell: CellConfig, capacity: ClusterConfig) -> ClusterDemand:
    """Raises :class:`HostMismatch` where its number of devices or nodes cannot be known."""
    world_size = cell.strategy.devices
    if world_size == "auto":
        if capacity.devices_per_node is None:
            raise HostMismatch(
                f"strategy={cell.strategy.name} with devices=auto is all of a host, which is not "
                "known before the cluster has chosen one; set strategy.devices or "
                "hydra.launcher.devices_per_node"
            )
        world_size = capacity.devices_per_node
        if world_size < 2:
            raise HostMismatch(
                f"strategy={cell.strategy.name} with devices=auto needs two devices or more; found "
                f"hydra.launcher.devices_per_node={world_size}: use strategy=single"
            )
    nodes = math.ceil(world_size / (capacity.devices_per_node or world_size))
    if world_size % nodes:
        raise HostMismatch(
            f"strategy.devices: found {world_size}, which {nodes} nodes of "
            f"{capacity.devices_per_node} devices cannot share equally; allowed: a multiple of it"
        )
    try:
        cell.per_device_batch_size(world_size)
    except ConfigError as error:
        raise HostMismatch(str(error)) from None
    gpus, cores = per_device(cell, capacity)
    return ClusterDemand(world_size, nodes, world_size // nodes * gpus, cores)


def per_device(cell: CellConfig, capacity: ClusterConfig) -> tuple[int, int]:
    """GPUs and CPU cores of one rank."""
    on_cpu = cell.hardware.kind == "cpu"
    gpus = capacity.gpus_per_device
    if gpus == "auto":
        gpus = 0 if on_cpu else 1
    return gpus, (cell.hardware.cores_per_device if on_cpu else None) or capacity.cpus_per_device


@dataclass(frozen=True)
class Order:
    """One host's part of one try at one cell. It travels pickled: plain data only."""

    folder: str
    cell: PlannedCell
    wanted: ClusterDemand
    origin: Origin
    key: str = ""
    """Names this try: by it the hosts of a cell find each other, and no others."""
    index: int = 0
    """Index of this host among those of the cell."""
    address: str = ""
    """Where the other hosts reach this one; needed of the first of several."""
    co_tenants: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def train_here(
    order: Order,
    supervise: Callable[[Job, tuple[int, ...]], Ending],
    go_on: Callable[[], bool] = lambda: True,
) -> Ending:
    """Lease devices, meet the cell's other hosts, and train this host's part of the cell.

    Raises :class:`HostMismatch`, ``NodesApart``, or RecordError where the folder is not seen.
    ``supervise`` runs the supervisor of a job, which inherits the locks with these descriptors;
    ``go_on`` says whether anybody still waits for the cell.
    """
    folder = CellFolder(order.folder)
    cell = build_cell(folder.load_config())
    host = granted(cell, order.wanted)
    with leased(host, order.wanted.devices_per_node, go_on) as lease:
        settings, path = settings_of(cell, order.wanted.world_size), str(folder.path.resolve())
        count, nodes = order.wanted.nodes, None
        if count > 1 and order.index > 0:
            nodes = meet(folder, order.key, order.index, count, go_on)
        elif count > 1:
            nodes = announce(folder, order.key, count, order.address, free_port())
        job = Job(path, order.cell, settings, lease.slots, order.origin, host.driver, host.topology,
                  order.co_tenants, nodes)  # fmt: skip
        return supervise(job, lease.descriptors)


def granted(cell: CellConfig, wanted: ClusterDemand) -> Host:
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


def leased(host: Host, world_size: int, go_on: Callable[[], bool] = lambda: True) -> Lease:
    """Devices that no other cell of this user on this host has.

    Raises :class:`HostMismatch` after a minute, or when ``go_on`` says that nobody waits.
    """
    leases = Leases()
    deadline = time.monotonic() + _LEASE_S
    while (lease := leases.try_lease(host.slots, world_size)) is None:
        if not go_on():
            raise HostMismatch(f"stopped while it waited for {world_size} devices of this host")
        if time.monotonic() > deadline:
            raise HostMismatch(
                f"{world_size} devices were granted here, but {leases.holder} has them; end it"
            )
        time.sleep(_LOOK_S)
    return lease


def attempt_since(folder: CellFolder, first: int) -> Ending | None:
    """The last attempt with a number of ``first`` or more."""
    attempts = [one for one in folder.attempts() if one.number is not None and one.number >= first]
    return attempts[-1] if attempts else None

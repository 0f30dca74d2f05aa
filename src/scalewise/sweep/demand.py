"""What a cell asks of a cluster, whichever way the cluster is reached."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from scalewise.config import CellConfig, ConfigError
from scalewise.plurals import plural
from scalewise.sweep.lease import HostMismatch


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

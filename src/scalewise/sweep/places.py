"""Where the cells of a sweep would run: on this host, or on a cluster that nobody has asked yet."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.hardware import HardwareConfig
from scalewise.sweep.lease import Host, HostMismatch, discover, width
from scalewise.sweep.plan import Cell


@dataclass(frozen=True)
class Place:
    """Where a cell would run."""

    width: int | None
    """Devices; None where only the host that runs it will tell."""
    refusal: str = ""
    """Why it cannot run here; empty if it can."""


class ThisHost:
    """Where cells would run here."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host | HostMismatch] = {}
        self._asked: dict[int, tuple[HardwareConfig, Host | HostMismatch]] = {}
        """By identity: thousands of cells share one, and to write it out takes its time."""

    def __call__(self, cell: Cell) -> Place:
        hardware = cell.request.cell.hardware
        if id(hardware) not in self._asked:
            self._asked[id(hardware)] = (hardware, self._discovered(hardware))
        host = self._asked[id(hardware)][1]
        if isinstance(host, HostMismatch):
            return Place(None, str(host))
        try:
            return Place(width(cell.request.cell, len(host.slots)))
        except HostMismatch as mismatch:
            return Place(None, str(mismatch))

    def _discovered(self, hardware: HardwareConfig) -> Host | HostMismatch:
        key = repr(hardware)
        if key not in self._hosts:
            try:
                self._hosts[key] = discover(hardware)
            except HostMismatch as mismatch:
                self._hosts[key] = mismatch
        return self._hosts[key]

    def slots(self) -> int:
        """The most devices that any cell asked about so far could get."""
        return max((len(h.slots) for h in self._hosts.values() if isinstance(h, Host)), default=1)

    def models(self) -> set[str]:
        """The devices of those hosts."""
        hosts = [host for host in self._hosts.values() if isinstance(host, Host)]
        return {slot.name for host in hosts for slot in host.slots}


class Cluster(ThisHost):
    """Where cells would run on a cluster: what they ask for."""

    def __call__(self, cell: Cell) -> Place:
        return Place(cell.planned.devices)

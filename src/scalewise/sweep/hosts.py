"""The devices of this host, by hardware profile, each looked for once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scalewise.hardware import HardwareConfig
from scalewise.sweep.lease import Host, HostMismatch, discover


class Hosts:
    """What this host has for each profile that a sweep asks for.

    Args:
        note: told of a profile's warnings, once each.
    """

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self._note = note
        self._found: dict[str, Host | HostMismatch] = {}

    def of(self, hardware: HardwareConfig) -> Host:
        """Raises :class:`HostMismatch` where the profile asks for what is not there."""
        key = repr(hardware)
        if key not in self._found:
            try:
                self._found[key] = host = discover(hardware)
                others = [f"GPU {gpu.index} ({gpu.name})" for gpu in host.left_out]
                if others:
                    self._note(f"hardware={hardware.name} leaves out {', '.join(others)}")
            except HostMismatch as mismatch:
                self._found[key] = mismatch
            for warning in hardware.warnings():
                self._note(f"hardware={hardware.name}: {warning}")
        found = self._found[key]
        if isinstance(found, HostMismatch):
            raise found
        return found

    def known(self) -> Iterator[Host]:
        """Those that were found so far."""
        return (host for host in self._found.values() if isinstance(host, Host))

    def slots(self) -> int | None:
        """The most devices that any profile has here; None before one was found."""
        return max((len(host.slots) for host in self.known()), default=None)

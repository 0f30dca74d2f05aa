"""Which network interface leads to another host."""

from __future__ import annotations

import socket


def interface_towards(address: str) -> str | None:
    """The network interface that leads to ``address``; None where none does.

    gloo would otherwise listen where this host's own name points to, which on many hosts is the
    loopback interface: there, no other host finds it.
    """
    import psutil  # only a cell on several hosts asks

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing: the kernel only chooses the route
            own = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == own for known in addresses):
            return name
    return None

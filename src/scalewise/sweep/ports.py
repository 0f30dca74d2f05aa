"""Free TCP ports."""

from __future__ import annotations

import socket


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on right now: of the loopback interface, or of ``address``."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port

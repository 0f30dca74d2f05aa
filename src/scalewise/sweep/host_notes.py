"""What a host does otherwise than a cell's configuration means, without refusing the cell."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.config import CellConfig
from scalewise.sweep.lease import Host


def differs_here(cell: CellConfig, devices: int, host: Host) -> Iterator[str]:
    """A line for each such thing, for a cell that takes ``devices`` of ``host``."""
    expected = cell.sweep.expected_devices
    if cell.strategy.devices == "auto" and expected not in (None, devices):
        yield f"made for {expected} devices; this host has {devices}, and all take part"
    if cell.precision.name == "tf32" and all(slot.kind == "cpu" for slot in host.slots):
        yield "precision=tf32: a CPU has no TF32 and computes in full fp32"
    if cell.precision.fp8 and not cell.execution.compiles:
        yield (
            "precision=fp8: every cast to fp8 is kernels of its own in eager steps, which can "
            "cost more than fp8 saves; execution=compile fuses them"
        )

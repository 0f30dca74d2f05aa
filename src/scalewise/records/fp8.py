"""Which layers of a rank's model multiplied in fp8."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fp8Record:
    """The linear layers of one rank, read off the live module after training."""

    fp8_layers: tuple[str, ...]
    """Names of those that multiplied in fp8, forward and backward."""
    other_layers: tuple[str, ...]
    """Names of those that stayed in bf16: a width that 16 does not divide, or a class of their
    own."""

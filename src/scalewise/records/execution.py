"""How the steps of one rank were really executed, as opposed to what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ExecutionRecord:
    """None is "not known" or "does not apply", never zero."""

    requested: str
    """``eager``, ``compile`` or ``cudagraph``."""
    ran: str
    """The same, after a fall-back: what the timed steps did."""
    fell_back_because: str | None = None
    """Why ``ran`` is not ``requested``; the same on every rank."""
    prepare_s: float | None = None
    """Seconds that compiling or capturing took, steps run meanwhile included."""
    prepare_steps: int = 0
    """Steps that were taken before the way of executing was settled, all flagged as warm-up."""
    steps_per_batch: int = 1
    graphs: int | None = None
    """Graphs captured or compiled; None for eager steps."""
    graph_breaks: int | None = None
    """``compile``: places where the compiler handed back to Python."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Settings that were in force: activation checkpointing, memory cap, ..."""

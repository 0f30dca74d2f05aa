"""What a sweep asks of another host, and what the host answers: one line each way. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from scalewise.records import PlannedCell
from scalewise.sweep.demand import Demand
from scalewise.sweep.job import Origin
from scalewise.validation import build, to_plain

T = TypeVar("T")

MARK = b"scalewise: "
"""Before every answer: the interpreter's own start may print lines."""

FORWARDED = ("NCCL_", "GLOO_", "TORCH_")
"""Variables of the sweep's environment that mean the same on every host."""


@dataclass(frozen=True)
class Order:
    """One host's part of one try at one cell."""

    folder: str
    cell: PlannedCell
    wanted: Demand
    origin: Origin
    key: str
    """Of this try: by it the hosts of a cell find each other, and no others."""
    index: int = 0
    """Of this host among those of the cell."""
    address: str = ""
    """Where the other hosts reach this one; needed of the first of several."""
    co_tenants: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    lease_s: float = 60.0
    """How long the devices may stay locked by someone else."""


def to_line(message: object) -> bytes:
    return json.dumps(to_plain(message)).encode() + b"\n"


def from_line(cls: type[T], line: bytes) -> T:
    """Raises DataError where the line is not a ``cls``."""
    return build(cls, json.loads(line))


def answer_in(output: bytes) -> bytes | None:
    """What a host said; None while its answer is not whole."""
    _, mark, rest = output.rpartition(MARK)
    line, end, _ = rest.partition(b"\n")
    return line if mark and end else None


def forwarded(environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """What another host gets of ``environment``, and ``hydra.launcher.env`` on top."""
    kept = {k: v for k, v in environment.items() if k.startswith(FORWARDED)}
    return {**kept, **own}

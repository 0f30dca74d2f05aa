"""What the sweep tells a supervisor, and what the supervisor answers. Torch-free."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scalewise.records import Cause, DeviceInfo, PlannedCell
from scalewise.validation import build, to_plain


class CellFailed(RuntimeError):  # noqa: N818 - what Hydra's sweepers see of a cell without result
    """A cell ended without a result, or without the objective that was asked for."""


@dataclass(frozen=True)
class Nodes:
    """Where one host stands among several that run a cell together."""

    index: int
    count: int
    address: str
    """Of the first host, where rank 0 listens."""
    port: int


@dataclass(frozen=True)
class Origin:
    """Where and how a sweep was typed: its cells run as if they stood there."""

    cwd: str
    """Relative paths in the configuration mean this folder."""
    python_path: tuple[str, ...]
    """Where the sweep's process found its modules, the user's own among them."""
    command: tuple[str, ...]

    @classmethod
    def of_this_process(cls) -> Origin:
        path = tuple(str(Path(p or ".").resolve()) for p in sys.path)
        return cls(str(Path.cwd()), path, tuple(sys.argv))


@dataclass(frozen=True)
class Job:
    """One attempt at one cell."""

    folder: str
    cell: PlannedCell
    slots: tuple[DeviceInfo, ...]
    """The leased devices, one a rank of this host."""
    cwd: str
    """Where the user started the sweep: relative paths in the configuration mean this folder."""
    python_path: tuple[str, ...]
    """Where the sweep's process found its modules, the user's own among them."""
    command: tuple[str, ...]
    driver: str | None = None
    topology: Mapping[str, str] = field(default_factory=dict)
    co_tenants: tuple[str, ...] = ()
    nodes: Nodes | None = None
    """None for a cell on one host."""

    @property
    def world_size(self) -> int:
        """Ranks of the cell on all hosts, which have equally many."""
        return len(self.slots) * (1 if self.nodes is None else self.nodes.count)

    @property
    def first_rank(self) -> int:
        """Of this host."""
        return 0 if self.nodes is None else self.nodes.index * len(self.slots)

    def to_line(self) -> bytes:
        return json.dumps(to_plain(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Job:
        return build(cls, json.loads(line))


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    state: Literal["done", "failed", "skipped", "interrupted", "unstarted"]
    """``unstarted``: left for a later run of the sweep; no try was made."""
    message: str = ""
    """One line; of a cell that is done, why it has no objective."""
    objective: float | None = None
    global_samples_per_s: float | None = None
    cause: Cause | None = None
    """Of a try that failed; None where nobody could tell."""
    is_recorded: bool = True
    """False where the cell's folder could not take how it ended."""

    def to_line(self) -> bytes:
        return json.dumps(to_plain(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Outcome:
        return build(cls, json.loads(line))

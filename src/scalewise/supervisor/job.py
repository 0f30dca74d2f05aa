"""The job that a sweep hands to a supervisor, and the answer."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from scalewise.records import DeviceInfo, PlannedCell, build, parse_json, redacted_words, to_plain


def to_line(value: Any) -> bytes:
    """A dataclass as the line of JSON in which it travels between two processes."""
    return json.dumps(to_plain(value)).encode() + b"\n"


T = TypeVar("T")


def from_line(kind: type[T], line: bytes) -> T:
    """What :func:`to_line` was given."""
    return build(kind, parse_json(line))


class CellFailed(RuntimeError):  # noqa: N818 - what Hydra's sweepers see of a cell without result
    """A cell ended without a result, or without the objective that was requested."""


def supervisor_command(locks: Sequence[int]) -> list[str]:
    """The command of a supervisor that inherits the descriptors ``locks``."""
    # -P: a queue.py where the user stands must not replace the library's.
    return [sys.executable, "-P", "-m", "scalewise.supervisor.supervisor", *map(str, locks)]


@dataclass(frozen=True)
class Nodes:
    """Where one host stands among several that run a cell together."""

    index: int
    count: int
    address: str
    """Address of the first host, where rank 0 listens."""
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
        return cls(str(Path.cwd()), path, redacted_words(sys.argv))  # jobs of SLURM are files


@dataclass(frozen=True)
class Settings:
    """The part of a cell's configuration that its supervisor needs: it builds none itself."""

    strategy: str
    scaling: Literal["strong", "weak"]
    one_model: bool
    """Whether all ranks train one model."""
    batch_sizes: tuple[int, int] | None
    """Samples of a step as requested, of the largest rank and of all; None where the
    strategy cannot share them among the devices, which the ranks say."""
    environment: Mapping[str, str]
    """Variables of every rank, by hardware, execution and ``deterministic``."""
    timeout_s: float | None
    hang_timeout_s: float
    start_timeout_s: float
    collective_timeout_s: float
    grace_s: float
    wrap: str | None
    sample_every_s: float | None
    """Seconds between two samples of the devices; None for no samples."""
    seed_format: bool
    """Whether they are written in the earlier GPU monitor's formats too."""
    memory_advice: str
    """Advice for less memory, in words; empty for none."""
    script: tuple[str, ...] = ()
    """The command of each rank where it is a script of the user's; empty for our own program."""
    rehearsed_ranks: int | None = None
    """Among how many ranks a script is told to be; None: those that there are."""


@dataclass(frozen=True)
class Job:
    folder: str
    cell: PlannedCell
    settings: Settings
    slots: tuple[DeviceInfo, ...]
    """The leased devices, one a rank of this host."""
    origin: Origin
    driver: str | None = None
    topology: Mapping[str, str] = field(default_factory=dict)
    co_tenants: tuple[str, ...] = ()
    nodes: Nodes | None = None
    """None for a cell on one host."""
    not_forked: str | None = None
    """Why its processes are fresh, where forks were thought of."""

    @property
    def world_size(self) -> int:
        """Ranks of the cell on all hosts, which have equally many."""
        return len(self.slots) * (1 if self.nodes is None else self.nodes.count)

    @property
    def errors(self) -> Path:
        """File of its supervisor's standard error; a further host has one of its own."""
        number = self.nodes.index if self.nodes is not None and self.nodes.index > 0 else ""
        return Path(self.folder) / f"supervisor{number}.err"

    @property
    def first_rank(self) -> int:
        return 0 if self.nodes is None else self.nodes.index * len(self.slots)


def read_line() -> bytes:
    """The first line of standard input: nothing follows it."""
    read = b""
    while b"\n" not in read:
        part = os.read(0, 65536)
        if not part:
            raise SystemExit("supervisor: standard input closed before the job was read")
        read += part
    return read


class Wakeup:
    """Waits for a child to end, a SIGTERM, the end of standard input, or a time-out."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's to handle
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.stop_asked = False
        self.sweep_gone = False

    def wait(self, timeout_s: float) -> None:
        watched = [self._read] if self.sweep_gone else [self._read, 0]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if self._read in ready:
            os.read(self._read, 4096)
        if 0 in ready:
            self.sweep_gone = not os.read(0, 4096)

    def _stop(self, number: int, frame: object) -> None:
        self.stop_asked = True

"""What ``hydra/launcher=ssh`` may be told: hosts that nobody schedules, reached by a command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scalewise.config import ConfigError
from scalewise.sweep.demand import require
from scalewise.typed import DataError, build

CONNECT = (
    "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 "
    "-o ServerAliveCountMax=3 {host} {command}"
)

BEGUN = "scalewise-begins"
"""A line on standard error: what stands before it was said by a login shell."""


@dataclass(frozen=True)
class SshConfig:
    """The config group ``hydra/launcher``, option ``ssh``."""

    hosts: tuple[str, ...] = ()
    """Names that ``connect`` knows. ``name:address`` where the other hosts reach it otherwise."""
    policy: Literal["exclusive", "packed"] = "exclusive"
    """``exclusive``: each cell has its hosts to itself; ``packed``: cells share them."""
    wrap: str | None = None
    """Command around each rank's own: see :mod:`scalewise.wrap`."""
    connect: str = CONNECT
    """What runs ``{command}``, one line of shell, on ``{host}``, with its standard streams."""
    python: str = sys.executable
    """The interpreter on the hosts, with scalewise installed."""
    devices_per_node: int | None = None
    """The widest cell that one host is to run; null: as many devices as the smallest host has."""
    cpus_per_device: int = 1
    """CPU cores of one rank with ``hardware=cpu``, unless the profile says otherwise."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for every host, beside NCCL_*, GLOO_* and TORCH_*, which go along by themselves."""
    gpus_per_device: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        names = [host_name(host) for host in self.hosts]
        require("hosts", list(self.hosts), bool(names), "one host or more: [node1,node2]")
        require("hosts", list(self.hosts), len(set(names)) == len(names), "each host once")
        wide, gpus = self.devices_per_node, self.gpus_per_device
        require("devices_per_node", wide, wide is None or wide >= 1, "at least 1, or null")
        require("cpus_per_device", self.cpus_per_device, self.cpus_per_device >= 1, "at least 1")
        require("gpus_per_device", gpus, gpus in ("auto", 0, 1), "0 | 1 | auto")
        present = "{host}" in self.connect and "{command}" in self.connect
        require("connect", self.connect, present, "a command with {host} and {command}")

    def reach(self, host: str, command: Sequence[str], python_path: Sequence[str]) -> list[str]:
        """The command that runs ``command`` on ``host``; ``{command}`` becomes one argument.

        A shell waits there for what it runs: ssh itself ends with 255, as if the connection had
        broken, where a signal ends its command.
        """
        path = ":".join(python_path)
        run = f"env PYTHONPATH={shlex.quote(path)} {shlex.join(command)}"
        line = f"echo {BEGUN} >&2; {run}; exit $?"
        text = f"exec sh -c {shlex.quote(line)}"
        return [
            word.replace("{host}", host).replace("{command}", text)
            for word in shlex.split(self.connect)
        ]


def last_said(errors: str) -> str:
    """Why a command ended on a host, by its standard error: the last line; empty for silence."""
    lines = errors.rpartition(f"{BEGUN}\n")[2].strip().splitlines()
    return lines[-1] if lines else ""


def host_name(host: str) -> str:
    return host.partition(":")[0]


def host_address(host: str) -> str:
    """Where the other hosts reach ``host``: what is behind the colon, or its name without user."""
    name, _, address = host.partition(":")
    return address or name.rpartition("@")[2]


def ssh_config(options: Mapping[str, Any]) -> SshConfig:
    """The typed ``hydra.launcher``. Raises :class:`ConfigError`."""
    try:
        return build(SshConfig, dict(options))
    except (DataError, ValueError) as error:
        raise ConfigError(f"hydra.launcher.{error}") from None

"""Two hosts on one machine: each with a network, a name and mounts of its own, joined by a cable.

Needs root, or whatever else lets a process make namespaces. The "cable" is a pair of virtual
Ethernet devices; pulling it leaves both ends as they are, as a switch that dies would.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

NAMES = ("hosta", "hostb")
ADDRESSES = ("10.77.0.1", "10.77.0.2")


@dataclass(frozen=True)
class TwoHosts:
    """Both hosts, as long as the context lasts."""

    pids: tuple[int, int]
    reach: Path
    """``reach HOST COMMAND`` runs one line of shell there."""

    def run(self, index: int, *command: str) -> str:
        enter = ["nsenter", "-t", str(self.pids[index]), "-n", "-u", "-m", *command]
        return subprocess.check_output(enter, text=True)

    def cable(self, state: str) -> None:
        """``up`` or ``down``, at the end of the second host."""
        self.run(1, "ip", "link", "set", _device(1), state)


def why_not() -> str | None:
    """Why there can be no such hosts here; None if there can."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "ip", "link", "add", "type", "veth"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"no namespaces: {tried.stderr.strip()}"


@contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Make them in ``folder``, which holds what they need."""
    table = folder / "hosts"
    lines = [f"{address} {name}" for address, name in zip(ADDRESSES, NAMES, strict=True)]
    table.write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
    with ExitStack() as stack:
        pids = [stack.enter_context(a_host(name, table)) for name in NAMES]
        ends = [(pids[i], _device(i), address) for i, address in enumerate(ADDRESSES)]
        a_cable(ends[0], ends[1])
        reach = folder / "reach"
        cases = "".join(f"  {n}) pid={pid} ;;\n" for n, pid in zip(NAMES, pids, strict=True))
        reach.write_text(
            f'#!/bin/sh\ncase "$1" in\n{cases}esac\nexec nsenter -t "$pid" -n -u -m sh -c "$2"\n'
        )
        reach.chmod(0o755)
        yield TwoHosts((pids[0], pids[1]), reach)


def a_cable(*ends: tuple[int, str, str]) -> None:
    """Join two hosts; each end is the host's process, a name for its device, and its address."""
    (first, device, _), (second, other, _) = ends
    pair = ["ip", "link", "add", device, "netns", str(first), "type", "veth"]
    subprocess.run([*pair, "peer", "name", other, "netns", str(second)], check=True)
    for pid, name, address in ends:
        ip = ["nsenter", "-t", str(pid), "-n", "ip"]
        subprocess.run([*ip, "address", "add", f"{address}/24", "dev", name], check=True)
        subprocess.run([*ip, "link", "set", name, "up"], check=True)


def _device(index: int) -> str:
    return f"scalewise{index}"


@contextmanager
def a_host(name: str, table: Path) -> Iterator[int]:
    """A process that holds the namespaces of one host; its pid."""
    script = (
        f"hostname {name} && mount --bind {table} /etc/hosts && ip link set lo up "
        "&& echo ready && exec sleep infinity"
    )
    command: Sequence[str] = ["unshare", "--net", "--uts", "--mount", "sh", "-c", script]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n", f"{name} did not come up"
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()

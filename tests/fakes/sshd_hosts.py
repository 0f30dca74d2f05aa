"""Two hosts with a real sshd each, and a third one from which sweeps are started.

    head  10.78.0.1 -- 10.78.0.2  hosta  10.77.0.1
    head  10.78.1.1 -- 10.78.1.2  hostb  10.77.0.2   (and hosta -- hostb, as in two_hosts)

Each has keys, a configuration and a home of root's of its own in a scratch folder, mounted over
nothing but ``/etc/passwd``: neither ``/etc/ssh`` nor anybody's ``~/.ssh`` is read for keys or
written to.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fakes.two_hosts import NAMES, TwoHosts, a_cable, a_host, two_hosts, why_not

NOISE = "echo welcome to $HOSTNAME\necho all jobs are watched >&2\nprintf 'no end of line'\n"
"""What the .bashrc of every host says: bash reads it for a command of ssh, too."""
_READY_S = 10.0


@dataclass(frozen=True)
class SshdHosts:
    """Both hosts and the head, as long as the context lasts."""

    hosts: TwoHosts
    head: int
    """The process that holds the head's namespaces."""
    folder: Path

    @property
    def on_head(self) -> Path:
        """Runs the command that follows it on the head, in the folder where it was typed."""
        return self.folder / "on-head"

    def home(self, name: str) -> Path:
        return self.folder / f"home-{name}"

    def connection(self, index: int, state: str) -> None:
        """``up`` or ``down``: the cable between the head and one host, at the host's end."""
        self.hosts.run(index, "ip", "link", "set", "head", state)

    def processes(self, index: int) -> dict[int, str]:
        """What runs on a host, except for its sshd and what holds its namespaces."""
        everything = self.everything(index)
        return {
            pid: line for pid, line in everything.items() if "sshd" not in line.partition(" ")[0]
        }

    def everything(self, index: int) -> dict[int, str]:
        """Command lines of all that runs on a host, except for what holds its namespaces."""
        own = Path(f"/proc/{self.hosts.pids[index]}/ns/net").readlink()
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and (entry / "ns" / "net").readlink() == own:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = command
            except OSError:
                continue  # it ended while we looked
        del found[self.hosts.pids[index]]
        return found


def why_no_sshd() -> str | None:
    """Why there can be no such hosts here; None if there can."""
    if _sshd() is None:
        return "no sshd; make cluster-test installs it on Debian"
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "no ssh or ssh-keygen"
    return why_not()


@contextmanager
def sshd_hosts(folder: Path) -> Iterator[SshdHosts]:
    """Make them in ``folder``, which holds all that they need."""
    with two_hosts(folder) as hosts, a_host("head", folder / "hosts") as head, ExitStack() as stack:
        made = SshdHosts(hosts, head, folder)
        for name, pid in zip(("head", *NAMES), (head, *hosts.pids), strict=True):
            _own_home(made, name, pid)
        made.on_head.write_text(
            f"#!/bin/sh\nexec nsenter -t {head} -n -u -m "
            """sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"\n"""
        )
        made.on_head.chmod(0o755)
        _make_key(made.home("head") / ".ssh" / "id_ed25519")
        known = []
        config = []
        for index, name in enumerate(NAMES):
            here, there = f"10.78.{index}.1", f"10.78.{index}.2"
            a_cable((head, f"to-{name}", here), (hosts.pids[index], "head", there))
            stack.enter_context(_sshd_on(made, index))
            public = (folder / f"key-{name}.pub").read_text().split()[:2]
            known.append(f"{there} {' '.join(public)}\n")
            config.append(f"Host {name}\n  HostName {there}\n  User root\n")
        ssh = made.home("head") / ".ssh"
        (ssh / "known_hosts").write_text("".join(known))
        (ssh / "config").write_text("".join(config))
        yield made


def _own_home(made: SshdHosts, name: str, pid: int) -> None:
    """ssh and sshd look up homes in the table of users, whatever HOME says."""
    home = made.home(name)
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    users = [f"root:x:0:0:root:{home}:/bin/bash", "sshd:x:103:65534::/run/sshd:/usr/sbin/nologin"]
    old = Path("/etc/passwd").read_text().splitlines()
    kept = [line for line in old if line.partition(":")[0] not in ("root", "sshd")]
    table = made.folder / f"passwd-{name}"
    table.write_text("\n".join([*users, *kept]) + "\n")
    mount = ["mount", "--bind", str(table), "/etc/passwd"]
    subprocess.run(["nsenter", "-t", str(pid), "-m", *mount], check=True)
    if name != "head":
        (home / ".bashrc").write_text(NOISE)


def _make_key(path: Path) -> None:
    quiet = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(quiet, check=True)


@contextmanager
def _sshd_on(made: SshdHosts, index: int) -> Iterator[None]:
    name, folder = NAMES[index], made.folder
    _make_key(folder / f"key-{name}")
    public = (made.home("head") / ".ssh" / "id_ed25519.pub").read_text()
    (made.home(name) / ".ssh" / "authorized_keys").write_text(public)
    config = folder / f"sshd_config-{name}"
    # A scratch folder lies below /tmp, which everybody may write to: hence no StrictModes.
    # Passwords are allowed, so that a client which may ask for one would.
    config.write_text(
        f"HostKey {folder}/key-{name}\nPidFile none\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin yes\nPasswordAuthentication yes\n"
    )
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it locks itself up
    enter = ["nsenter", "-t", str(made.hosts.pids[index]), "-n", "-u", "-m"]
    command = [*enter, str(_sshd()), "-D", "-e", "-f", str(config)]
    with (folder / f"sshd-{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        _wait_until_it_listens(made, index)
        yield
    finally:
        process.terminate()
        process.wait()
        # A session whose connection was cut does not know of it, and outlives the listener.
        for pid in made.everything(index):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _wait_until_it_listens(made: SshdHosts, index: int) -> None:
    deadline = time.monotonic() + _READY_S
    while "LISTEN" not in made.hosts.run(index, "ss", "--no-header", "--listening", "--tcp"):
        said = (made.folder / f"sshd-{NAMES[index]}.log").read_text()
        assert time.monotonic() < deadline, f"no sshd on {NAMES[index]}: {said}"
        time.sleep(0.05)


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

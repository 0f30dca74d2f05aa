"""Debian's packages of what the cluster tests run against.

python tools/debian.py sshd
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

SSHD = (("sshd", "ssh", "ssh-keygen"), ("openssh-server", "openssh-client"))
"""Programs, and the packages that hold them."""


def main(arguments: list[str]) -> int:
    if arguments != ["sshd"]:
        print(f"found {arguments}; allowed: sshd")
        return 2
    had_one = sbin("sshd") is not None
    try:
        install_missing(*SSHD)
    except SystemExit:
        print("the tests that need them are skipped")
        return 0
    if not had_one and shutil.which("systemctl") is not None:
        # Debian starts what it installs. The tests start their own, in namespaces of their own,
        # and nobody asked for one that listens on this host.
        units = ["ssh.socket", "ssh.service"]
        subprocess.run(["systemctl", "disable", "--now", *units], check=False)
    return 0


def install_missing(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Install ``packages`` where a program is missing. Exits with 2 where that cannot be."""
    missing = [name for name in programs if sbin(name) is None]
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None or os.getuid() != 0:
        print(f"{', '.join(missing)} not found; as root on Debian: {' '.join(command)}")
        raise SystemExit(2)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(command, check=True, env=quiet, stdout=subprocess.DEVNULL)
    print(f"installed {', '.join(packages)}")


def sbin(program: str) -> str | None:
    """Where a program is that an administrator's PATH would find."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which(program, path=path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

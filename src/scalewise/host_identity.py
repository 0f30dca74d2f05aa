"""Which host this is: told apart from others, and never named.

An identity says what it rests on, then a hash of that: ``mac-0123456789ab``. The first source that
can be read is taken. Older records also have ``dmi``, of the firmware, which only root may read.

==== ========================================== ====================================================
kind what is hashed                             how long, and for whom, it stays the same
==== ========================================== ====================================================
mac  addresses that the makers gave to the      until a card is exchanged; not in containers with a
     host's network cards on PCI                network of their own, which do not see the cards
gpu  UUIDs of the NVIDIA GPUs that are visible  until a GPU is exchanged; not for containers that
                                                were given different GPUs
boot the kernel's random number of this boot    until the host is started anew; for all containers
name the host's name                            as long as it is called so
==== ========================================== ====================================================

Different hosts get different identities, but for those that only ``name`` can tell, and for virtual
machines taken from one memory image. Identities of different kinds may be of one host.

Not asked is ``/etc/machine-id``: containers and copied disks carry that of the image they were made
from. Nor are addresses that hypervisors and containers make up, which begin anew on each host.
"""

from __future__ import annotations

import functools
import hashlib
import socket
from pathlib import Path

_GIVEN_BY_ITS_MAKER = "0"
"""What ``addr_assign_type`` says of an address that stands in the card."""


@functools.cache
def host_id() -> str:
    """This host, as the head of this module says: ``<kind>-<12 hexadecimal digits>``."""
    return identify(Path("/"))


def place_id() -> str:
    """This host and the name that it goes by here, hashed too.

    Containers of one host may share a cell, each with a name of its own: what they write into one
    folder must not bear the same name.
    """
    return f"{host_id()}-{_hash([socket.gethostname()])[:4]}"


def identify(root: Path) -> str:
    """The identity of the host whose ``/proc`` and ``/sys`` lie in ``root``."""
    for kind, read in _SOURCES:
        told = read(root)
        if told:
            return f"{kind}-{_hash(told)}"
    return f"name-{_hash([socket.gethostname()])}"


def _hash(told: list[str]) -> str:
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def _network_cards(root: Path) -> list[str]:
    found = []
    for card in (root / "sys/class/net").glob("*"):
        address = _read(card / "address")
        is_on_pci = (card / "device/subsystem").resolve().name == "pci"
        own = _read(card / "addr_assign_type") == _GIVEN_BY_ITS_MAKER and is_on_pci
        if own and _is_universal(address):
            found.append(address)
    return sorted(found)


def _is_universal(address: str) -> bool:
    """Whether an IEEE address is of a maker's range, in which each is given once."""
    try:
        octets = bytes.fromhex(address.replace(":", ""))
    except ValueError:
        return False
    return len(octets) == 6 and any(octets) and not octets[0] & 0b11


def _gpus(root: Path) -> list[str]:
    uuids = []
    for about in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        lines = (line.partition(":") for line in _read(about).splitlines())
        uuids += [value.strip() for name, _, value in lines if name.strip() == "GPU UUID"]
    # Of a GPU that nobody has used since the driver was loaded there are question marks.
    return [] if any("?" in uuid for uuid in uuids) else sorted(uuids)


def _boot(root: Path) -> list[str]:
    number = _read(root / "proc/sys/kernel/random/boot_id")
    return [number] if number else []


_SOURCES = (("mac", _network_cards), ("gpu", _gpus), ("boot", _boot))


def _read(path: Path) -> str:
    """The text of a file of the kernel; empty where it is not there, or not for this user."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

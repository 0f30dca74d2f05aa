"""Identity of the host, of the code and of the data of a run, as its records hold them.

A configuration names classes and files, and its id stays the same whatever they say later.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import importlib.resources
import importlib.util
import os
import re
import secrets
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from scalewise.host.limits import kernel_text

_GIVEN_BY_ITS_MAKER = "0"
"""``addr_assign_type`` of an address that stands in the card."""


@functools.cache
def host_id() -> str:
    """This host, told apart from others and never named: ``<kind>-<12 hexadecimal digits>``.

    The kind is the first of these that can be read; the digits are a hash of it.

    - ``mac``: addresses that the makers gave to the network cards on PCI. Stays until a card is
      exchanged; containers with a network of their own do not see the cards.
    - ``gpu``: UUIDs of the visible NVIDIA GPUs. Containers that were given different GPUs differ.
    - ``boot``: the kernel's random number of this boot, the same for all containers.
    - ``name``: the host's name.

    Identities of different kinds may be of one host. Not asked are ``/etc/machine-id``, which
    copied disks share, and addresses that hypervisors make up. Older records also have ``dmi``.
    """
    return identify(Path("/"))


def place_id() -> str:
    """This host and the name that it goes by here, hashed too.

    Containers of one host may share a cell, each with a name of its own: what they write into one
    folder must not bear the same name.
    """
    return f"{host_id()}-{_hash([socket.gethostname()])[:4]}"


def identify(root: Path) -> str:
    """The identity of the host whose ``/proc`` and ``/sys`` lie in ``root``."""
    boot = kernel_text(root / "proc/sys/kernel/random/boot_id")
    known = {"mac": _network_cards(root), "gpu": _gpus(root), "boot": [boot] if boot else []}
    kind, told = next(((k, t) for k, t in known.items() if t), ("name", [socket.gethostname()]))
    return f"{kind}-{_hash(told)}"


def _hash(told: list[str]) -> str:
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def _network_cards(root: Path) -> list[str]:
    found = []
    for card in (root / "sys/class/net").glob("*"):
        address = kernel_text(card / "address") or ""
        is_on_pci = (card / "device/subsystem").resolve().name == "pci"
        own = kernel_text(card / "addr_assign_type") == _GIVEN_BY_ITS_MAKER and is_on_pci
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
        lines = (line.partition(":") for line in (kernel_text(about) or "").splitlines())
        uuids += [value.strip() for name, _, value in lines if name.strip() == "GPU UUID"]
    # Of a GPU that nobody has used since the driver was loaded there are question marks.
    return [] if any("?" in uuid for uuid in uuids) else sorted(uuids)


def seal(*words: str) -> str | None:
    """A mark of ``words`` that this user alone can make: an HMAC under a key of his own.

    The key lies in ``$XDG_STATE_HOME/scalewise``, by default in ``~/.local/state``. None where it
    can neither be read nor made.
    """
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        path = state / "scalewise" / "key"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
        key = path.read_bytes()
    except (OSError, RuntimeError):  # no home, or a read-only one
        return None
    if len(key) != _KEY_BYTES:
        return None
    return hmac.new(key, "\0".join(words).encode(errors="surrogateescape"), "sha256").hexdigest()


_KEY_BYTES = 32

WORKING_DIRECTORY = "working directory"
"""Whose repository a ``code`` is of where scalewise itself runs from none."""
SOURCE_SHA256 = "source_sha256"
"""In a ``code``: hash of scalewise's own sources."""
CLASS_FILES = "class_files"
"""In a ``code``: file of each module of the user's own that was imported, to its SHA-256."""
_PACKAGE = Path(str(importlib.resources.files("scalewise")))
_NOT_OWN = (f"{_PACKAGE.parent}/", f"{sysconfig.get_path('stdlib')}/")
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def running_code(
    working_directory: Path, classes: Iterable[str] = (), search: Sequence[str] | None = None
) -> dict[str, Any]:
    """The fingerprint in :attr:`Provenance.code <scalewise.records.Provenance.code>`.

    The repository around ``working_directory`` is named only where scalewise runs from none. The
    modules of ``classes``, the user's own, are looked for in ``search``; in ``sys.path`` without.
    """
    ours = scalewise_version()
    users = {} if "commit" in ours else code_version(working_directory)
    code = {**users, "tree": WORKING_DIRECTORY, **ours} if users else ours
    files = module_files({name.rpartition(".")[0] for name in classes}, search)
    return {**code, CLASS_FILES: files} if files else code


def files_now(files: Iterable[str], search: Sequence[str] | None = None) -> dict[str, str]:
    """The ``files`` of another fingerprint's :data:`CLASS_FILES`, as they are now."""
    modules = {re.sub(r"(/__init__)?\.py$", "", file).replace("/", ".") for file in files}
    return module_files(modules, search)


def imported_modules() -> set[str]:
    """Modules of the user's own that this process has imported: neither Python's nor installed."""
    main = getattr(sys.modules["__main__"], "__spec__", None)  # python -m mine.train
    names = {*sys.modules, *([main.name] if main else [])} - {"__main__", "__mp_main__"}
    return {name for name in names if _is_own(name) and _is_own(name.partition(".")[0])}


def _is_own(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:  # a folder of packages, or the main program
        return True
    # Of thousands of modules: as text, which takes a quarter of the time of paths.
    return not file.startswith(_NOT_OWN) and _INSTALLED.isdisjoint(file.split("/"))


def code_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """How two fingerprints differ, a line each. A class file that one lacks is no difference."""
    there, here = was.get(SOURCE_SHA256), now.get(SOURCE_SHA256)
    if there != here:
        yield f"code: scalewise's sources {_short(there)} there, {_short(here)} here"
    files = now.get(CLASS_FILES, {})
    for name, told in was.get(CLASS_FILES, {}).items():
        if files.get(name, told) != told:
            yield f"code: your {name} {_short(told)} there, {_short(files[name])} here"


def _short(told: object) -> str:
    return str(told)[:10] if told else "unknown"


def module_files(modules: Iterable[str], search: Sequence[str] | None = None) -> dict[str, str]:
    """Each module's file, ``package/module.py``, to its SHA-256, without those not found."""
    found: dict[str, str] = {}
    for module in sorted(modules):
        file = _module_file(module, search)
        if file is not None:
            end = "/__init__.py" if file.name == "__init__.py" else ".py"
            found[module.replace(".", "/") + end] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _module_file(module: str, search: Sequence[str] | None) -> Path | None:
    """The source of a module, found without importing the packages around it."""
    outermost, *inner = module.split(".")
    try:
        if search is None:
            spec = importlib.util.find_spec(outermost)
        else:
            spec = PathFinder.find_spec(outermost, list(search))
    except (ImportError, ValueError):  # ValueError: a module that was made at run time
        return None
    if spec is None:
        return None
    places = [Path(folder, *inner) for folder in spec.submodule_search_locations or ()]
    files = [f for place in places for f in (place / "__init__.py", place.with_suffix(".py"))]
    if not inner and spec.origin is not None:
        files = [Path(spec.origin)]
    return next((f for f in files if f.suffix == ".py" and f.is_file()), None)


def scalewise_version(package: Path = _PACKAGE) -> dict[str, object]:
    """A hash of scalewise's sources; commit and changes of its checkout, where it runs from one.

    A package that lies in a repository which does not track it, as an environment in the user's
    own checkout does, has no commit.
    """
    return {**code_version(package, tracked="__init__.py"), SOURCE_SHA256: source_sha256(package)}


@functools.cache
def source_sha256(package: Path) -> str:
    """SHA-256 over relative paths and contents of the Python files of ``package``."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda p: p.relative_to(package).as_posix()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(package).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def code_version(folder: Path, tracked: str | None = None) -> dict[str, object]:
    """Commit of the repository around ``folder``, and how its Python files differ from it.

    It names a state to the reader, and compares nothing: a test may be edited between two runs.
    Empty where there is no repository, no git, or it does not track the file ``tracked``.
    """

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, check=True, timeout=20
        ).stdout

    try:
        commit = git("rev-parse", "HEAD").decode().strip()
        if tracked is not None:
            git("ls-files", "--error-unmatch", tracked)
        difference = git("diff", "HEAD", "--", ":(top)*.py")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {
        "commit": commit,
        "dirty": bool(difference),
        "diff_sha256": hashlib.sha256(difference).hexdigest() if difference else None,
    }


_PART_BYTES = 1 << 20
_INDEX = "index.json"
"""File of a folder of tokens: it holds the sums of its files."""


def data_identity(arguments: Mapping[str, Any], base: Path | None = None) -> dict[str, str]:
    """Fingerprints of the files that arguments of a data set name, by the argument's name.

    Texts that name a file, or a folder with an index of its own, are looked at: what belongs to any
    other folder is known to its data set alone. Relative paths mean ``base``, else the working
    directory. A file that cannot be read is left out: whoever needs it says so.
    """
    found: dict[str, str] = {}
    for name, value in sorted(arguments.items()):
        if isinstance(value, str) and value:
            with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL is in no path
                path = (base or Path()) / value
                if path.is_dir():
                    path /= _INDEX
                if path.is_file():
                    found[name] = _told_of_data(path)
    return found


def _told_of_data(path: Path) -> str:
    """Size and sum; of a file of more than three MiB, of its first, middle and last MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size <= 3 * _PART_BYTES:
            starts, part_bytes = [0], size
        else:
            starts, part_bytes = [0, (size - _PART_BYTES) // 2, size - _PART_BYTES], _PART_BYTES
        for start in starts:
            file.seek(start)
            digest.update(file.read(part_bytes))
    return f"{size} bytes (sha256 {digest.hexdigest()[:12]})"

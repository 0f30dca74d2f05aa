"""Which source the user's own classes are made of, told apart by size and content. Torch-free.

A configuration names a class, and its id stays the same whatever its source says later. Such a
source lies on PYTHONPATH as often as in a repository, so that no commit tells its state. Records
therefore hold what it was, and a report and a resumed sweep look whether it stayed so.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_RECORDED_OTHERWISE = ("scalewise.", "torch.")
"""Classes whose state a commit or a version tells."""
_MOST_ENTRIES = 2000
"""Files and folders of a package that is looked at as a whole."""
_MOST_BYTES = 4 << 20
"""Of source, likewise."""


def own_targets(plain: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of neither scalewise nor torch that a cell's resolved configuration names."""
    return tuple(sorted({t for t in _targets(plain) if not t.startswith(_RECORDED_OTHERWISE)}))


def own_code_identity(
    targets: Iterable[str], search: Sequence[str] | None = None
) -> dict[str, str]:
    """What the source of each class is now, by its dotted name.

    Args:
        targets: of classes, ``package.module.Class``.
        search: folders to look for them in; ``sys.path`` where it is None.

    All Python files of the package around a class count, or its module's alone where there is no
    package, or one as large as an installed library. What a module imports from beside it is not
    followed. Nothing is imported; a source that cannot be found or read is left out: whoever needs
    it says so.
    """
    known: dict[Path, str | None] = {}
    found: dict[str, str] = {}
    for target in targets:
        source = _source(target.rpartition(".")[0], search)
        if source is None:
            continue
        if source not in known:
            known[source] = _told(source)
        told = known[source]
        if told is not None:
            found[target] = told
    return found


def _targets(plain: object) -> Iterator[str]:
    if isinstance(plain, Mapping):
        target = plain.get("_target_")
        if isinstance(target, str) and "." in target:
            yield target
        for value in plain.values():
            yield from _targets(value)
    elif isinstance(plain, (list, tuple)):
        for value in plain:
            yield from _targets(value)


def _source(module: str, search: Sequence[str] | None) -> Path | None:
    """The folder of a small package around ``module``, else the file of the module itself."""
    top, *below = module.split(".")
    spec = outermost = _outermost(top, search)
    name = top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if outermost is not None and Path(outermost.origin or "").name == "__init__.py":
        package = Path(str(outermost.origin)).parent
        if _python_files(package) is not None:
            return package
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _outermost(name: str, search: Sequence[str] | None) -> ModuleSpec | None:
    if search is not None:
        return PathFinder.find_spec(name, list(search))
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module that was made at run time
        return None


def _python_files(package: Path) -> list[Path] | None:
    """In order; None of a package that is too large."""
    found: list[Path] = []
    entries = size = 0
    for folder, folders, files in os.walk(package):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        entries += len(folders) + len(files)
        sources = [Path(folder, name) for name in files if name.endswith(".py")]
        try:
            size += sum(source.stat().st_size for source in sources)
        except OSError:
            return None
        if entries > _MOST_ENTRIES or size > _MOST_BYTES:
            return None
        found += sources
    return sorted(found)


def _told(source: Path) -> str | None:
    """Size and sum of a module, or of all modules of a package with their names."""
    digest = hashlib.sha256()
    size = 0
    try:
        files = _python_files(source) if source.is_dir() else [source]
        for path in files or ():
            content = path.read_bytes()
            size += len(content)
            if path != source:
                digest.update(f"{path.relative_to(source).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    except OSError:
        return None
    return f"{size} bytes (sha256 {digest.hexdigest()[:12]})" if files else None

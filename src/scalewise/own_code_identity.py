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
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from scalewise.imported_beside import imported_files

_RECORDED_OTHERWISE = ("scalewise.", "torch.")
"""Classes whose state a commit or a version tells."""
_MOST_ENTRIES = 2000
"""Files and folders of a package that is looked at as a whole."""
_MOST_BYTES = 4 << 20
"""Of source, likewise."""
_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of libraries, whose versions are on record."""


@dataclass(frozen=True)
class _Source:
    """What a class is made of first of all."""

    path: Path
    """The folder of a small package around its module, else the file of the module itself."""
    name: str
    """Dotted, of the package or the module."""
    folder: Path | None
    """That holds the outermost of its packages; None of what is installed as a library."""


@dataclass(frozen=True)
class _Place:
    """Where a module was found."""

    file: Path | None
    """None of a package without an ``__init__.py``, and of what is not there."""
    folders: tuple[Path, ...] = ()
    """That may hold modules of it: none, unless it is a package."""


class _Modules:
    """Where modules lie, found without importing a package around them; each looked for once.

    Args:
        search: folders to look for them in; ``sys.path`` where it is None.
    """

    def __init__(self, search: Sequence[str] | None) -> None:
        self._search = search
        self._outermost: dict[str, ModuleSpec | None] = {}
        self._places: dict[str, _Place] = {}

    def outermost(self, name: str) -> ModuleSpec | None:
        """What the import system says of a name without dots; None if it finds nothing."""
        if name not in self._outermost:
            self._outermost[name] = _spec(name, self._search)
        return self._outermost[name]

    def file(self, module: str) -> Path | None:
        """The source of a module, by its dotted name."""
        found = self._place(module).file
        return found if found is not None and found.suffix == ".py" else None

    def _place(self, module: str) -> _Place:
        if module not in self._places:
            package, dot, name = module.rpartition(".")
            place = _below(self._place(package), name) if dot else self._outermost_place(name)
            self._places[module] = place
        return self._places[module]

    def _outermost_place(self, name: str) -> _Place:
        spec = self.outermost(name)
        if spec is None:
            return _Place(None)
        folders = spec.submodule_search_locations or ()
        file = Path(spec.origin).absolute() if spec.origin else None
        return _Place(file, tuple(Path(folder).absolute() for folder in folders))


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
    package, or one as large as an installed library; and whatever of the user's own those files
    import that lies beside the package or module, or below there. The imports are read from the
    source, so that a rank that has imported it all and a resumed sweep that has not say the same.
    Nothing is imported; a source that cannot be found or read is left out: whoever needs it says
    so.
    """
    modules = _Modules(search)
    known: dict[_Source, str | None] = {}
    found: dict[str, str] = {}
    for target in targets:
        source = _source(target.rpartition(".")[0], modules)
        if source is None:
            continue
        if source not in known:
            known[source] = _told(source, modules)
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


def _source(module: str, modules: _Modules) -> _Source | None:
    outermost = modules.outermost(module.partition(".")[0])
    folder = None if outermost is None else _folder(outermost)
    if outermost is not None and Path(outermost.origin or "").name == "__init__.py":
        package = Path(str(outermost.origin)).absolute().parent
        if _python_files(package) is not None:
            return _Source(package, outermost.name, folder)
    file = modules.file(module)
    return None if file is None else _Source(file, module, folder)


def _folder(outermost: ModuleSpec) -> Path | None:
    """What lies beside a module or package; None beside an installed one, where libraries lie."""
    places = outermost.submodule_search_locations
    if places is None and (outermost.origin is None or not outermost.origin.endswith(".py")):
        return None
    at = next(iter(places), None) if places is not None else outermost.origin
    folder = None if at is None else Path(at).absolute().parent
    return None if folder is None or _INSTALLED.intersection(folder.parts) else folder


def _below(package: _Place, name: str) -> _Place:
    """By the names of files: the import system looks for a package without an ``__init__.py``
    among what is imported."""
    for folder in package.folders:
        for file in (folder / name / "__init__.py", folder / f"{name}.py"):
            if file.is_file():
                return _Place(file, (file.parent,) if file.name == "__init__.py" else ())
    folders = (folder / name for folder in package.folders)
    return _Place(None, tuple(folder for folder in folders if folder.is_dir()))


def _spec(name: str, search: Sequence[str] | None) -> ModuleSpec | None:
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


def _told(source: _Source, modules: _Modules) -> str | None:
    """Size and sum of all files of a source, those but a module's own with their names."""
    digest = hashlib.sha256()
    size = 0
    try:
        for path, name in _files(source, modules):
            content = path.read_bytes()
            size += len(content)
            if name:
                digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
    except OSError:
        return None
    return f"{size} bytes (sha256 {digest.hexdigest()[:12]})"


def _files(source: _Source, modules: _Modules) -> Iterator[tuple[Path, str]]:
    """Each file with its name below the package, or below the folder if it lies beside; a module
    goes without."""
    own = _own_modules(source)
    for path in own:
        is_package = path != source.path
        yield path, path.relative_to(source.path).as_posix() if is_package else ""
    if source.folder is None:
        return
    folder = source.folder
    for path in imported_files(own, lambda name: _beside(name, folder, modules)) or ():
        yield path, path.relative_to(folder).as_posix()


def _own_modules(source: _Source) -> dict[Path, str]:
    """The files of the source itself to their dotted names, in order."""
    if not source.path.is_dir():
        return {source.path: source.name}
    named = {}
    for path in _python_files(source.path) or ():
        parts = path.relative_to(source.path).with_suffix("").parts
        named[path] = ".".join([source.name, *(p for p in parts if p != "__init__")])
    return named


def _beside(module: str, folder: Path, modules: _Modules) -> Path | None:
    """The source of a module that is the user's own and lies in ``folder`` or below it."""
    if f"{module}.".startswith(_RECORDED_OTHERWISE):
        return None
    found = modules.file(module)
    if found is None or not found.is_relative_to(folder):
        return None
    return None if _INSTALLED.intersection(found.relative_to(folder).parts) else found

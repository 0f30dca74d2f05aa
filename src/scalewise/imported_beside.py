"""Which files a module imports, read from the sources without running them. Torch-free."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_MOST_FILES = 500
_MOST_BYTES = 1 << 20
"""Of source that is read for its imports: a second or less."""
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields in which statements hold others; ``except`` and ``case`` clauses have bodies too."""


def imported_files(
    files: Mapping[Path, str], find: Callable[[str], Path | None]
) -> list[Path] | None:
    """What ``files`` import, directly or through one another, without themselves, in order.

    An import counts wherever it stands, in a function or under a condition. One whose name is made
    at run time is not seen.

    Args:
        files: sources to their dotted names, ``package.module``.
        find: the source of a dotted name; None for a module that does not count. Asked once for
            each name, however many files import it.

    None where there is more to read than a moment's work.
    """
    known = dict(files)
    waiting = sorted(known)
    asked: set[str] = set()
    size = 0
    while waiting:
        path = waiting.pop(0)
        content = _content(path)
        size += len(content)
        if len(known) > _MOST_FILES or size > _MOST_BYTES:
            return None
        names = set(_imports(content, _package(path, known[path]))) - asked
        asked |= names
        for name in sorted(names):
            found = find(name)
            if found is not None and found not in known:
                known[found] = name
                waiting.append(found)
    return sorted(set(known) - set(files))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # whoever takes its sum says that it cannot be read


def _package(path: Path, name: str) -> str:
    """What the dots of a relative import in the module begin from."""
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def _imports(source: bytes, package: str) -> Iterator[str]:
    """The dotted name of everything that an import statement may load, its packages included."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # Python will not import it either
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            if base is None:
                continue
            yield from _with_packages(base)
            # What is taken from a package may be a module of it.
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, however deep. An import is one: no expression needs to be looked into."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in _BLOCKS:
            waiting += getattr(node, block, ())


def _base(node: ast.ImportFrom, package: str) -> str | None:
    """The module that is imported from; None of dots that lead out of every package."""
    if node.level == 0:
        return node.module
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return None
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))

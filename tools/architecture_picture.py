"""Draw who imports whom between the rooms of src/scalewise, into docs/architecture.md.

    python tools/architecture_picture.py

An arrow that follows from two others is left out; imports for type checkers do not count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "scalewise"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "```mermaid\n", "```\n"


def edges() -> set[tuple[str, str]]:
    """Pairs of rooms, the first of which imports the second."""
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    found = set()
    for path in PACKAGE.glob("*/**/*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "scalewise" and len(parts) > 1 and parts[1] in rooms - {room}:
                found.add((room, parts[1]))
    return found


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports, inside functions too, but for type checkers' blocks."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)


def reduced(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Without the pairs that follow from others."""
    below = {a: {b for x, b in pairs if x == a} for a, _ in pairs}

    def reachable(start: str) -> set[str]:
        found: set[str] = set()
        waiting = list(below.get(start, ()))
        while waiting:
            if (room := waiting.pop()) not in found:
                found.add(room)
                waiting += below.get(room, ())
        return found

    return {(a, b) for a, b in pairs if not any(b in reachable(c) for c in below[a] - {b})}


def picture() -> str:
    """The arrows as a Mermaid graph."""
    arrows = "".join(f"  {a} --> {b}\n" for a, b in sorted(reduced(edges())))
    return f"{BEGIN}graph TD\n{arrows}{END}"


def page_with_picture(text: str) -> str:
    """The page with the picture in place of the one it has."""
    before, _, rest = text.partition(BEGIN)
    return before + picture() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(picture())

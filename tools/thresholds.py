"""Writes docs/thresholds.md: numbers of the package, each with the sentence that explains it."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "scalewise"
PAGE = Path(__file__).parents[1] / "docs" / "thresholds.md"

ABOVE = """# Thresholds

Numbers of the code, each with the sentence that stands beside it: most say from which value on
something is said of a run, others how long somebody waits or how much is shown. A number without a
sentence is not here. `python tools/thresholds.py` writes this page; a test holds it to the code.
What is measured, and how, is in [method.md](method.md).
"""
NUMBERS = re.compile(r"(?=.*\b\d)[({]?('\w+': )?[A-Z_\d][\w .*+<,:'-]{0,64}[)}]?")


def rows() -> Iterator[str]:
    """A heading for each room, and a row for each of its numbers."""
    room = ""
    for path in sorted(PACKAGE.rglob("*.py")):
        where, text = path.relative_to(PACKAGE), path.read_text(encoding="utf-8")
        for one, words in pairwise(ast.parse(text).body):
            below = ast.get_docstring(ast.Module([words], [])) or ""
            beside = text.splitlines()[(one.end_lineno or 1) - 1].partition("  # ")[2]
            said = " ".join(below.split()) or beside
            name, _, value = ast.unparse(one).partition(" = ")
            if said and NUMBERS.fullmatch(value):
                if room != (room := where.parts[0]):
                    yield f"\n## {room}\n\n| in | name | value | what it is |\n{'| --- ' * 4}|"
                yield f"| {where} | `{name.split(':')[0]}` | `{value}` | {said} |"


def page() -> str:
    return ABOVE + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

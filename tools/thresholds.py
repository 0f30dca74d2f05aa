"""Writes docs/thresholds.md: each number of the package that a sentence beside it explains."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "scalewise"
PAGE = Path(__file__).parents[1] / "docs" / "thresholds.md"

ABOVE = """# Thresholds

Each number that the code decides by, and why it is that number: the sentence beside the constant.
`python tools/thresholds.py` writes this page, and a test holds it to the code, so a changed number
is a changed page. What is measured, and how, is in [method.md](method.md).
"""
NUMBERS = re.compile(r"(?=.*\b\d)[({]?('\w+': )?[A-Z_\d][\w .*+<,:'-]{0,64}[)}]?")


def rows() -> Iterator[str]:
    """A heading for each room, and a row for each of its numbers."""
    room = ""
    for path in sorted(PACKAGE.rglob("*.py")):
        where, body = path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8")).body
        for one, words in pairwise(body):
            said = " ".join((ast.get_docstring(ast.Module([words], [])) or "").split())
            name, _, value = ast.unparse(one).partition(" = ")
            if said and NUMBERS.fullmatch(value):
                if room != (room := where.parts[0]):
                    yield f"\n## {room}\n\n| in | name | value | what it is |\n{'| --- ' * 4}|"
                yield f"| {where} | `{name.split(':')[0]}` | `{value}` | {said} |"


def page() -> str:
    return ABOVE + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

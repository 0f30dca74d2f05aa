"""The screen of ``scalewise top`` as a picture, for a page that has to stand on its own."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from scalewise.gpu.top_view import TopState, render

WIDTH: Final = 120
"""Columns: what a README shows without scrolling."""

# Rich's own template loads its font from a content network; any monospaced one will do.
_FORMAT: Final = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def save_picture(state: TopState, path: Path) -> None:
    """Write what a terminal of :data:`WIDTH` columns would show as an SVG. Raises OSError."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(render(state, WIDTH, 10_000))
    # The id names the picture's styles: a fixed one keeps equal screens equal files.
    svg = console.export_svg(title="scalewise top", code_format=_FORMAT, unique_id="scalewise-top")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, encoding="utf-8")

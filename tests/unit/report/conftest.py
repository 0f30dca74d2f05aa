"""Pictures are drawn once."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """Figures by file name: only fixtures of a module render them, which takes seconds."""
    made: dict[str, Figure] = {}

    def save(figure: Figure, path: Path, **_options: Any) -> None:
        made[path.name] = figure
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))

    monkeypatch.setattr(Figure, "savefig", save)
    return made

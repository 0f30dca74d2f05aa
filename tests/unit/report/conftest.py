"""Makes the builder of recorded sweeps importable as ``recorded``, and draws pictures once."""

import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))


@pytest.fixture(autouse=True)
def no_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and named, and only fixtures of a module render them: it takes seconds."""

    def save(_figure: Figure, path: Path, **_options: Any) -> None:
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))

    monkeypatch.setattr(Figure, "savefig", save)

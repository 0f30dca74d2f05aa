"""What was said before, in files of tests/golden/reports."""

import os
import re
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "reports"


def hold(name: str, said: str) -> None:
    """It is what was said before, or what is said from now on."""
    path, made = GOLDEN / f"{name}.txt", rounded(said)
    if "UPDATE_DOCS" in os.environ:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made)
    assert made.splitlines() == path.read_text().splitlines(), "UPDATE_DOCS=1 writes it anew"


def rounded(text: str) -> str:
    text = re.sub(r"\d{4}(-\d\d){2}T[\d:]+", "when", text)  # in the reader's own time zone
    return re.sub(r"-?\b\d+\.\d{5,}(e[+-]?\d+)?", lambda number: f"{float(number[0]):.4g}", text)

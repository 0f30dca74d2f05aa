"""What is kept in tests/golden stays; ``UPDATE_DOCS=1`` writes it anew."""

import json
import os
from pathlib import Path
from typing import Any


def stays(name: str, found: dict[str, Any]) -> None:
    path = Path(__file__).parents[1] / "golden" / f"{name}.json"
    if "UPDATE_DOCS" in os.environ:
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
        path.write_text("{" + ",\n ".join(lines) + "}\n")
    assert found == json.loads(path.read_text())

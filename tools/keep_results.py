"""Keep a sweep's records under docs/results, without what only its machine could use.

    python tools/keep_results.py multirun/<sweep> docs/results/<name>

Logs, heartbeats, locks and tracker files stay behind; absolute paths in recorded commands shrink
to their last part. The report is rebuilt from what is kept, so that it proves itself.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from scalewise.report import build

LEFT_BEHIND = (
    "logs", "*.logs", "heartbeat", "supervisor.err", "sweep.lock", "wandb", "report", ".hydra",
    "tracking.json", "multirun.yaml",
)  # fmt: skip
ABSOLUTE = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    if arguments.target.exists():
        raise SystemExit(f"{arguments.target} exists; remove it first")
    shutil.copytree(arguments.sweep, arguments.target, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    for path in [*arguments.target.rglob("*.json"), *arguments.target.rglob("rank*.err")]:
        plain = json.loads(path.read_text())
        path.write_text(json.dumps(shorten(plain), indent=1) + "\n")
    print(build(arguments.target).markdown)
    return 0


def shorten(value: object) -> object:
    """``value`` with absolute paths in its texts cut to their last part."""
    if isinstance(value, str):
        return ABSOLUTE.sub("", value)
    if isinstance(value, list):
        return [shorten(item) for item in value]
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in value.items()}
    return value


if __name__ == "__main__":
    raise SystemExit(main())

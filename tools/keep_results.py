"""Keep a sweep's records under docs/results, without what only its machine could use.

    python tools/keep_results.py multirun/<sweep> docs/results/<name>.zip

What `scalewise bundle` leaves out, heartbeats and what trackers took stay behind; absolute paths in
recorded commands shrink to their last part. The report is built from what is kept, so that it
proves itself.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from pathlib import Path

from scalewise.analysis import analyse, load_sweep
from scalewise.records import write_archive
from scalewise.report import build

LEFT_BEHIND = shutil.ignore_patterns("heartbeat", "report", "tracking.json")
ABSOLUTE = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(arguments.sweep, Path(folder, "sweep"), ignore=LEFT_BEHIND))
        for path in [*copy.rglob("*.json"), *copy.rglob("rank*.err")]:
            plain = json.loads(path.read_text())
            path.write_text(json.dumps(shorten(plain), indent=1) + "\n")
        write_archive(copy, arguments.target)
    print(build(analyse(load_sweep(arguments.target))).markdown)
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

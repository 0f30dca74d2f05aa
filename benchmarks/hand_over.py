"""How long devices lie idle between two cells, and which part of that is whose.

    python benchmarks/hand_over.py [--cells 12] [--policy packed] [--hardware "OVERRIDE ..."]

Cells that take every device run one after another, as narrow ones do on the devices that they
hand on. Between the end of one and the start of the next lies what no schedule can use: the old
supervisor's end and the engine's decision, then the new supervisor's own start. Read from what
the cells leave on disk; nothing is told by the code that is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from hydra import compose, initialize_config_dir

from scalewise.config import conf_dir, resolve
from scalewise.host import usable_cores
from scalewise.records import CellFolder
from scalewise.sweep import Cell, local_engine, make_display
from scalewise.sweep.plan import plan, request

TARGET_MS = 150.0
_CELL = ("tracking=none", "max_steps=5", "warmup_steps=1", "execution=eager", "validation=never")


@dataclass(frozen=True)
class HandOver:
    """From the end of one cell to the start of the next."""

    decide_ms: float
    """From the recorded end until the engine starts the next supervisor."""
    start_ms: float
    """From there until that supervisor records its start."""

    @property
    def gap_ms(self) -> float:
        return self.decide_ms + self.start_ms


def cells(count: int, hardware: Sequence[str]) -> list[Cell]:
    """``count`` repeats of a small cell."""
    typed = [*_CELL, f"repeats={count}", *hardware]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose(config_name="config", overrides=typed))
    return plan([request(typed, plain)], 0)


def hand_overs(folders: Sequence[CellFolder]) -> list[HandOver]:
    """One for each pair of neighbours in time."""
    ran = []
    for folder in folders:
        result = folder.load_result()
        asked_at = (folder.path / "supervisor.err").stat().st_mtime
        ran.append((asked_at, result.started_at, result.finished_at))
    ran.sort()
    return [
        HandOver((asked_at - ended_at) * 1e3, (started_at - asked_at) * 1e3)
        for (_, _, ended_at), (asked_at, started_at, _) in pairwise(ran)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--policy", choices=("packed", "exclusive"), default="packed")
    parser.add_argument(
        "--hardware",
        default=f"hardware=cpu hardware.cores_per_device={len(usable_cores())}",
        help="overrides that leave one device, e.g. 'hardware=auto hardware.gpus=[0]'",
    )
    parser.add_argument("--out", type=Path, help="a file for what was measured, as JSON")
    arguments = parser.parse_args()
    sys.argv[1:] = []
    with tempfile.TemporaryDirectory(prefix="scalewise-hand-over-") as scratch:
        os.environ["SCALEWISE_RUNTIME_DIR"] = f"{scratch}/runtime"
        todo = cells(arguments.cells, arguments.hardware.split())
        engine = local_engine(Path(scratch) / "sweep", arguments.policy, make_display())
        report = engine.run(todo)
        assert report.count("done") == len(todo), report.outcomes
        seen = hand_overs([engine.folder.cell(cell.planned.name) for cell in todo])
    gaps_ms = [one.gap_ms for one in seen]
    gap_ms = statistics.median(gaps_ms)
    print(f"{len(seen)} hand-overs, {arguments.policy}, medians:")
    print(f"  end, decision     {statistics.median(one.decide_ms for one in seen):7.1f} ms")
    print(f"  supervisor starts {statistics.median(one.start_ms for one in seen):7.1f} ms")
    print(f"  together          {gap_ms:7.1f} ms (at most {TARGET_MS:g} ms)")
    print(f"  from {min(gaps_ms):.1f} to {max(gaps_ms):.1f} ms")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([asdict(one) for one in seen], indent=1) + "\n")
    return 0 if gap_ms <= TARGET_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())

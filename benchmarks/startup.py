"""What a trivial 2-rank cell costs from its start to its end, and where that goes.

    python benchmarks/startup.py [--cells 5] [--forked] [OVERRIDE ...]

The real engine runs the real thing: supervisors, freshly started ranks, a gloo process group, a
few steps, records. Wall time counts on a quiet host only; CPU time a cell, of all its processes
together, hardly minds others. The phases are read from what the cell leaves on disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from hydra import compose, initialize_config_dir

from scalewise.config import conf_dir, resolve
from scalewise.records import CellFolder, read_heartbeat
from scalewise.sweep import Cell, local_engine, make_display
from scalewise.sweep.plan import plan, request

TARGET_FRESH_S = 3.0
TARGET_FORKED_S = 1.5
_CELL = (
    "strategy=ddp", "strategy.devices=2", "hardware=cpu", "tracking=none", "max_steps=5",
    "warmup_steps=1", "execution=eager",
)  # fmt: skip


def cells(count: int, overrides: list[str]) -> list[Cell]:
    """``count`` repeats of the trivial cell."""
    typed = [*_CELL, f"repeats={count}", *overrides]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose(config_name="config", overrides=typed))
    return plan([request(typed, plain)], 0)


def phases(folder: CellFolder) -> Mapping[str, float]:
    """Seconds of each part of a cell, from the start of its supervisor on."""
    result = folder.load_result()
    beat = read_heartbeat(folder.heartbeat_path(0))
    assert beat is not None
    rank = folder.path / "ranks" / "rank0.json"
    marks = {
        "supervisor": result.started_at,
        "imports": (folder.path / "provenance.json").stat().st_mtime,
        "build, process group, data": beat.started_at,
        "fit": beat.time,
        "validate, close": rank.stat().st_mtime,
        "processes end, result": result.finished_at,
    }
    began = (folder.path / "supervisor.err").stat().st_mtime
    parts = {}
    for name, at in marks.items():
        parts[name] = at - began
        began = at
    return parts


def used_s() -> float:
    """CPU seconds of every process of the cells that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=5)
    parser.add_argument("--forked", action="store_true", help="from a warm server")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    sys.argv[1:] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SCALEWISE_RUNTIME_DIR"] = f"{folder}/runtime"
        todo = cells(arguments.cells, arguments.overrides)
        engine = local_engine(
            Path(folder) / "sweep", "exclusive", make_display(), warm=arguments.forked
        )
        cpu, began = used_s(), time.monotonic()
        report = engine.run(todo)
        wall_s = (time.monotonic() - began) / len(todo)
        cpu_s = (used_s() - cpu) / len(todo)
        assert report.count("done") == len(todo), report.outcomes
        each = [phases(engine.folder.cell(cell.planned.name)) for cell in todo]
    for name in each[0]:
        print(f"{statistics.median(one[name] for one in each):8.2f} s  {name}")
    target_s = TARGET_FORKED_S if arguments.forked else TARGET_FRESH_S
    print(f"a cell: {wall_s:.2f} s in all (at most {target_s:g} s), {cpu_s:.2f} s of CPU time")
    return 0 if wall_s <= target_s else 1


if __name__ == "__main__":
    raise SystemExit(main())

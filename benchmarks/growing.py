"""What a report, ``scalewise.load`` and ``scalewise status`` cost as a sweep grows.

    python benchmarks/growing.py make FOLDER --like SWEEP [--cells 1000] [--rows 100000]
    python benchmarks/growing.py time FOLDER

``make`` writes cells as training leaves them: the small records of a sweep, and step rows drawn
from its timed ones. ``time`` runs each command in a process of its own, the second report with
what the first one kept. Memory is the largest resident set of one process, mapped records included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from scalewise.records import WARMUP, CellFolder, PlannedCell, StepWriter, SweepFolder, read_steps

REPEATS = 5
WARMUP_STEPS = 20


def make(folder: SweepFolder, like: SweepFolder, cells: int, rows: int) -> None:
    """A sweep of ``cells`` cells with ``rows`` step rows each, over all ranks of a cell."""
    models = list({planned.config_id: planned for planned, _ in like.cells()}.values())
    plan, rng = [], np.random.default_rng(1)
    for at in range(cells):
        model, lr = models[at // REPEATS % len(models)], at // REPEATS // len(models)
        planned = replace(
            model, cell_id=f"{at:012x}", config_id=f"{model.config_id[:8]}{lr:04x}",
            repeat=at % REPEATS, name=f"{model.name.rpartition('-r')[0]}-lr{lr}-{at:012x}",
            overrides=(*model.overrides, f"optimizer.lr=1e-{lr}"),
        )  # fmt: skip
        write_cell(like.cell(model.name), folder.cell(planned.name), planned, rows, rng)
        plan.append(planned)
    folder.save_plan(replace(like.load_plan(), cells=tuple(plan)))


def write_cell(
    source: CellFolder, cell: CellFolder, planned: PlannedCell, rows: int, rng: np.random.Generator
) -> None:
    """Copy the small records of ``source``, and draw step rows from its own."""
    shutil.copytree(source.path, cell.path, ignore=shutil.ignore_patterns("steps", "trace*"))
    config = source.load_config()
    lr = float(planned.overrides[-1].partition("=")[2])
    cell.save_config({**config, "optimizer": {**config["optimizer"], "lr": lr}})
    ranks = source.ranks_with_steps()
    each, faster = rows // len(ranks), float(rng.normal(1, 0.01))
    drawn = rng.random(each)
    for rank in ranks:
        series = read_steps(source.steps_path(rank), rank)
        timed = series.timed().rows.copy()
        made = timed[(drawn * len(timed)).astype(int)]
        for name in made.dtype.names or ():
            if name.endswith("_ms"):
                made[name] *= faster
        made["step"] = np.arange(each)
        made["flags"] = np.where(made["step"] < WARMUP_STEPS, WARMUP, 0)
        steps_ns = (made["host_step_ms"].astype(float) * 1e6 + 100).astype(int)
        made["start_ns"] = series.rows["start_ns"][0] + np.cumsum(steps_ns) - steps_ns
        writer = StepWriter(cell.steps_path(rank), series.epoch_offset_ns)
        writer.append_rows(made)
        writer.close()
    path = cell.path / "result.json"
    result = json.loads(path.read_text())
    result |= {key: getattr(planned, key) for key in ("cell_id", "config_id", "name", "repeat")}
    for one in result["ranks"]:
        one |= {"step_rows": each, "steps_completed": each}
    path.write_text(json.dumps(result))


def measure(name: str, words: list[str]) -> None:
    """Seconds, CPU seconds and MiB of a command, what it starts included."""
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 4):
        raise SystemExit(f"exit status {process.returncode}: {' '.join(words)}")
    print(
        f"{name}: {time.monotonic() - begin:.1f} s, CPU {used.ru_utime + used.ru_stime:.1f} s, "
        f"{used.ru_maxrss / 1024:,.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["make", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--rows", type=int, default=100_000, help="step rows of a cell")
    parser.add_argument("--like", type=Path, help="a sweep with raw records")
    arguments = parser.parse_args()
    if arguments.what == "make":
        like = SweepFolder(arguments.like)
        make(SweepFolder(arguments.folder), like, arguments.cells, arguments.rows)
        return
    folder, module = str(arguments.folder), ["-m", "scalewise"]
    measure("status", [*module, "status", folder])
    measure("report", [*module, "report", folder])
    measure("again", [*module, "report", folder])
    measure("load", ["-c", f"import scalewise; scalewise.load({folder!r}).runs"])


if __name__ == "__main__":
    main()

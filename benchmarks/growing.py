"""What a report, ``scalewise.load`` and ``scalewise status`` cost as a sweep grows.

    python benchmarks/growing.py make FOLDER --cells 1000 --rows 100000
    python benchmarks/growing.py time FOLDER

``make`` writes cells as training leaves them: the small records of a kept sweep, and step rows
drawn from its timed ones. ``time`` runs each command in a process of its own, with the records in
the page cache, and samples ``RssAnon`` of it and its children.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from scalewise.records import (
    WARMUP,
    CellFolder,
    PlannedCell,
    StepWriter,
    SweepFolder,
    read_steps,
)

ROOT = Path(__file__).parent.parent
LIKE = ROOT / "docs/results/h200x2_small"
REPEATS = 5
WARMUP_STEPS = 20
_BLOCK = 2**15
_SAMPLE_S = 0.05


def make(folder: Path, like: Path, cells: int, rows: int) -> None:
    """A sweep of ``cells`` cells with ``rows`` step rows each, over all ranks of a cell."""
    kept = SweepFolder(like)
    chosen: dict[str, PlannedCell] = {}
    for planned, _ in kept.cells():
        chosen.setdefault(planned.config_id, planned)
    models = list(chosen.values())
    plan, random = [], np.random.default_rng(1)
    for at in range(cells):
        model, lr = models[at // REPEATS % len(models)], at // REPEATS // len(models)
        config_id = f"{model.config_id[:8]}{lr:04x}"
        cell_id, repeat = f"{at:012x}", at % REPEATS
        planned = replace(
            model, cell_id=cell_id, config_id=config_id, repeat=repeat,
            name=f"{model.name.rpartition('-r')[0]}-lr{lr}-r{repeat}-{cell_id}",
            overrides=(*model.overrides, f"optimizer.lr=1e-{lr}"),
        )  # fmt: skip
        write_cell(kept.cell(model.name), SweepFolder(folder).cell(planned.name), planned,
                   rows, lr, random)  # fmt: skip
        plan.append(planned)
    SweepFolder(folder).save_plan(replace(kept.load_plan(), cells=tuple(plan)))


def write_cell(
    source: CellFolder, cell: CellFolder, planned: PlannedCell, rows: int, lr: int,
    random: np.random.Generator,
) -> None:  # fmt: skip
    """Copy the small records of ``source``, and draw step rows from its own."""
    shutil.rmtree(cell.path, ignore_errors=True)
    shutil.copytree(source.path, cell.path, ignore=shutil.ignore_patterns("steps", "trace*"))
    config = source.load_config()
    cell.save_config({**config, "optimizer": {**config["optimizer"], "lr": 10.0**-lr}})
    ranks = source.ranks_with_steps()
    each, faster = rows // len(ranks), float(random.normal(1, 0.01))
    picks: npt.NDArray[np.int64] | None = None
    for rank in ranks:
        series = read_steps(source.steps_path(rank), rank)
        timed = series.timed().rows.copy()
        if picks is None:
            picks = random.integers(0, len(timed), each)
        writer = StepWriter(cell.steps_path(rank), series.epoch_offset_ns)
        for block in _drawn(timed, picks, faster, int(series.rows["start_ns"][0])):
            writer.append_rows(block)
        writer.close()
    _edit(cell.path / "result.json", planned, each)


def _drawn(
    timed: npt.NDArray[np.void], picks: npt.NDArray[np.int64], faster: float, start_ns: int
) -> Iterator[npt.NDArray[np.void]]:
    """Blocks of steps that follow one another, all times multiplied by ``faster``."""
    for first in range(0, len(picks), _BLOCK):
        made = timed[picks[first : first + _BLOCK]]
        for name in made.dtype.names or ():
            if name.endswith("_ms"):
                made[name] *= faster
        made["step"] = np.arange(first, first + len(made))
        made["flags"] = np.where(made["step"] < WARMUP_STEPS, WARMUP, 0)
        ends = start_ns + np.cumsum(made["host_step_ms"].astype(float) * 1e6 + 100).astype(int)
        made["start_ns"], start_ns = np.append(start_ns, ends[:-1]), int(ends[-1])
        yield made


def _edit(path: Path, planned: PlannedCell, steps: int) -> None:
    result: dict[str, Any] = json.loads(path.read_text())
    result |= {key: getattr(planned, key) for key in ("cell_id", "config_id", "name", "repeat")}
    for rank in result["ranks"]:
        rank |= {"step_rows": steps, "steps_completed": steps}
    path.write_text(json.dumps(result))


def measure(command: Sequence[str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds, and the largest sampled RssAnon in MiB of a command."""
    begin, cpu, most = time.monotonic(), _children_cpu_s(), 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        most = max(most, _rss_anon_kib(process))
        time.sleep(_SAMPLE_S)
    seconds = time.monotonic() - begin
    if process.returncode not in (0, 4):
        raise SystemExit(f"exit status {process.returncode}: {' '.join(command)}")
    return seconds, _children_cpu_s() - cpu, most / 1024


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rss_anon_kib(process: psutil.Process) -> int:
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            status = Path(f"/proc/{one.pid}/status").read_text()
            lines = [line for line in status.splitlines() if line.startswith("RssAnon")]
            total += sum(int(line.split()[1]) for line in lines)
    except (OSError, psutil.Error):
        return total  # one of them has just ended
    return total


def warm(folder: Path) -> tuple[int, int, float]:
    """Read every step file once; cells, rows and GB of them."""
    cells, size, rows = 0, 0, 0
    for planned, cell in SweepFolder(folder).cells():
        cells += 1
        result = cell.load_result_of(planned.cell_id)
        rows += sum(rank.step_rows for rank in result.ranks)
        for rank in cell.ranks_with_steps():
            with cell.steps_path(rank).open("rb") as file:
                while piece := file.read(2**22):
                    size += len(piece)
    return cells, rows, size / 1e9


def add_cell(folder: Path) -> None:
    """One more repeat of the last cell."""
    sweep = SweepFolder(folder)
    plan = sweep.load_plan()
    last = plan.cells[-1]
    cell_id = f"{len(plan.cells):012x}"
    name = f"{last.name.rpartition('-r')[0]}-r{last.repeat + 1}-{cell_id}"
    new = replace(last, cell_id=cell_id, repeat=last.repeat + 1, name=name)
    source, cell = sweep.cell(last.name), sweep.cell(name)
    rows = source.load_result().ranks[0].step_rows * len(source.ranks_with_steps())
    lr = int(last.overrides[-1].rpartition("-")[2])
    write_cell(source, cell, new, rows, lr, np.random.default_rng())
    sweep.save_plan(replace(plan, cells=(*plan.cells, new)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["make", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--rows", type=int, default=100_000, help="step rows of a cell")
    parser.add_argument("--like", type=Path, default=LIKE, help="a sweep with raw records")
    parser.add_argument("--only", nargs="*", help="of: status, report, again, new, load")
    arguments = parser.parse_args()
    folder = arguments.folder
    if arguments.what == "make":
        make(folder, arguments.like, arguments.cells, arguments.rows)
        return 0
    cells, rows, gigabytes = warm(folder)
    print(f"{cells:,} cells, {rows:,} step rows, {gigabytes:.2f} GB, {os.cpu_count()} cores")
    report = [sys.executable, "-m", "scalewise", "report", str(folder)]
    load = f"import scalewise; scalewise.load({str(folder)!r}).runs"
    commands = {
        "status": [sys.executable, "-m", "scalewise", "status", str(folder)],
        "report": report,
        "again": report,
        "new": report,
        "load": [sys.executable, "-c", load],
    }
    for name, command in commands.items():
        if arguments.only and name not in arguments.only:
            continue
        if name == "new":
            add_cell(folder)
        seconds, cpu_s, mib = measure(command)
        print(f"{name}: {seconds:.1f} s, CPU {cpu_s:.1f} s, RssAnon at most {mib:,.0f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

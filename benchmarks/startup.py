"""How long a cell takes to its first step, and its steps, started freshly and forked, in turns.

    python benchmarks/startup.py [--turns 8] [--limit-s 600] [--out FILE] [OVERRIDE ...]
    python benchmarks/startup.py experiment=gpt2_scaling strategy=ddp strategy.devices=2

The real engine runs the real thing, a small one on two cores where none is named: supervisors,
ranks, a process group, steps, records. A turn is a fresh cell and a round of two forked ones, in
random order; the first of the round waits for the warm process to import, as in every sweep. Start
is when the sweep asks for the cell, first step when rank 0 has ended it. Ratios are fresh over
forked, of one cell a turn: of step times with Welch's interval on logarithms, of the standard
deviations of those logarithms with that of F. CPU time is of all processes of a cell together and
hardly minds neighbours; the wall clock does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import scipy.stats
from hydra import compose, initialize_config_dir

from scalewise.analysis import common_steps, measure_throughput
from scalewise.analysis.statistics import estimate_ratio
from scalewise.config import conf_dir, resolve
from scalewise.records import CellFolder, read_heartbeat, read_steps
from scalewise.sweep import Cell, local_engine, make_display
from scalewise.sweep.plan import plan, request

CONFIDENCE = 0.9
_CELL = (
    "strategy=ddp", "strategy.devices=2", "hardware=cpu", "max_steps=60", "warmup_steps=10",
    "execution=eager",
)  # fmt: skip
_ALWAYS = ("tracking=none", "validation=never", "repeats=1")


@dataclass(frozen=True)
class Start:
    """One cell. Seconds, from when the sweep asked for it."""

    way: str
    """``fresh``, ``forked``, or ``first of a round``: forked, once the warm process is there."""
    first_step_s: float
    supervisor_s: float
    rank_s: float
    """When rank 0 began to train: imports, model, process group and data lie behind it."""
    cell_s: float
    cpu_s: float
    """Of all processes of the sweep that this cell was one of, by its cells."""
    step_ms: float
    """Mean of the timed steps of the slowest rank."""


def make_cells(overrides: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """One cell a seed, all of the same round."""
    requests = []
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for seed in seeds:
            typed = [*(overrides or _CELL), *_ALWAYS, f"seed={seed}"]
            requests.append(request(typed, resolve(compose("config", overrides=typed))))
    return plan(requests, 0)


def run(folder: Path, cells: Sequence[Cell], warm: bool) -> list[Start]:
    """Run a sweep of these cells; its starts, in the order in which they ran."""
    used = used_s()
    engine = local_engine(folder, "exclusive", make_display(), warm=warm)
    report = engine.run(cells)
    assert report.count("done") == len(cells), report.outcomes
    cpu_s = (used_s() - used) / len(cells)
    folders = [engine.folder.cell(cell.planned.name) for cell in cells]
    ways = ["first of a round", "forked"] if warm else ["fresh"]
    return [measure(one, way, cpu_s) for one, way in zip(folders, ways, strict=True)]


def measure(folder: CellFolder, way: str, cpu_s: float) -> Start:
    result, beat = folder.load_result(), read_heartbeat(folder.heartbeat_path(0))
    started = folder.load_provenance().started
    assert started == ("fresh" if way == "fresh" else "forked"), folder.load_provenance().not_forked
    assert beat is not None
    asked_at = (folder.path / "supervisor.err").stat().st_mtime
    series = [read_steps(folder.steps_path(r), r) for r in range(result.world_size)]
    first = series[0].rows[0]
    ended_at = (first["start_ns"] + series[0].epoch_offset_ns) / 1e9 + first["host_step_ms"] / 1e3
    timed = measure_throughput(common_steps(series, result.world_size))
    return Start(
        way=way,
        first_step_s=float(ended_at - asked_at),
        supervisor_s=result.started_at - asked_at,
        rank_s=beat.started_at - asked_at,
        cell_s=result.finished_at - asked_at,
        cpu_s=cpu_s,
        step_ms=timed.seconds * 1e3 / timed.steps,
    )


def used_s() -> float:
    """CPU seconds of every process of the cells that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def deviation_ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of the standard deviations of logarithms, with both ends of its interval."""
    value = math.sqrt(np.log(above).var(ddof=1) / np.log(below).var(ddof=1))
    ends = scipy.stats.f.ppf(
        [0.5 + CONFIDENCE / 2, 0.5 - CONFIDENCE / 2], len(above) - 1, len(below) - 1
    )
    low, high = value / np.sqrt(ends)
    return value, float(low), float(high)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no turn after this")
    parser.add_argument("--seed", type=int, default=0, help="of the order of each turn")
    parser.add_argument("--out", type=Path, help="keep every start here, as JSON")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    if arguments.turns < 2:
        parser.error(f"--turns: found {arguments.turns}; allowed: 2 or more")
    sys.argv[1:] = []
    shuffler = random.Random(arguments.seed)
    starts: list[Start] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SCALEWISE_RUNTIME_DIR"] = f"{folder}/runtime"
        round_of_two = make_cells(arguments.overrides, (1, 2))
        ends_at = time.monotonic() + arguments.limit_s
        for turn in range(arguments.turns):
            if turn >= 2 and time.monotonic() > ends_at:
                break
            for warm in shuffler.sample([False, True], 2):
                # The last of the round: its twin is the fresh one.
                todo = round_of_two if warm else round_of_two[-1:]
                starts += run(Path(folder) / f"{turn}-{warm}", todo, warm)
    print(f"{'median (least to most)':24} first step (s)      supervisor  rank  cell  CPU (s)")
    for way in ("fresh", "first of a round", "forked"):
        own = [start for start in starts if start.way == way]
        firsts = [start.first_step_s for start in own]
        parts = [
            statistics.median(getattr(start, name) for start in own)
            for name in ("supervisor_s", "rank_s", "cell_s", "cpu_s")
        ]
        print(
            f"{way:24} {statistics.median(firsts):5.2f} ({min(firsts):.2f} to {max(firsts):.2f})"
            f"   {parts[0]:8.2f} {parts[1]:7.2f} {parts[2]:5.2f} {parts[3]:7.2f}"
        )
    fresh, forked = ([s.step_ms for s in starts if s.way == way] for way in ("fresh", "forked"))
    found = estimate_ratio(fresh, forked, CONFIDENCE)
    assert found.interval is not None
    spread = deviation_ratio(fresh, forked)
    means = [np.exp(np.log(times).mean()) for times in (fresh, forked)]
    print("step time, {:.3f} ms fresh, {:.3f} ms forked, {} runs each".format(*means, len(fresh)))
    low, high = found.interval.low, found.interval.high
    print(f"fresh over forked: {found.value:.4f} ({CONFIDENCE:.0%} interval {low:.4f}-{high:.4f})")
    print("of standard deviations: {:.2f} ({:.2f}-{:.2f})".format(*spread))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([asdict(start) for start in starts], indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

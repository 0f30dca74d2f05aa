"""How well `policy=packed` fills a host, by simulation with the scheduler that the engine uses.

    python benchmarks/packing.py [--matrices 100] [--seed 0]
    python benchmarks/packing.py --real [--widths 1,1,1,2,2,4] [--repeats 3] [--out FILE.json]

Each matrix has 24 cells of 1, 2, 4 or 8 devices, log-uniform durations over 30:1, and
expectations that are wrong by up to 30 %. They run on 8 slots; the scheduler knows only the
expectations and what has ended so far. The makespan is compared with a lower bound that no
schedule can beat: max(total work / 8, longest cell). Exit status 1 if the 95th percentile of the
ratio is above 1.10.

With --real nothing is simulated: short cells train on the devices of this host (packing_real.py).
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from scalewise.sweep.schedule import Waiting, starts_now

SLOTS = 8
CELLS = 24
TARGET = 1.10


@dataclass(frozen=True)
class Job:
    """One cell with what it takes and what it is believed to take."""

    key: str
    width: int
    seconds: float
    expected_s: float


def matrix(rng: random.Random) -> list[Job]:
    """24 cells of mixed width and duration."""
    jobs = []
    for i in range(CELLS):
        seconds = math.exp(rng.uniform(0, math.log(30)))
        jobs.append(Job(str(i), rng.choice((1, 2, 4, 8)), seconds, seconds * rng.uniform(0.7, 1.3)))
    return jobs


def play(jobs: list[Job]) -> float:
    """Run the matrix to its end and return the makespan."""
    waiting = {job.key: job for job in jobs}
    running: dict[str, tuple[Job, float]] = {}
    now = 0.0
    while waiting or running:
        queue = [Waiting(j.key, j.width, j.expected_s) for j in waiting.values()]
        taken = sum(job.width for job, _ in running.values())
        for key in starts_now(queue, taken, SLOTS):
            running[key] = (waiting.pop(key), now)
        assert sum(job.width for job, _ in running.values()) <= SLOTS
        now, key = min((began + job.seconds, key) for key, (job, began) in running.items())
        del running[key]
    return now


def lower_bound(jobs: list[Job]) -> float:
    """No schedule ends earlier."""
    work = sum(job.width * job.seconds for job in jobs)
    return max(work / SLOTS, *(job.seconds for job in jobs))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--matrices", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    real = parser.add_argument_group("on this host's devices")
    real.add_argument("--real", action="store_true", help="train instead of simulating")
    real.add_argument("--widths", default="1,1,1,2,2,4", help="one configuration each")
    real.add_argument("--repeats", type=int, default=3, help="of each configuration")
    real.add_argument("--hardware", default="hardware=auto", help="overrides, e.g. hardware=cpu")
    real.add_argument("--out", type=Path, help="a file for what was measured, as JSON")
    arguments = parser.parse_args()
    if arguments.real:
        import packing_real

        return packing_real.run(arguments)
    began = time.process_time()
    ratios = []
    for number in range(arguments.matrices):
        jobs = matrix(random.Random(f"{arguments.seed}/{number}"))
        ratios.append(play(jobs) / lower_bound(jobs))
    cpu_ms = (time.process_time() - began) * 1e3 / (arguments.matrices * CELLS)
    percentile = statistics.quantiles(ratios, n=20, method="inclusive")[-1]
    print(f"makespan / lower bound over {arguments.matrices} matrices of {CELLS} cells:")
    print(f"  median          {statistics.median(ratios):.3f}")
    print(f"  95th percentile {percentile:.3f} (at most {TARGET:.2f})")
    print(f"  worst           {max(ratios):.3f}")
    print(f"  scheduler       {cpu_ms:.1f} ms CPU a cell")
    return 0 if percentile <= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())

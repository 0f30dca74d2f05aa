"""What measuring costs: the step time with the anatomy on, over the step time with it off.

    python benchmarks/measuring_cost.py [--workloads gpt2 large] [--devices 1] [--pairs 8]

Pairs of short fits run in one process set, on and off in a random order within each pair
(recorded seed): both see the same clocks and the same neighbours. ``off`` is
``profile.anatomy=false``, which times whole steps only and listens to no gradient. A
fit's figure is the mean of its timed steps, on the slowest rank; each pair gives one ratio, and
the interval is a 95 % t interval over the logarithms of the ratios of all pairs. ``--sets`` repeats
everything in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

from team import across_ranks, answer, compose, devices, my_place, run_team

WORKLOADS: dict[str, tuple[tuple[str, ...], int]] = {
    "gpt2": (
        (
            "model=gpt2", "dataset=stdlib", "optimizer=adamw", "precision=bf16-mixed",
            "batch_size=16", "scaling=weak",
        ),
        30,
    ),
    "gpt2_tiny": (
        ("model=gpt2_tiny", "dataset=stdlib", "optimizer=adamw", "batch_size=32", "scaling=weak"),
        100,
    ),
    "large": (("model=large", "dataset=tabular", "batch_size=64", "scaling=weak"), 500),
    "medium": (("model=medium", "dataset=tabular", "batch_size=128", "scaling=weak"), 500),
}  # fmt: skip
"""Overrides, and timed steps of one fit."""
GOALS_PERCENT = {"gpt2": 0.5, "large": 3.0, "medium": 3.0, "gpt2_tiny": 3.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=["gpt2", "large"], choices=WORKLOADS)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--sets", type=int, default=1, help="fresh process sets of each workload")
    parser.add_argument("--steps", type=int, default=None, help="timed steps of one fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="every pair, as JSON")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        answer(rank_main(arguments.workloads[0], arguments.steps, arguments.pairs, arguments.seed))
        return 0
    found = []
    for workload in arguments.workloads:
        pairs: list[tuple[float, float]] = []
        for number in range(arguments.sets):
            options = ["--workloads", workload, "--pairs", str(arguments.pairs)]
            options += ["--steps", str(arguments.steps or WORKLOADS[workload][1])]
            options += ["--seed", str(arguments.seed + number)]
            ranks = run_team(__file__, options, arguments.devices)
            for each in zip(*ranks, strict=True):
                on, off = (max(rank[i] for rank in each) for i in (0, 1))
                pairs.append((on, off))
        found.append(summarise(workload, arguments.devices, pairs))
        show(found[-1])
    if arguments.out:
        told = {"devices": devices()[: arguments.devices], "seed": arguments.seed, "found": found}
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")
    return 0


def rank_main(workload: str, steps: int, pairs: int, seed: int) -> list[tuple[float, float]]:
    """Mean step time in ms, on and off, of every pair on this rank."""
    warmup = max(8, steps // 8)
    base = [
        *WORKLOADS[workload][0], f"max_steps={steps + warmup}", f"warmup_steps={warmup}",
        "validation=never", "tracking=none", "dataset.loader.num_workers=0", *across_ranks(),
    ]  # fmt: skip
    _, rank = my_place(base)
    from scalewise.config import build_cell

    cells = {on: build_cell(compose([*base, f"profile.anatomy={on}"])) for on in (True, False)}
    order = random.Random(seed)
    found = []
    for number in range(pairs + 1):
        turns = [True, False]
        order.shuffle(turns)
        times = {on: one_fit(cells[on], rank) for on in turns}
        if number:  # the first pair pays for connections, caches and clocks
            found.append((times[True], times[False]))
    return found


def one_fit(cell: Any, rank: Any) -> float:
    """Mean ms of the timed steps of one fit on this rank."""
    import gc

    import torch

    from scalewise.records import CellFolder, read_steps
    from scalewise.train import experiment

    with tempfile.TemporaryDirectory() as folder:
        experiment.run(cell, CellFolder(folder), rank)
        series = read_steps(CellFolder(folder).steps_path(rank.rank), rank.rank).timed()
    gc.collect()
    torch.cuda.empty_cache()
    return float(series.column("step").mean())


def summarise(workload: str, ranks: int, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """The ratio of on to off with its interval."""
    from scalewise.analysis.statistics import estimate_mean

    logs = estimate_mean([math.log(on / off) for on, off in pairs])
    interval = logs.interval
    return {
        "workload": workload,
        "devices": ranks,
        "pairs_ms_on_off": pairs,
        "off_ms": sum(off for _, off in pairs) / len(pairs),
        "cost_percent": 100 * math.expm1(logs.value),
        "cost_percent_low95": 100 * math.expm1(interval.low) if interval else None,
        "cost_percent_high95": 100 * math.expm1(interval.high) if interval else None,
        "goal_percent": GOALS_PERCENT[workload],
    }


def show(found: dict[str, Any]) -> None:
    low, high = found["cost_percent_low95"], found["cost_percent_high95"]
    span = "one pair" if low is None else f"95 % interval {low:+.2f} to {high:+.2f}"
    print(
        f"{found['workload']:10} x{found['devices']} {found['off_ms']:9.4f} ms a step without "
        f"anatomy; with it {found['cost_percent']:+.2f} % ({span}, {len(found['pairs_ms_on_off'])} "
        f"pairs); goal: at most {found['goal_percent']:g} %",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""What measuring costs: the step time with the anatomy on, over the step time with it off.

    python benchmarks/measuring_cost.py [--workloads gpt2 large] [--devices 1] [--pairs 20]

One fit takes turns in blocks of steps, on and off in a random order within each pair (recorded
seed), so that both see the same process, the same clocks and the same neighbours: from one fit to
the next a launch-bound step differs by more than what is looked for. ``off`` marks the ends of
steps alone and takes the hook off the last gradient, which is what ``profile.anatomy=false`` does;
what it leaves in place are the calls that would mark (about ten a step, each one comparison). The
recording thread is up to half a second behind, and what it does for one block must not be counted
in the next: the first half of every block is left out. A block's figure is the mean of its other
steps, on the slowest rank; each pair gives one ratio, and the interval is a 95 % t interval over
the logarithms of all ratios.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from team import across_ranks, answer, devices, my_place, run_team
from workloads import WORKLOADS

BLOCK_STEPS = {"gpt2": 30, "gpt2_short": 60, "gpt2_tiny": 30, "large": 400, "medium": 600}
"""About 1.2 s on an H200."""
WARMUP = 60
GOALS_PERCENT = {"gpt2": 0.5}
GOAL_PERCENT = 3.0
"""Of a step of 2 ms."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=["gpt2", "large"], choices=WORKLOADS)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--block", type=int, default=None, help="steps of a block")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="every pair, as JSON")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    block = arguments.block or BLOCK_STEPS[arguments.workloads[0]]
    if arguments.as_rank:
        turns = Turns(block, arguments.pairs, arguments.seed)
        answer(rank_main(arguments.workloads[0], turns))
        return 0
    found = []
    for workload in arguments.workloads:
        options = ["--workloads", workload, "--pairs", str(arguments.pairs)]
        options += ["--block", str(arguments.block or BLOCK_STEPS[workload])]
        options += ["--seed", str(arguments.seed)]
        ranks = run_team(__file__, options, arguments.devices)
        pairs = [
            (max(on for on, _ in each), max(off for _, off in each))
            for each in zip(*ranks, strict=True)
        ]
        found.append(summarise(workload, arguments.devices, pairs))
        show(found[-1])
    if arguments.out:
        told = {"devices": devices()[: arguments.devices], "seed": arguments.seed, "found": found}
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")
    return 0


class Turns:
    """Which steps are watched closely: blocks of ``block`` steps, two of them a pair."""

    def __init__(self, block: int, pairs: int, seed: int) -> None:
        self.block = block
        order = random.Random(seed)
        self.on = [on for _ in range(pairs) for on in order.sample((True, False), 2)]

    @property
    def steps(self) -> int:
        return WARMUP + self.block * len(self.on)

    def watched(self, step: int) -> bool:
        """Whether this step is; those before and after the blocks are."""
        number = (step - WARMUP) // self.block
        return self.on[number] if 0 <= number < len(self.on) else True

    def pairs_ms(self, steps_ms: Sequence[float]) -> list[tuple[float, float]]:
        """Mean ms of a step, on and off, of every pair; of each block the second half."""
        blocks = (
            steps_ms[WARMUP + self.block * i + self.block // 2 : WARMUP + self.block * (i + 1)]
            for i in range(len(self.on))
        )
        means = [statistics.fmean(block) for block in blocks]
        return [
            (means[i], means[i + 1]) if self.on[i] else (means[i + 1], means[i])
            for i in range(0, len(means), 2)
        ]


def rank_main(workload: str, turns: Turns) -> list[tuple[float, float]]:
    """Mean step time in ms, on and off, of every pair on this rank."""
    cell, rank = my_place(
        [
            *WORKLOADS[workload], f"max_steps={turns.steps}", "warmup_steps=0",
            "validation=never", "tracking=none", "dataset.loader.num_workers=0", *across_ranks(),
        ]
    )  # fmt: skip
    from scalewise.records import CellFolder, read_steps
    from scalewise.train import experiment

    take_turns(turns)
    with tempfile.TemporaryDirectory() as folder:
        experiment.run(cell, CellFolder(folder), rank)
        series = read_steps(CellFolder(folder).steps_path(rank.rank), rank.rank)
    unseen = [math.isnan(ms) for ms in series.column("forward")]
    if unseen != [not turns.watched(step) for step in range(len(series))]:
        raise RuntimeError("the anatomy was not on and off in the steps in which it should be")
    return turns.pairs_ms([float(ms) for ms in series.column("step")])


def take_turns(turns: Turns) -> None:
    """Switch the anatomy of every fit of this process between its steps."""
    from scalewise.train.recording import Mark
    from scalewise.train.recording.step_timer import StepTimer

    ended = StepTimer.end_batch

    def and_switch(timer: Any, *args: Any) -> None:
        ended(timer, *args)
        on = turns.watched(timer.steps)
        if on == getattr(timer, "watches", True):
            return
        timer.watches = on
        if on:
            del timer._clock.mark
        else:
            timer._clock.mark = functools.partial(only_the_end, timer._clock.mark)
        gradients = timer._last_gradient
        if gradients is not None and on:
            gradients._listen_to(gradients._latest)
        elif gradients is not None:
            for handle in gradients._handles:
                handle.remove()

    def only_the_end(mark: Callable[[Mark], None], which: Mark) -> None:
        if which == Mark.OPTIMIZER_END:
            mark(which)

    StepTimer.end_batch = and_switch  # type: ignore[method-assign]


def summarise(workload: str, ranks: int, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """The ratio of on to off with its interval."""
    from scalewise.analysis import estimate_mean

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
        "goal_percent": GOALS_PERCENT.get(workload, GOAL_PERCENT),
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

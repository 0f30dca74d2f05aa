"""What marking a step takes: of the thread that trains, and of the one that makes the rows.

    python benchmarks/marking_cost.py [--steps 2000] [--rounds 20] [--out FILE]

``measuring_cost.py`` tells the cost in a real fit, where a host-bound step varies by far more from
one block to the next than what is looked for. Here nothing trains: the marks of a step are taken
in a row, all of them in one block and the end of the step alone in the next, in a random order,
and then the rows of the block are made. What a block took is divided by its steps. Both threads
share the interpreter, so a step that is bound by its host is longer by at most the sum of both
differences; one that is bound by its GPU hides them. Events are recorded into an idle stream: a
full one takes no longer, as nothing waits for it. On a host without a GPU there are no events.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch

from scalewise.analysis import estimate_mean
from scalewise.records import StepWriter
from scalewise.train.recording import Mark
from scalewise.train.recording.step_clock import StepClock

GOAL_US = 60.0
"""3 % of a step of 2 ms."""
ALL = tuple(mark for mark in Mark if mark != Mark.REPLAY_BEGIN)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="of a block")
    parser.add_argument("--rounds", type=int, default=20, help="pairs of blocks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="every round, as JSON")
    arguments = parser.parse_args()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else None
    rng = random.Random(arguments.seed)
    rounds = [one_round(device, arguments.steps, rng) for _ in range(arguments.rounds + 1)][1:]
    where = torch.cuda.get_device_name() if device else platform.processor() or "CPU"
    print(f"{len(rounds)} rounds of {arguments.steps} steps on {where}, us a step:")
    for part in ("marks", "rows"):
        on, off = ([one[part][i] for one in rounds] for i in (0, 1))
        print(
            f"  {part:6} {statistics.median(on):6.1f} with all marks, "
            f"{statistics.median(off):6.1f} without"
        )
    added = [sum(one[part][0] - one[part][1] for part in ("marks", "rows")) for one in rounds]
    mean = estimate_mean(added)
    span = mean.interval
    words = f" (95 % interval {span.low:.1f} to {span.high:.1f})" if span else ""
    print(f"  added  {mean.value:6.1f}{words}; goal: at most {GOAL_US:g}, 3 % of 2 ms")
    if arguments.out is not None:
        told = {"device": where, "steps": arguments.steps, "seed": arguments.seed, "rounds": rounds}
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if span is not None and span.high <= GOAL_US else 1


def one_round(
    device: torch.device | None, steps: int, rng: random.Random
) -> dict[str, tuple[float, float]]:
    """Us a step of ``marks`` and of ``rows``: with all marks, and with the end of the step only."""
    took: dict[bool, tuple[float, float]] = {}
    for anatomy in rng.sample((True, False), 2):
        with tempfile.TemporaryDirectory() as folder:
            took[anatomy] = block(Path(folder) / "rank0.bin", device, steps, anatomy)
    return {"marks": (took[True][0], took[False][0]), "rows": (took[True][1], took[False][1])}


def block(
    path: Path, device: torch.device | None, steps: int, anatomy: bool
) -> tuple[float, float]:
    """Us a step of this thread for marking, then for making the rows."""
    marks = ALL if anatomy else (Mark.OPTIMIZER_END,)
    writer = StepWriter(path)
    clock = StepClock(writer, device, anatomy)
    clock.begin()
    mark_steps(clock, marks, steps)  # the pool of events fills
    clock.drain(wait=True)
    begin = time.thread_time_ns()
    mark_steps(clock, marks, steps)
    marked = time.thread_time_ns()
    if device is not None:
        torch.cuda.synchronize(device)
    begin_rows = time.thread_time_ns()
    clock.drain(wait=True)
    rows = time.thread_time_ns() - begin_rows
    writer.close()
    return (marked - begin) / steps / 1e3, rows / steps / 1e3


def mark_steps(clock: StepClock, marks: tuple[Mark, ...], steps: int) -> None:
    for number in range(steps):
        for mark in marks:
            clock.mark(mark)
        clock.finish_step(number, 0, 1, 0)


if __name__ == "__main__":
    raise SystemExit(main())

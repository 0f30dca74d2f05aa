"""What the length of a window does to a run's figure, by windows cut out of recorded runs.

    python train.py -m strategy=ddp,single model=large repeats=8 measure.min_time_s=10
    python benchmarks/window_length.py FOLDER...

A window may begin at any step of a run, which is taken as a ring: so the mean over all windows of
one length is the run's own. The end of a window is announced as it is in training: at a look four
times a second, by the pace until then. *Spread* ends a window once the standard error of the mean
of its eight blocks is small, which is a stop by its own data.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from interval_coverage import WANTED, until_decided

from scalewise.analysis import load_sweep
from scalewise.analysis.steps import NotMeasuredError, timed_steps, timeline
from scalewise.train.length import (
    FEWEST_STEPS,
    LEAST_STEPS,
    LONGEST_S,
    SHORTEST_S,
    choose_last_step,
)
from scalewise.train.recording.background import INTERVAL_S

Array = npt.NDArray[np.float64]
Wanted = Callable[[Array], float]
"""Seconds that a window is to have, by the times of its steps so far, in s."""
LEAST_RUN_S = 8.0
WINDOWS = 250
"""Of each run."""
COMPARISONS = 4000


def fixed(seconds: float) -> Wanted:
    return lambda step_s: seconds


def by_steps(step_s: Array) -> float:
    """As shipped for CPUs."""
    return min(max(SHORTEST_S, LEAST_STEPS * float(step_s.mean())), LONGEST_S)


def by_spread(most: float) -> Wanted:
    """The shortest once the standard error is at most this share of the mean, else the longest."""

    def wanted(step_s: Array) -> float:
        blocks = [float(one.mean()) for one in np.array_split(step_s, 8) if len(one)]
        error = float(np.std(blocks, ddof=1)) / math.sqrt(len(blocks))
        calm = len(blocks) == 8 and error <= most * float(step_s.mean())
        return max(SHORTEST_S, float(step_s.sum()) + 1.0) if calm else LONGEST_S

    return wanted


RULES: dict[str, Wanted] = {
    "3 s": fixed(3.0),
    "2 s": fixed(2.0),
    "1.5 s": fixed(1.5),
    "1 s": fixed(1.0),
    "1.5 s, or 50 steps up to 3 s": by_steps,
    "spread 5 %, 1.5 to 3 s": by_spread(0.05),
    "spread 2 %, 1.5 to 3 s": by_spread(0.02),
}


@dataclass(frozen=True)
class Windows:
    """Of one run, shape ``[windows]``."""

    step_s: Array
    """Mean step of each."""
    seconds: Array
    own_s: float
    """Mean step of the run."""


def cut(step_s: Array, wanted: Wanted) -> Windows:
    """Windows from steps all over the run on."""
    n, ring = len(step_s), np.concatenate([step_s, step_s])
    ends = np.concatenate([[0.0], np.cumsum(ring)])
    found = []
    for first in range(0, n, max(1, n // WINDOWS)):
        look, last = INTERVAL_S, None
        while last is None:
            so_far = max(int(np.searchsorted(ends, ends[first] + look)) - first, FEWEST_STEPS)
            seen = ring[first : first + so_far]
            timed_s = float(seen.sum())
            last = choose_last_step(wanted(seen), timed_s, so_far, timed_s / so_far, so_far)
            look += INTERVAL_S
        steps = min(last, n)
        seconds = float(ends[first + steps] - ends[first])
        found.append((seconds / steps, seconds))
    means, lengths = np.array(found).T
    return Windows(means, lengths, float(step_s.mean()))


def recorded(folders: list[Path]) -> dict[int, list[Array]]:
    """Seconds of the timed steps of each long run, by its number of devices."""
    runs: dict[int, list[Array]] = {}
    for folder in folders:
        for cell in load_sweep(folder).cells:
            if cell.result is None:
                continue
            try:
                ranks = timed_steps(list(cell.steps), cell.result.world_size)
            except NotMeasuredError:
                continue
            line = timeline(ranks)
            step_s = np.max([one.column("step", line) for one in ranks], axis=0) / 1e3
            if step_s.sum() >= LEAST_RUN_S:
                runs.setdefault(cell.result.world_size, []).append(step_s)
    return runs


def drawn(rng: np.random.Generator, runs: list[Windows], rounds: int, *, alike: bool) -> Array:
    """Logarithms of rates of random windows of random runs, about the mean over the runs.

    ``alike``: every run is as fast as the others, and only its windows vary.
    """
    middle = np.mean([math.log(one.own_s) for one in runs])
    about = [np.log(one.step_s) - (math.log(one.own_s) if alike else middle) for one in runs]
    which = rng.integers(0, len(runs), (COMPARISONS, rounds))
    place = rng.random((COMPARISONS, rounds))
    found = np.empty(which.shape)
    for run, logs in enumerate(about):
        own = which == run
        found[own] = -logs[(place[own] * len(logs)).astype(int)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    runs = recorded(parser.parse_args().folders)
    for devices, own in sorted(runs.items()):
        logs = [math.log(one.mean()) for one in own]
        print(f"{devices} devices: {len(own)} runs, {100 * np.std(logs, ddof=1):.1f} % apart")
    print("| window | mean length | mean off | apart from its run | coverage | where runs agree |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, wanted in RULES.items():
        cuts = {devices: [cut(one, wanted) for one in own] for devices, own in runs.items()}
        every = [one for own in cuts.values() for one in own]
        off = [float(np.mean(np.log(one.step_s))) - math.log(one.own_s) for one in every]
        apart = [float(np.var(np.log(one.step_s))) for one in every]
        covered = []
        for alike in (False, True):
            rng = np.random.default_rng(1)
            single, multi = (drawn(rng, cuts[n], 20, alike=alike) for n in (1, 2))
            truth = np.full(COMPARISONS, WANTED)
            covered.append(until_decided(single, multi + WANTED, truth).coverage)
        print(
            f"| {name} | {np.mean([one.seconds.mean() for one in every]):.2f} s "
            f"| {100 * np.mean(off):+.2f} % | {100 * math.sqrt(np.mean(apart)):.1f} % "
            f"| {covered[0]:.3f} | {covered[1]:.3f} |"
        )


if __name__ == "__main__":
    main()

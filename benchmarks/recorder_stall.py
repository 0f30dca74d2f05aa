"""What the recorder's second CUDA context cost: sweeps before and after its mend, side by side.

    python benchmarks/recorder_stall.py --before FOLDER ... --after FOLDER ... [--out FILE.png]

The folders are sweeps of one command, taken in turns on one host. For each run on several devices
one line: samples/s, and each stall of all ranks at once. Then samples/s after over before with its
95 % interval, of the runs on several devices and of those on one. The plot shows the step times of
the last run on several devices of each side. docs/recorder_stall.md tells what was wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalewise.analysis import Run, analyse, load_sweep, step_edges_s
from scalewise.analysis.stalls import common_stalls
from scalewise.analysis.statistics import estimate_ratio
from scalewise.report import plot_style

SIDES = ("before", "after")


def timed_runs(folders: Sequence[Path]) -> list[Run]:
    """Every timed run of the sweeps."""
    found = [analyse(load_sweep(folder)) for folder in folders]
    return [r for one in found for config in one.measured for r in config.runs if r.throughput]


def samples_per_s(runs: Sequence[Run], *, several: bool) -> list[float]:
    return [
        run.throughput.global_samples_per_s
        for run in runs
        if run.throughput and (run.world_size > 1) is several
    ]


def line(run: Run) -> str:
    assert run.throughput is not None and run.cell.result is not None
    prepared = [r.execution.prepare_steps for r in run.cell.result.ranks if r.execution]
    stalls = [
        f"{one.length_ms:.0f} ms at {one.begin_s:.2f} s"
        for one in common_stalls(run.cell.steps, max(prepared, default=0))
    ]
    rate = f"{run.throughput.global_samples_per_s:,.0f} samples/s"
    return f"{run.cell.path}: {rate}, stalls: {', '.join(stalls) or 'none'}"


def draw(axes: Axes, run: Run, side: str) -> None:
    edges = [step_edges_s(one) for one in run.cell.steps]
    start = min(float(each[0]) for each in edges)
    for one, each in zip(run.cell.steps, edges, strict=True):
        axes.plot(each[:-1] - start, one.column("step"), color=plot_style.colour(one.rank), lw=0.8,
                  alpha=0.8, drawstyle="steps-post", label=f"rank {one.rank}")  # fmt: skip
    axes.set_yscale("log")
    axes.set_title(f"{side} the mend", loc="left", fontsize=10)
    axes.set_xlabel("seconds since the first step began", fontsize=9)
    plot_style.tidy(axes, "both")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for side in SIDES:
        parser.add_argument(f"--{side}", type=Path, nargs="+", required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, help="write the plot here")
    arguments = parser.parse_args()
    runs = {side: timed_runs(getattr(arguments, side)) for side in SIDES}
    for side in SIDES:
        for run in runs[side]:
            if run.world_size > 1:
                print(f"{side}: {line(run)}")
    for several, name in ((True, "several devices"), (False, "one device")):
        before, after = (samples_per_s(runs[side], several=several) for side in SIDES)
        if before and after:
            ratio = estimate_ratio(after, before)
            bounds = ratio.interval
            interval = f" ({bounds.low:.2f} to {bounds.high:.2f})" if bounds else ""
            print(f"{name}, after over before: {ratio.value:.2f}{interval}, {ratio.n} runs")
    if arguments.out:
        made = plot_style.figure(12.0, 3.6)
        plot(made, [[r for r in runs[side] if r.world_size > 1][-1] for side in SIDES])
        made.savefig(arguments.out)
    return 0


def plot(made: Figure, runs: Sequence[Run]) -> None:
    """One panel a side, both with the same axes."""
    panels = made.subplots(1, len(SIDES), sharex=True, sharey=True)
    for axes, run, side in zip(panels, runs, SIDES, strict=True):
        draw(axes, run, side)
    panels[0].set_ylabel("step time (ms)", fontsize=9)
    made.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""How much of the run-to-run variance of the step time the probe of the host explains.

    python benchmarks/host_probe.py FOLDER...
    python benchmarks/host_probe.py --watch 700    # seconds: how long a slow host stays slow

Of each configuration of these sweeps, runs that are set aside included: R2 of the log step time
(mean of the timed steps) on the log of the probe's median and of its mean, by the slowest rank, and
on the share of its cores that others had in the timed window, alone and with that median. Then the
medians of all ranks, in order.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scalewise.analysis import Run, configurations, load_sweep
from scalewise.analysis.disturbances import SLOW_HOST_BY, foreign_cpu_share
from scalewise.analysis.run import measure_run
from scalewise.analysis.steps import NotMeasuredError
from scalewise.train.recording.host_probe import PROBE_S, probe_host


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--watch", type=float)
    options = parser.parse_args()
    if options.watch:
        watch(options.watch)
        return
    print("| sweep | configuration | runs | SD of log step | median | mean | others | both |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    medians_us: list[float] = []
    for folder in options.folders:
        for config in configurations(load_sweep(folder)):
            runs = [measure_run(cell) for cell in config.cells if cell.result]
            ranks = [rank for run in runs for rank in run.ranks]
            medians_us += [rank.host_probe.loop_us for rank in ranks if rank.host_probe]
            found = [one for run in runs if (one := row(run)) is not None]
            if len(found) < 5:
                continue
            step, median, mean, others = np.array(found).T
            explained = [r2(step, *of) for of in ((median,), (mean,), (others,), (others, median))]
            cells = " | ".join(f"{value:.2f}" for value in explained)
            spread = 100 * step.std(ddof=1)
            print(f"| {folder.name} | {config.label} | {len(found)} | {spread:.0f} % | {cells} |")
    print(
        f"\nmedians of {len(medians_us)} probes (us):", *np.sort(np.round(medians_us)).astype(int)
    )


def watch(seconds: float) -> None:
    """Probe every 1.5 s; print the medians, and how often a slow one follows a slow one."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    end, loops_us = time.monotonic() + seconds, list[float]()
    while time.monotonic() < end:
        loops_us.append(probe_host("watch", 0, 1, on_gpu=False).loop_us)
        time.sleep(1.5 - PROBE_S)
    slow = np.array(loops_us) > (1 + SLOW_HOST_BY) * np.median(loops_us)
    after = slow[1:][slow[:-1]]
    print("medians (us):", *np.sort(np.round(loops_us)).astype(int))
    print(f"{slow.mean():.2f} of {len(slow)} are slow; after a slow one {after.mean():.2f}")


def row(run: Run) -> tuple[float, float, float, float] | None:
    """Logs of step time, of the probe's median and mean, and others' share; None if one misses."""
    probes = [rank.host_probe for rank in run.ranks]
    if run.throughput is None or not all(probes):
        return None
    try:
        others = foreign_cpu_share(run.ranks)
    except NotMeasuredError:
        return None
    median = max(probe.loop_us for probe in probes if probe)
    mean = max(probe.loop_mean_us for probe in probes if probe)
    return (
        float(np.log(run.throughput.step_time_ms.mean)), float(np.log(median)),
        float(np.log(mean)), others,
    )  # fmt: skip


def r2(y: npt.NDArray[np.float64], *columns: Sequence[float]) -> float:
    """Share of the variance of ``y`` that a linear fit on these columns explains, 0 to 1."""
    design = np.column_stack([np.ones(len(y)), *columns])
    fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return 1 - float(((y - fitted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


if __name__ == "__main__":
    main()

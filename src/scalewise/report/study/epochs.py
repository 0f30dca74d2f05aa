"""What a run did epoch by epoch: how long each took, and how well it scored after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.statistics import Estimate, estimate_positive


def epoch_times_s(run: Run, warmup_epochs: int) -> tuple[float, ...]:
    """Seconds of training in each whole epoch after the first ``warmup_epochs``.

    The sum of the steps of the rank that took longest, on the host's clock: between epochs the
    device has nothing to do, and validation is no part of it. An epoch of fewer steps than another
    was cut off by ``max_steps`` and is left out.
    """
    ranks = []
    for series in run.cell.steps:
        epochs, of_step, steps = np.unique(
            series.rows["epoch"], return_inverse=True, return_counts=True
        )
        sums = np.bincount(of_step, series.column("step", "host")) / 1e3
        whole = (steps == steps.max()) & (epochs >= warmup_epochs) if len(steps) else steps > 0
        ranks.append(sums[whole])
    if not ranks or len({len(times) for times in ranks}) != 1:
        return ()
    return tuple(float(t) for t in np.max(ranks, axis=0))


def mean_epoch_time_s(config: Configuration, warmup_epochs: int) -> Estimate | None:
    """Geometric mean over runs of each run's mean epoch time; None where no whole epoch was run."""
    means = [
        sum(times) / len(times)
        for run in config.runs
        if (times := epoch_times_s(run, warmup_epochs))
    ]
    return estimate_positive(means) if means else None


def accuracy(run: Run) -> tuple[Sequence[int], Sequence[float]] | None:
    """Samples fed and accuracy in percent at each validation; None where none was scored."""
    rows = run.cell.metrics.get(0, ())
    points = [(r.samples, v) for r in rows if (v := r.values.get("val_accuracy")) is not None]
    if not points:
        return None
    samples, values = zip(*points, strict=True)
    return samples, [100 * value for value in values]

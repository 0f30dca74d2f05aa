"""Memory against quality at equal samples: what an optimizer or a pruning costs, and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from scalewise.analysis.runs import Configuration, Metric
from scalewise.analysis.statistics import Estimate, estimate_mean
from scalewise.report import style


@dataclass(frozen=True)
class Point:
    """One configuration."""

    label: str
    state_mib: float
    """Optimizer state, masks and scores of one rank: the largest over ranks, mean over runs."""
    loss: Estimate
    pruned_share: float | None


def points(configs: Sequence[Configuration]) -> tuple[list[Point], str, int] | None:
    """Every configuration whose memory is known, with its loss at the same number of samples.

    Returns the points, the name of the loss and the samples; None where fewer than two optimizers
    or prunings can be compared, or their runs do not share a loss.
    """
    usable = [
        c
        for c in configs
        if _mean(c, "optimizer_memory_mib") is not None and any(r.loss for r in c.runs)
    ]
    kinds = {(c.name("optimizer"), c.name("pruning")) for c in usable}
    curves = [run.loss for c in usable for run in c.runs if run.loss is not None]
    if len(kinds) < 2 or len({curve.name for curve in curves}) != 1:
        return None
    samples = min(curve.samples[-1] for curve in curves)
    found = []
    for config in usable:
        losses = [v for r in config.runs if r.loss and (v := r.loss.at(samples)) is not None]
        state = _mean(config, "optimizer_memory_mib")
        if losses and state is not None:
            found.append(
                Point(config.label, state, estimate_mean(losses), _mean(config, "pruned_share"))
            )
    return found, curves[0].name, samples


def memory_quality(dataset: str, configs: Sequence[Configuration]) -> Figure | None:
    """A dot a configuration: memory to the right, loss upwards; below and left is better."""
    compared = points(configs)
    if compared is None:
        return None
    found, loss, samples = compared
    made = style.figure(9, 5.2)
    axes = made.subplots()
    for i, point in enumerate(found):
        interval = point.loss.interval
        spread = (
            [[point.loss.value - interval.low], [interval.high - point.loss.value]]
            if interval
            else None
        )
        pruned = "" if point.pruned_share is None else f" ({point.pruned_share:.0%} pruned)"
        axes.errorbar(point.state_mib, point.loss.value, yerr=spread, fmt=style.marker(i), ms=7,
                      capsize=3, color=style.colour(i), label=point.label + pruned)  # fmt: skip
    axes.set_xlim(0, axes.get_xlim()[1] * 1.05)
    axes.set(
        xlabel="optimizer state, masks and scores of one rank (MiB)",
        ylabel=f"{loss} at {samples:,} samples",
    )
    axes.set_title(f"{dataset}: memory against quality", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    style.tidy(axes, "both")
    return made


def _mean(config: Configuration, metric: Metric) -> float | None:
    figure = config.estimate(metric)
    return figure.value if figure else None

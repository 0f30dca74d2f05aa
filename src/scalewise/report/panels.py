"""Rows of a plot: a panel a workload, a row a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from scalewise.analysis.runs import Configuration


def by_workload(configs: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    groups: dict[str, list[Configuration]] = {}
    for config in configs:
        model, dataset = config.name("model"), config.name("dataset")
        name = f"{model} on {dataset}" if model and dataset else config.label
        groups.setdefault(name, []).append(config)
    return groups


def short_label(config: Configuration, workload: str) -> str:
    """The label without the model, which the panel's title names already."""
    return config.label.removeprefix(f"{config.name('model')} ")


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first on top

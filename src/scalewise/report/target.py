"""Time and cost of a number of samples that somebody means to train."""

from __future__ import annotations

from typing import Any

from scalewise.analysis.ceiling import is_ceiling
from scalewise.analysis.figures import estimate, figure_as_plain
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.analysis.target import Target, reach
from scalewise.report import cost
from scalewise.report.table import Table

_NO_PRICE = "missing"

HOW_TO_READ = (
    "All of it at the rate of the timed steps, of which the 95 % intervals are: start-up, warm-up, "
    "validation, checkpoints and what hours at full heat change are not in it. Equal samples are "
    "not equal losses: compare what was reached, above all where the batches differ."
)


def title(samples: int) -> str:
    return f"Time and cost of {samples:,} samples"


def target_table(analysis: Analysis, samples: int) -> Table:
    """Hours and USD of ``samples``; a row a configuration, the word for a price nobody knows."""
    rows = []
    for config, found in _each(analysis, samples):
        usd = estimate(found.usd) if found.usd else _NO_PRICE
        rows.append((config.label, estimate(found.hours), usd))
    headers = ("configuration", "wall time (hours)", "cost (USD)")
    table = Table(headers, tuple(rows), frozenset({1, 2}))
    return table.without([2]) if all(row[2] == _NO_PRICE for row in rows) else table


def price_lines(analysis: Analysis) -> list[str]:
    """Where the USD come from, or why there are none."""
    return [line.replace("no cost in USD", "USD missing") for line in cost.price_lines(analysis)]


def as_plain(analysis: Analysis, samples: int | None) -> dict[str, Any] | None:
    """The field of ``results.json``; None where nobody asked."""
    if samples is None:
        return None
    return {
        "samples": samples,
        "configurations": [
            {
                "config_id": config.config_id,
                "label": config.label,
                "devices": config.devices,
                "hours": figure_as_plain(found.hours),
                "usd": figure_as_plain(found.usd),
                "missing": found.missing,
            }
            for config, found in _each(analysis, samples)
        ],
    }


def _each(analysis: Analysis, samples: int) -> list[tuple[Configuration, Target]]:
    """Independent models are a bound, and no way to train one: they are left out."""
    return [
        (config, reach(samples, config, analysis.costs.get(config.config_id)))
        for config in analysis.measured
        if not is_ceiling(config)
    ]

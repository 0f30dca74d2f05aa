"""Cost in a report: of a million samples, beside a single device, and at whose price."""

from __future__ import annotations

from typing import Any

from scalewise.analysis.ceiling import is_ceiling
from scalewise.analysis.cost import Cost, cost_ratio
from scalewise.analysis.figures import (
    MISSING,
    estimate,
    factor,
    figure_as_plain,
    interval_words,
    number,
    ratio,
)
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.analysis.summary import Analysis
from scalewise.report.table import Table
from scalewise.validation import to_plain

EXCLUDED = (
    "of the timed steps alone: start-up, warm-up, GPUs of the host that stand idle, storage and "
    "traffic are not in it, and a list price is not what you pay"
)
HOW_TO_READ = (
    f"USD are {EXCLUDED} (`+hardware.price=...` gives your own). *Cost of a sample* is over that "
    "on the single device: 1 / efficiency at one price. Verdicts weigh time, not money: from an "
    "efficiency of 0.5 a *beneficial* configuration may cost twice as much a sample."
)


def cost_table(analysis: Analysis) -> Table:
    """A row a configuration; no row at all where no price is known."""
    headers = ("configuration", "USD per million samples", "cost of a sample (x single)")
    rows = []
    for config in analysis.measured:
        cost, pair = analysis.costs.get(config.config_id), analysis.sound_pair(config)
        compared = cost_ratio(pair, analysis.costs) if pair else None
        usd = estimate(cost.usd_per_million_samples if cost else None)
        rows.append((config.label, usd, ratio(compared) if compared else MISSING))
    if all(row[1] == MISSING for row in rows):
        rows = []
    return Table(headers, tuple(rows), frozenset({1, 2})).without_empty_columns()


def price_lines(analysis: Analysis) -> list[str]:
    """Each price with its source and date, and each reason why there is no cost.

    A line names its configurations unless it holds for all of them.
    """
    labels: dict[str, list[str]] = {}
    for config in analysis.measured:
        cost = analysis.costs.get(config.config_id)
        if cost is not None:
            labels.setdefault(_price_line(cost), []).append(config.label)
    if len(labels) == 1:
        return list(labels)
    return [f"{', '.join(names)}: {line}" for line, names in labels.items()]


def sentence(analysis: Analysis, pair: Pair) -> str:
    """``2 GPUs cost 1.13 times as much a sample as one and finish 1.77 times as soon``, priced.

    Empty for independent models, which are a bound and nothing one could choose, and where the
    price of one side alone is known.
    """
    compared = cost_ratio(pair, analysis.costs)
    if is_ceiling(pair.multi) or compared is None:
        return ""
    noun = "devices" if pair.multi.is_cpu else "GPUs"
    interval = f" ({interval_words(compared)})" if compared.interval else ""
    said = (
        f"{pair.devices} {noun} cost {factor(compared.value)} times as much a sample as one"
        f"{interval} and {_finish(pair.speedup.value)}"
    )
    multi, single = (analysis.costs.get(c.config_id) for c in (pair.multi, pair.single))
    if multi is None or single is None:
        return f"at equal prices, {said}"
    if multi.usd_per_million_samples is None or single.usd_per_million_samples is None:
        return f"at equal prices, {said} (no cost in USD: {multi.missing or single.missing})"
    usd = number(multi.usd_per_million_samples.value)
    alone = number(single.usd_per_million_samples.value)
    prices = " and ".join(dict.fromkeys(map(_price_words, (multi, single))))
    return f"{said}: {usd} USD per million samples, single {alone}, at {prices}"


def as_plain(analysis: Analysis, config: Configuration) -> dict[str, Any]:
    """The fields of a configuration in ``results.json``."""
    cost, pair = analysis.costs.get(config.config_id), analysis.sound_pair(config)
    return {
        "usd_per_million_samples": figure_as_plain(cost.usd_per_million_samples if cost else None),
        "sample_cost_ratio": figure_as_plain(cost_ratio(pair, analysis.costs) if pair else None),
        "price_of_one_device": to_plain(cost and cost.price),
        "cost_missing": cost and cost.missing,
    }


def _finish(speedup: float) -> str:
    """How long the same samples take."""
    if speedup >= 1:
        return f"finish {factor(speedup)} times as soon"
    return f"take {factor(1 / speedup)} times as long"


def _price_line(cost: Cost) -> str:
    return f"no cost in USD: {cost.missing}" if cost.missing else f"price: {_price_words(cost)}"


def _price_words(cost: Cost) -> str:
    price = cost.price
    if price is None:
        return "no known price"
    return f"{_exactly(price.usd_per_hour)} USD per device and hour ({price.source}, {price.date})"


def _exactly(usd: float) -> str:
    """As it was read: who multiplies it out is to get what stands beside it."""
    cents = f"{usd:.2f}"
    return cents if float(cents) == usd else f"{usd:.10g}"

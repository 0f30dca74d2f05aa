"""Cost of a sample; how many devices to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scalewise.analysis import (
    Analysis,
    Cost,
    LadderRow,
    devices_to_take,
    fastest_of_each,
    measured_rows,
    times,
)
from scalewise.host import plural
from scalewise.report.sections import (
    Section,
    Table,
    figure_columns,
    lines,
    section,
    table,
)

_EXCLUDED = (
    "of the timed steps alone: start-up, warm-up, devices of the host that stand idle, storage and "
    "traffic are not in it, and a list price is not what you pay"
)

_USD_NOTE = f"USD are {_EXCLUDED} (`+hardware.price=...` gives your own). "
_COST_NOTE = (
    "*Cost of a sample* is over that on the single device: 1 / efficiency at one price. "
    "Verdicts weigh time, not money: from an efficiency of 0.5 on, devices that *pay* may "
    "cost twice as much a sample."
)

_SAID_BY_THE_SPEEDUP = 2
"""Devices up to which a speedup over one is all there is to say."""


def cost(analysis: Analysis) -> Section:
    """Cost of a sample over that on one device, and of a million in USD where prices are known."""
    return section("cost", "Cost", lines(price_lines(analysis)), _cost_table(analysis))


def _cost_table(analysis: Analysis) -> Table:
    made = table("cost", figure_columns("cost"), measured_rows(analysis))
    keys = {column.key for column in made.columns}
    priced = "usd_per_million_samples" in keys
    note = (_USD_NOTE if priced else "") + _COST_NOTE
    return replace(made, rows=made.rows if len(keys) > 1 else (), note=note)


def price_lines(analysis: Analysis, lacking: str = "no cost in USD") -> list[str]:
    """Each price with its source and date, and each reason why there is no cost, after ``lacking``.

    A line names its configurations unless it holds for all of them.
    """
    labels: dict[str, list[str]] = {}
    for config in analysis.measured:
        if found := analysis.costs.get(config.config_id):
            missing = f"{lacking}: {found.missing}"
            line = missing if found.missing else f"price: {_price_words(found)}"
            labels.setdefault(line, []).append(config.label)
    if len(labels) == 1:
        return list(labels)
    return [f"{', '.join(names)}: {line}" for line, names in labels.items()]


def _price_words(found: Cost) -> str:
    price = found.price
    if price is None:
        return "no known price"
    cents = f"{price.usd_per_hour:.2f}"
    # As it was read: who multiplies it out is to get what stands beside it.
    usd = cents if float(cents) == price.usd_per_hour else f"{price.usd_per_hour:.10g}"
    return f"{usd} USD per device and hour ({price.source}, {price.date})"


def lines_of_devices(analysis: Analysis) -> Iterator[str]:
    """How many devices to take, where three numbers or more ran, and why not more."""
    for ladder in analysis.ladders:
        if len(fastest_of_each(ladder)) < 3 and ladder[-1].devices <= _SAID_BY_THE_SPEEDUP:
            continue
        taken, config = devices_to_take(ladder), ladder[-1].config
        parts = (config.name("model"), config.name("strategy"), *config.swept)
        name = " ".join(part for part in parts if part)
        figure = f", {times(taken.pair.speedup)}" if taken.pair else ""
        count = f"{taken.devices} {plural(taken.devices, 'device')}"
        more = [rung for rung in fastest_of_each(ladder) if rung.devices > taken.devices]
        why = f"; {why_not(more[0])}" if more else ""
        still = any(rung.pair and rung.pair.verdict == "undecided" for rung in more)
        yield f"{name}: take {count}{' for now' if still else ''}{figure}{why}."


def why_not(rung: LadderRow) -> str:
    """``8 do not pay: 3.90x where 4.00x is wanted of 8``."""
    assert rung.pair is not None
    verdict, short = rung.pair.verdict, rung.pair.judgement.short
    if verdict == "does not pay":
        return f"{rung.devices} do not pay: {short}"
    if verdict == "pays" and rung.gain is not None:
        return f"{rung.devices} are not shown to beat {rung.gain.smaller}"
    return f"{rung.devices} are {verdict}"

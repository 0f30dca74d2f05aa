"""Cost of a sample, time and cost of a target, and what each number of devices gains."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from scalewise.analysis import (
    Analysis,
    Configuration,
    Cost,
    Estimate,
    RatioEstimate,
    Target,
    cost_ratio,
    estimate,
    fastest_of_each,
    figure_as_plain,
    is_ceiling,
    ladders,
    ratio,
    reach,
    swept_values,
)
from scalewise.records import to_plain
from scalewise.report.scaling_tables import verdict
from scalewise.report.sections import (
    NAME,
    Column,
    Read,
    Section,
    Table,
    lines,
    section,
    table,
    words,
)

_EXCLUDED = (
    "of the timed steps alone: start-up, warm-up, devices of the host that stand idle, storage and "
    "traffic are not in it, and a list price is not what you pay"
)

_USD_NOTE = f"USD are {_EXCLUDED} (`+hardware.price=...` gives your own). "
_COST_NOTE = (
    "*Cost of a sample* is over that on the single device: 1 / efficiency at one price. "
    "Verdicts weigh time, not money: from an efficiency of 0.5 a *beneficial* configuration may "
    "cost twice as much a sample."
)

_TARGET_NOTE = (
    "Times are at the rate of the timed steps, and so are their 95 % intervals. Start-up, warm-up, "
    "validation, checkpoints and what hours at full heat change are not in them. Equal samples are "
    "not equal losses: compare what was reached, above all where the batches differ."
)

_DEVICES_NOTE = (
    "*Gain* is samples/s over those of the next smaller number of devices, with a 95 % "
    "interval of pairs; the fastest counts where several ran on as many. *Each added device* "
    "brings that much of what one of the smaller number does: 1 where it works as well, 0 where "
    "it changes nothing. The speedup, the efficiency and the verdict are over one device."
)

_SAID_BY_THE_SPEEDUP = 2
"""Devices up to which a speedup over one is all there is to say."""


def cost(analysis: Analysis) -> Section:
    """Cost of a sample over that on one device, and of a million in USD where prices are known."""
    return section("cost", "Cost", lines(price_lines(analysis)), _cost_table(analysis))


def _cost_table(analysis: Analysis) -> Table:
    usd = partial(usd_per_million, analysis)

    def compared(config: Configuration) -> RatioEstimate | None:
        pair = analysis.valid_pair(config)
        return cost_ratio(pair, analysis.costs) if pair else None

    columns = (
        NAME,
        Column("usd", "USD per million samples", "", usd, estimate),
        Column("cost_ratio", "cost of a sample", "x single", compared, ratio),
    )
    priced = any(map(usd, analysis.measured))
    rows = analysis.measured if priced or any(map(compared, analysis.measured)) else ()
    return table("cost", columns, rows, (_USD_NOTE if priced else "") + _COST_NOTE)


def usd_per_million(analysis: Analysis, config: Configuration) -> Estimate | None:
    """USD per million samples; None without a price."""
    return analysis.cost(config).usd_per_million_samples


def price_lines(analysis: Analysis, lacking: str = "no cost in USD") -> list[str]:
    """Each price with its source and date, and each reason why there is no cost, after ``lacking``.

    A line names its configurations unless it holds for all of them.
    """
    labels: dict[str, list[str]] = {}
    for config in analysis.measured:
        found = analysis.costs.get(config.config_id)
        if found is not None:
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


def cost_as_plain(analysis: Analysis, config: Configuration) -> dict[str, Any]:
    """The fields of a configuration in ``results.json``."""
    found, pair = analysis.cost(config), analysis.valid_pair(config)
    return {
        "usd_per_million_samples": figure_as_plain(usd_per_million(analysis, config)),
        "sample_cost_ratio": figure_as_plain(cost_ratio(pair, analysis.costs) if pair else None),
        "price_of_one_device": to_plain(found.price),
        "cost_missing": found.missing,
    }


def target(analysis: Analysis, samples: int | None) -> Section:
    """Hours and USD of ``samples``, a number that somebody means to train."""
    if samples is None:
        return section("target", "")
    columns = (
        words("configuration", "configuration", lambda row: row[0].label),
        Column("hours", "wall time", "hours", lambda row: row[1].hours, estimate),
        Column("usd", "cost", "USD", lambda row: row[1].usd or (priced and "missing") or None,
               lambda usd: usd if isinstance(usd, str) else estimate(usd)),
    )  # fmt: skip
    rows = _targets(analysis, samples)
    priced = any(one.usd for _, one in rows)
    prices = price_lines(analysis, "USD missing")
    return section(
        "target",
        f"Time and cost of {samples:,} samples",
        lines(prices if rows else (), "list", "page"),
        table("target", columns, rows, _TARGET_NOTE),
    )


def target_as_plain(analysis: Analysis, samples: int | None) -> dict[str, Any] | None:
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
            for config, found in _targets(analysis, samples)
        ],
    }


def _targets(analysis: Analysis, samples: int) -> list[tuple[Configuration, Target]]:
    """Independent models are a bound, and no way to train one: they are left out."""
    return [
        (config, reach(samples, config, analysis.cost(config)))
        for config in analysis.measured
        if not is_ceiling(config)
    ]


def numbers_of_devices(analysis: Analysis) -> Section:
    """A row for each number of devices, where there are more than a speedup says."""

    def pair(figure: str) -> Read:
        return lambda rung: getattr(rung.pair, figure, None)

    def gain(figure: str) -> Read:
        return lambda rung: getattr(rung.gain, figure, None)

    columns = (
        words("configuration", "configuration", lambda rung: rung.config.label),
        Column("samples_per_s", "samples/s", "global",
               lambda rung: rung.config.estimate("global_samples_per_s"), estimate),
        Column("speedup", "speedup", "", pair("speedup"), ratio),
        Column("efficiency", "efficiency", "", pair("efficiency"), ratio),
        Column("gain", "gain over the next smaller", "", gain("ratio"), ratio),
        Column("added", "each added device", "x one before", gain("added"), ratio),
        Column("usd", "USD per million samples", "",
               lambda rung: usd_per_million(analysis, rung.config), estimate),
        words("verdict", "verdict", lambda rung: verdict(analysis, rung.config)),
    )  # fmt: skip
    shown = [one for one in ladders(analysis.pairs) if one[-1].devices > _SAID_BY_THE_SPEEDUP]
    rows = [rung for ladder in shown for rung in ladder]
    return section(
        "numbers_of_devices",
        "Numbers of devices side by side",
        table("numbers_of_devices", columns, rows, _DEVICES_NOTE),
        lines(gain_lines(analysis) if shown else ()),
    )


def gain_lines(analysis: Analysis) -> Iterator[str]:
    """Up to which number of devices more of them are faster, where three or more ran."""
    for ladder in ladders(analysis.pairs):
        best = fastest_of_each(ladder)
        if len(best) < 3 and ladder[-1].devices <= _SAID_BY_THE_SPEEDUP:
            continue
        config, good = ladder[-1].config, 1
        parts = (config.name("model"), config.name("strategy"), *swept_values(config.label))
        name = " ".join(part for part in parts if part)
        for devices, gain in ((one.devices, one.gain) for one in best if one.gain is not None):
            if gain.step != "faster":
                verb = "are slower than" if gain.step == "slower" else "are not shown to beat"
                yield f"{name}: {devices} devices {verb} {gain.smaller}."
                break
            good = devices
        else:
            yield f"{name}: more devices are faster up to {good}."

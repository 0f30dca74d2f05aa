"""One row for each number of devices: what it makes, costs, and gains over the next smaller one."""

from __future__ import annotations

from typing import Any

from scalewise.analysis.figures import MISSING, estimate, figure_as_plain, ratio
from scalewise.analysis.labels import told_apart
from scalewise.analysis.runs import Configuration
from scalewise.analysis.statistics import Estimate
from scalewise.analysis.summary import Analysis
from scalewise.analysis.widths import Gain, Ladder, Width, fastest_of_each, ladders
from scalewise.report import tables
from scalewise.report.table import Table

_SAID_BY_THE_SPEEDUP = 2
"""Devices up to which a speedup over one is all there is to say."""

HOW_TO_READ = (
    "*Gain* is samples/s over those of the next smaller number of devices, the fastest where "
    "several ran on as many, with Welch's 95 % interval; *each added device* brings that much of "
    "what one of the smaller number does: 1 where it works as well, 0 where it changes nothing. "
    "The speedup, the efficiency and the verdict are over one device."
)


def shown(analysis: Analysis) -> tuple[Ladder, ...]:
    """Ladders that reach beyond two devices: the others' speedups and costs say it all."""
    found = ladders(analysis.pairs)
    return tuple(ladder for ladder in found if ladder[-1].devices > _SAID_BY_THE_SPEEDUP)


def widths_table(analysis: Analysis) -> Table:
    """A row a width, ladder below ladder; no row where there is no more than a speedup to show."""
    headers = (
        "configuration", "samples/s (global)", "speedup", "efficiency",
        "gain over the next smaller", "each added device (x one before)",
        "USD per million samples", "verdict",
    )  # fmt: skip
    rows = tuple(_row(analysis, width) for ladder in shown(analysis) for width in ladder)
    return Table(headers, rows, frozenset(range(1, len(headers) - 1))).without_empty_columns()


def lines(analysis: Analysis) -> list[str]:
    """For each ladder, up to which width the devices that are added make it faster."""
    return [f"{_name(ladder[-1].config)}: {_sentence(ladder)}" for ladder in shown(analysis)]


def as_plain(analysis: Analysis) -> list[dict[str, Any]]:
    """The ladders in ``results.json``, those of two widths too."""
    return [
        {
            "config_id": width.config.config_id,
            "label": width.config.label,
            "devices": width.devices,
            "next_smaller_devices": width.gain and width.gain.smaller,
            "gain_over_next_smaller": figure_as_plain(width.gain.ratio if width.gain else None),
            "each_added_device": figure_as_plain(width.gain.added if width.gain else None),
        }
        for ladder in ladders(analysis.pairs)
        for width in ladder
    ]


def _row(analysis: Analysis, width: Width) -> tuple[str, ...]:
    pair, gain, config = width.pair, width.gain, width.config
    return (
        config.label,
        estimate(config.estimate("samples_per_s")),
        ratio(pair.speedup) if pair else MISSING,
        ratio(pair.efficiency) if pair else MISSING,
        ratio(gain.ratio) if gain else MISSING,
        ratio(gain.added) if gain else MISSING,
        estimate(_usd(analysis, config)),
        tables.verdict(analysis, config) or MISSING,
    )


def _usd(analysis: Analysis, config: Configuration) -> Estimate | None:
    cost = analysis.costs.get(config.config_id)
    return cost.usd_per_million_samples if cost else None


def _sentence(ladder: Ladder) -> str:
    best = fastest_of_each(ladder)
    rest = [(width.devices, width.gain) for width in best if width.gain is not None]
    faster = []
    while rest and rest[0][1].step == "faster":
        faster.append(rest.pop(0))
    said = [_clause(*step) for step in faster]
    if len(faster) > 1:
        said = [_all_faster(faster[-1][0])]
    several = "" if len(best) == len(ladder) else " (the fastest of each number of devices)"
    return "; ".join([*said, *(_clause(*step) for step in rest)]) + several


def _all_faster(devices: int) -> str:
    return f"up to {devices} devices each number makes more samples/s than the next smaller one"


def _clause(devices: int, gain: Gain) -> str:
    words = {
        "faster": "make more samples/s than",
        "slower": "make fewer samples/s than",
        "not shown": "are not shown to make more samples/s than",
    }
    more = devices - gain.smaller
    each = "the one added brings" if more == 1 else f"each of the {more} added brings"
    before = "one alone" if gain.smaller == 1 else f"one of the {gain.smaller} before"
    return (
        f"{devices} devices {words[gain.step]} {gain.smaller}: {each} {ratio(gain.added)} of what "
        f"{before} does"
    )


def _name(config: Configuration) -> str:
    parts = (config.name("model"), config.name("strategy"), *told_apart(config.label))
    return " ".join(part for part in parts if part)

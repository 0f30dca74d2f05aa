"""The best measured configuration of each number of devices, and the speedup one would use."""

from __future__ import annotations

import math
from typing import Any

from scalewise.analysis import (
    Analysis,
    Best,
    BestOfEach,
    Configuration,
    bounds_words,
    count_words,
    estimate,
    factor,
    figure_as_plain,
    interval_words,
    listed,
    number,
    ratio,
    told_apart,
)
from scalewise.host import plural
from scalewise.records import to_plain
from scalewise.report.sections import Column, Section, lines, section, table, words

_NOTE = (
    "The *speedup one would use* is the best of each number of devices over the best of one, "
    "whichever those are: its 95 % interval is corrected for the number of candidates "
    "(docs/method.md). *Left open* are those not shown to be slower than the one named, in "
    "intervals that hold together at 95 %."
)

_MOST_NAMED = 2
"""Configurations named in one clause; further ones are counted."""


def best(analysis: Analysis) -> Section:
    """A row for each number of devices, where one of them had several candidates."""

    def seconds(row: tuple[BestOfEach, Best]) -> float | None:
        return _seconds_to_loss(*row)

    columns = (
        words("model", "model", lambda row: row[1].config.name("model")),
        Column("devices", "devices", "", lambda row: row[1].devices),
        words("best", "best", lambda row: _name(row[1].config)),
        Column("candidates", "candidates", "", lambda row: row[1].candidates),
        words("left_open", "left open",
              lambda row: ", ".join(map(_name, row[1].rivals)) or None),
        Column("samples_per_s", "samples/s", "global",
               lambda row: row[1].config.estimate("samples_per_s"), estimate),
        Column("seconds", "time to the loss all reach", "s", seconds, number),
        Column("speedup", "speedup one would use", "", lambda row: row[1].speedup, ratio),
        words("verdict", "verdict", lambda row: row[1].judgement and row[1].judgement.verdict),
    )  # fmt: skip
    rows = [(one, row) for one in analysis.best for row in one.rows]
    return section(
        "best",
        "Best of each number of devices",
        lines(best_lines(analysis)),
        table("best", columns, rows, _NOTE, where="page"),
    )


def best_lines(analysis: Analysis) -> list[str]:
    """Two lines for each model: what is best and the speedup, then what is not certain of it."""
    return [
        f"{one.rows[0].config.name('model')}: {'; '.join(said)}"
        for one in analysis.best
        for said in ([_clause(one, row) for row in one.rows], _doubts(one))
    ]


def best_in_brief(analysis: Analysis) -> list[str]:
    """One line for each model: the best of each number of devices, and the speedup."""
    return [
        f"{one.rows[0].config.name('model')}, best of each: "
        f"{'; '.join(_brief(row) for row in one.rows)}."
        for one in analysis.best
    ]


def _brief(row: Best) -> str:
    said = f"{_devices(row)} {_name(row.config)}"
    if row.speedup is None or row.judgement is None:
        return said
    figure = f"{factor(row.speedup.value)}x{bounds_words(row.speedup.interval)}"
    return f"{said}, {figure}, {row.judgement.verdict}"


def best_as_plain(analysis: Analysis) -> list[dict[str, Any]]:
    """The field of ``results.json``: one for each group of candidates."""
    return [
        {
            "equal_loss": to_plain(one.equal_loss),
            "left_out": [{"config_id": c.config_id, "reason": how} for c, how in one.left_out],
            "loss_not_compared": [c.config_id for c in one.not_compared],
            "no_candidates": [{"config_id": c.config_id, "differing": f} for c, f in one.apart],
            "devices": [
                {
                    "devices": row.devices,
                    "config_id": row.config.config_id,
                    "label": row.config.label,
                    "candidates": row.candidates,
                    "left_open": [rival.config_id for rival in row.rivals],
                    "seconds_to_equal_loss": _seconds_to_loss(one, row),
                    "speedup_one_would_use": figure_as_plain(row.speedup),
                    "judgement": to_plain(row.judgement),
                }
                for row in one.rows
            ],
        }
        for one in analysis.best
    ]


def _name(config: Configuration) -> str:
    """``ddp batch_size=512``: what tells it from others of its model and number of devices."""
    telling = told_apart(config.label)
    strategy = [] if config.devices == 1 and telling else [config.name("strategy") or ""]
    return " ".join([*strategy, *telling])


def _clause(one: BestOfEach, row: Best) -> str:
    figure = f"{estimate(row.config.estimate('samples_per_s'))} samples/s"
    seconds = _seconds_to_loss(one, row)
    if seconds is not None:
        figure = f"{number(seconds)} s to equal loss at {figure}"
    said = (
        f"best on {_devices(row)}: {_name(row.config)}, {figure} "
        f"(n={len(row.config.values('samples_per_s'))})"
    )
    if row.speedup is None or row.judgement is None:
        return said
    bound = f"{interval_words(row.speedup)}, " if row.speedup.interval else ""
    return (
        f"{said}; speedup one would use: {factor(row.speedup.value)} "
        f"({bound}{count_words(row.speedup)}): {row.judgement.verdict}"
    )


def _doubts(one: BestOfEach) -> list[str]:
    """What the losses say, and which configurations are left open or out."""
    said = ["no loss is clearly higher at equal samples"]
    if one.equal_loss is not None:
        said = [f"all reach {one.equal_loss.name} {number(one.equal_loss.level)}, of one seed"]
    elif one.not_compared:
        said = [f"loss not compared: {_listed([c.label for c in one.not_compared])}"]
    if one.left_out:
        said.append(f"learns less: {_listed([f'{c.label} ({how})' for c, how in one.left_out])}")
    said += [
        f"on {_devices(row)} not shown to be faster than {_listed(list(map(_name, row.rivals)))}"
        for row in one.rows
        if row.rivals
    ]
    if one.apart:
        apart = [f"{config.label} ({', '.join(fields[:2])})" for config, fields in one.apart]
        said.append(f"no candidates, as they differ in more: {_listed(apart)}")
    return said


def _listed(names: list[str]) -> str:
    return listed(names, _MOST_NAMED)


def _devices(row: Best) -> str:
    return f"{row.devices} {plural(row.devices, 'device')}"


def _seconds_to_loss(one: BestOfEach, row: Best) -> float | None:
    """At the rate of the timed steps: start-up, warm-up and validation are not in it."""
    rate = row.config.estimate("samples_per_s")
    if one.equal_loss is None or rate is None:
        return None
    return math.exp(one.equal_loss.reached[row.config.config_id].log_samples) / rate.value

"""The best measured configuration of each number of devices, and the speedup one would use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalewise.analysis import (
    Analysis,
    Best,
    Configuration,
    estimate,
    figure_as_plain,
    listed,
    number,
    ratio,
    swept_values,
    times,
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
    columns = (
        words("model", "model", lambda row: row.config.name("model")),
        Column("devices", "devices", "", lambda row: row.devices),
        words("best", "best", lambda row: _name(row.config)),
        Column("candidates", "candidates", "", lambda row: row.candidates),
        words("left_open", "left open", lambda row: ", ".join(map(_name, row.rivals)) or None),
        Column("samples_per_s", "samples/s", "global",
               lambda row: row.config.estimate("global_samples_per_s"), estimate),
        Column("seconds", "time to the loss all reach", "s",
               lambda row: row.seconds_to_loss, number),
        Column("speedup", "speedup one would use", "", lambda row: row.speedup, ratio),
        words("verdict", "verdict", lambda row: row.judgement and row.judgement.verdict),
    )  # fmt: skip
    rows = [row for one in analysis.best for row in one.rows]
    return section(
        "best",
        "Best of each number of devices",
        table("best", columns, rows, _NOTE),
        lines(_losses(analysis)),
    )


def _losses(analysis: Analysis) -> Iterator[str]:
    """What the losses say of the candidates of each model."""
    for one in analysis.best:
        model, loss = one.rows[0].config.name("model"), one.equal_loss
        if loss is not None:
            level = f"{loss.name} {number(loss.level)}"
            yield (
                f"{model}: the best is the first at {level}, which all reach; intervals hold the "
                "noise of the batches of one seed: other seeds scatter more"
            )
        if one.left_out:
            less = listed([config.label for config in one.left_out], _MOST_NAMED)
            yield f"{model}: left out, as they learn less at equal samples: {less}"


def best_in_brief(analysis: Analysis) -> list[str]:
    """One line for each model: the best of each number of devices, and the speedup."""
    return [
        f"{one.rows[0].config.name('model')}, best of each: "
        f"{'; '.join(_brief(row) for row in one.rows)}."
        for one in analysis.best
    ]


def _brief(row: Best) -> str:
    said = f"{row.devices} {plural(row.devices, 'device')} {_name(row.config)}"
    if row.speedup is None or row.judgement is None:
        return said
    return f"{said}, {times(row.speedup)}, {row.judgement.verdict}"


def best_as_plain(analysis: Analysis) -> list[dict[str, Any]]:
    """The field of ``results.json``: one for each group of candidates."""
    return [
        {
            "equal_loss": to_plain(one.equal_loss),
            "left_out": [config.config_id for config in one.left_out],
            "devices": [
                {
                    "devices": row.devices,
                    "config_id": row.config.config_id,
                    "label": row.config.label,
                    "candidates": row.candidates,
                    "left_open": [rival.config_id for rival in row.rivals],
                    "seconds_to_equal_loss": row.seconds_to_loss,
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
    telling = swept_values(config.label)
    strategy = [] if config.devices == 1 and telling else [config.name("strategy") or ""]
    return " ".join([*strategy, *telling])

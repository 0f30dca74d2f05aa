"""What the pictures of report.html draw: plain values, and curves of few points.

Figures keep four significant digits, curves at most :data:`MOST_POINTS` points, and fewer where a
page has many: the lowest and the highest of each bin, so that no spike is lost. Names are plain
text, which the page never takes for markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scalewise.analysis import (
    CAUSE_WORDS,
    MOST_POINTS,
    Analysis,
    CellRecords,
    Configuration,
    Estimate,
    RankSteps,
    RatioEstimate,
    Run,
    bounding,
    extremes,
    figures_of,
    flatten,
)
from scalewise.records import CellFolder, DeviceSeries, open_plain

_FEWEST_POINTS = 60
_POINTS_OF_A_PAGE = 80_000
"""Of all steps together, and as many of all devices: 100 cells stay near 4 MB."""
_LOG_LINES = 30
_LOG_BYTES = 4000
_DEVICE_METRICS = {
    "utilization_percent": "utilization (%)",
    "sm_activity_percent": "SM activity (%)",
    "memory_used_mib": "memory used (MiB)",
    "power_w": "power (W)",
    "sm_clock_mhz": "SM clock (MHz)",
    "temperature_c": "temperature (°C)",
}
_NOT_A_DIFFERENCE = ("repeats", "tracking", "sweep", "hydra", "experiment")
"""Keys of a configuration that do not change what a cell trains."""

Curve = tuple[list[float | None], list[float | None]]
"""x and y."""
Values = npt.NDArray[np.float64]


def page_data(analysis: Analysis) -> dict[str, Any]:
    """Everything that is drawn, ready for JSON; a cell names its configuration by its place."""
    configs = analysis.configurations
    measured = {run.cell.planned.name: run for config in configs for run in config.runs}
    cells = [cell for config in configs for cell in config.cells]
    points = Points(
        steps=_points_each(sum(len(cell.steps) for cell in cells)),
        devices=_points_each(
            sum(len(s.devices) for cell in cells for s in cell.devices) * len(_DEVICE_METRICS)
        ),
    )
    return {
        "configurations": [_configuration(analysis, config) for config in configs],
        "cells": [
            _cell(analysis, config, place, cell, measured.get(cell.planned.name), points)
            for place, config in enumerate(configs)
            for cell in config.cells
        ],
    }


@dataclass(frozen=True)
class Points:
    """How many a curve may have."""

    steps: int
    devices: int


def _points_each(curves: int) -> int:
    return max(_FEWEST_POINTS, min(MOST_POINTS, _POINTS_OF_A_PAGE // max(curves, 1)))


def _configuration(analysis: Analysis, config: Configuration) -> dict[str, Any]:
    pair, anatomy = analysis.valid_pair(config), config.anatomy
    budget = analysis.budget(config)
    return {
        "label": config.label,
        "model": config.name("model") or "unknown",
        "strategy": config.name("strategy") or "unknown",
        "devices": config.devices,
        "verdict": analysis.verdict_word(config),
        "baseline": pair.single.label if pair else None,
        "rate": _figure(config.estimate("global_samples_per_s")),
        "rates": [_round(rate) for rate in config.values("global_samples_per_s")],
        "speedup": _figure(pair.speedup) if pair else None,
        "speedups": [_round(one) for one in pair.run_speedups] if pair else [],
        "efficiency": _figure(pair.efficiency) if pair else None,
        "cost": _figure(analysis.cost_ratio(pair)) if pair else None,
        "usd": _figure(analysis.cost(config).usd_per_million_samples),
        "memory": _figure(config.estimate("peak_memory_per_device_mib")),
        "energy": _figure(config.estimate("energy_j_per_million_samples")),
        "budget": budget
        and {
            "ideal": _round(budget.ideal_ms),
            "measured": _round(budget.measured_ms),
            "work": _round(budget.work_ms),
            "losses": [
                {"name": CAUSE_WORDS[loss.cause], "ms": _round(loss.ms), "why": loss.evidence}
                for loss in budget.losses
            ],
        },
        "anatomy": anatomy
        and {
            "timeline": anatomy.timeline,
            "phases": {
                config.phase_word(name): _round(ms) for name, ms in anatomy.phases_ms.items()
            },
        },
    }


def _figure(found: Estimate | RatioEstimate | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    known = bounding(found)
    return {
        "value": _round(found.value),
        "low": _round(known.low) if known else None,
        "high": _round(known.high) if known else None,
    }


def _cell(
    analysis: Analysis,
    config: Configuration,
    place: int,
    cell: CellRecords,
    run: Run | None,
    points: Points,
) -> dict[str, Any]:
    steps = [(one, one.edges_s[0]) for one in figures_of(cell).ranks if one.edges_s is not None]
    start = min((begin for _, begin in steps), default=0.0)
    baseline, timed = analysis.pair(config), _timed_window((one for one, _ in steps), start)
    return {
        "name": cell.planned.name,
        "configuration": place,
        "repeat": cell.planned.repeat,
        "state": cell.state,
        "failure": cell.ending.message,
        "steps": [
            {"rank": one.rank, "curve": _step_curve(one, begin - start, points.steps)}
            for one, begin in steps
        ],
        "timed": timed and [_digits(edge, 6) for edge in timed],
        "balance": _balance(run),
        "devices": [
            device for series in cell.devices for device in _devices(series, start, points.devices)
        ],
        "loss": _loss(run, start),
        "facts": _facts(cell),
        "differs": _differences(cell, baseline.single.cells[0]) if baseline else [],
        "log": _log_tail(cell),
    }


def _step_curve(steps: RankSteps, begin_s: float, most: int) -> Curve:
    """Step times in ms over the seconds at which the steps began."""
    return thinned(begin_s + np.array(steps.began_s), np.array(steps.step_ms), most)


def thinned(x: Values, y: Values, most: int = MOST_POINTS) -> Curve:
    """The lowest and highest of bins of x, as numbers of few digits; ``x`` rises."""
    x, y = extremes(x, y, most)
    return [_digits(v, 6) for v in x.tolist()], [_digits(v, 4) for v in y.tolist()]


def _timed_window(ranks: Iterable[RankSteps], start: float) -> tuple[float, float] | None:
    """From the first to the last second after ``start`` in which a rank's steps were timed."""
    known = [one.timed_s for one in ranks if one.timed_s is not None]
    return (min(b for b, _ in known) - start, max(e for _, e in known) - start) if known else None


def _balance(run: Run | None) -> Curve | None:
    """Spread of the ranks' arrivals in percent, over steps."""
    if run is None or run.balance is None:
        return None
    windows = run.balance.history
    middle: list[float | None] = [(window.first_step + window.last_step) / 2 for window in windows]
    return middle, [_digits(window.cv_percent, 4) for window in windows]


def _devices(series: DeviceSeries, start: float, most: int) -> Iterable[dict[str, Any]]:
    for device in series.devices:
        curves = {}
        for metric, words in _DEVICE_METRICS.items():
            read = zip(series.times, series.values(device.id, metric), strict=True)
            points = [(time - start, value) for time, value in read if value is not None]
            if points:
                x, y = np.array(points, dtype=float).T
                curves[words] = thinned(x, y, most)
        of = f"GPU {device.index}" if series.source == "nvml" else f"process of rank {device.index}"
        yield {"name": of, "curves": curves}


def _loss(run: Run | None, start: float) -> dict[str, Any] | None:
    """The loss with the most points, over samples and over seconds."""
    if run is None or run.loss_history is None:
        return None
    curve = run.loss_history
    rows = [row for rows in run.cell.metrics.values() for row in rows if curve.metric in row.values]
    seconds = {row.samples: row.time - start for row in sorted(rows, key=lambda row: row.time)}
    values = np.array(curve.values, float)
    timed = np.array([seconds.get(at, math.nan) for at in curve.samples])
    return {
        "name": curve.name,
        "over_samples": thinned(np.array(curve.samples, float), values),
        "over_seconds": thinned(timed, values) if np.isfinite(timed).all() else None,
    }


def _facts(cell: CellRecords) -> list[tuple[str, str]]:
    """Where and with what a cell ran."""
    found = {"typed": " ".join(cell.planned.overrides), "attempts": str(len(cell.attempts) + 1)}
    if cell.result is not None:
        found |= {
            "devices": ", ".join(dict.fromkeys(rank.device.name for rank in cell.result.ranks)),
            "global batch": f"{cell.result.global_batch_size} samples",
            "took": f"{cell.result.elapsed_s:.3g} s",
        }
    if cell.warm_up is not None:
        found["timed steps"] = str(cell.warm_up)
    if (known := cell.provenance) is not None:
        found |= {
            "command": " ".join(known.command),
            "host": known.host,
            "started": known.started,
            "software": f"Python {known.python}, torch {known.packages.get('torch', 'unknown')}",
        }
    found |= {f"problem {i}": problem for i, problem in enumerate(cell.problems, 1)}
    return list(found.items())


def _differences(cell: CellRecords, baseline: CellRecords) -> list[tuple[str, str, str]]:
    """Key, its value here, and that of the baseline, where they differ."""
    ours, theirs = (
        {key: str(value) for key, value in flatten(one.config or {}).items()}
        for one in (cell, baseline)
    )
    return [
        (key, ours.get(key, "-"), theirs.get(key, "-"))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key) and key.partition(".")[0] not in _NOT_A_DIFFERENCE
    ]


def _log_tail(cell: CellRecords) -> list[str]:
    """The last lines of rank 0's standard error, or of the rank that failed first."""
    failed = [attempt.rank for attempt in cell.attempts if attempt.rank is not None]
    path = CellFolder(cell.path).log_path(failed[-1] if failed else 0, "err")
    try:
        with open_plain(path) as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        # An archive has no logs.
        return list(cell.attempts[-1].last_lines) if cell.attempts else []
    return text.splitlines()[-_LOG_LINES:]


def _round(value: float | None) -> float | None:
    return None if value is None else _digits(value, 4)


def _digits(value: float, digits: int) -> float | None:
    """None for what is not finite: JSON has no word for it."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None

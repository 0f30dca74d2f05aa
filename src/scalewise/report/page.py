"""report.html: a sweep on one page that needs neither a server nor a network.

It has the report's sections, and draws :func:`page_data` with plotly's script, which stands in it
once. Record text is escaped in :func:`_text` and :func:`_json` alone.

Figures that are drawn keep four significant digits, curves the lowest, middle and highest of bins.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from scalewise.analysis import (
    MOST_POINTS,
    Analysis,
    CellRecords,
    Configuration,
    Estimate,
    RatioEstimate,
    Row,
    Run,
    bounding,
    extremes,
    figures_of,
    flatten,
    logged_curves,
    seed_of,
    shown_on,
)
from scalewise.records import CellFolder, DeviceSeries, open_plain, words_beside
from scalewise.report.answer import answers
from scalewise.report.findings import command
from scalewise.report.sections import Block, Line, Lines, Section, Table, Verbatim, printable


def render(title: str, analysis: Analysis, sections: Iterable[Section]) -> str:
    """The whole page; below its answer stand ``sections``, those of details.md."""
    plotly = (files("plotly") / "package_data/plotly.min.js").read_bytes()
    said = "".join(map(_block, answers(analysis).blocks))
    made = [(one.key, _section(one)) for one in sections]
    # Why cells have no result is part of the answer, and all of it where none has one.
    lost = "".join(text for key, text in made if key == "unfinished")
    said += lost if analysis.measured else lost.replace("<details ", "<details open ", 1)
    parts = {
        "TITLE": _text(title),
        "CSS": _static("page.css"),
        "POLICY": (
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
            "img-src data: blob:"
        ),
        "COMMAND": _text(command(analysis)),
        "ANSWER": said,
        "HOLLOW": " Hollow is rehearsed, at 90 %." if analysis.rehearsals else "",
        "DETAILS": "".join(text for key, text in made if key != "unfinished"),
        "DATA": _json(page_data(analysis)),
        # 5 MB as 2 MB, which the page unpacks.
        "PLOTLY": base64.b64encode(gzip.compress(plotly, mtime=0)).decode(),
        "SCRIPT": _static("page.js"),
    }
    # Filled in once and in pieces: no text that is filled in is looked through again.
    pieces = (_static("head.html") + _static("page.html")).split("@@")
    return "".join(parts.get(piece, piece) for piece in pieces)


def _static(name: str) -> str:
    return (files("scalewise.report") / "static" / name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(printable(text))


def _json(value: Any) -> str:
    """JSON that ends no script and begins no comment, of printable texts."""
    return json.dumps(_printable(value), allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _printable(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable(key): _printable(one) for key, one in value.items()}
        case list() | tuple() if value and not isinstance(value[0], float):
            return [_printable(one) for one in value]
        case _:
            return value


def _section(section: Section) -> str:
    body = "".join(_block(block) for block in section.blocks)
    title = _text(section.title or "This sweep")
    at = f'<details id="about-{_text(section.key)}">'
    return f"{at}<summary>{title}</summary>{body}</details>\n" if body else ""


def _block(block: Block) -> str:
    match block:
        case Table() if block.where != "screen":
            return "".join(_table(block))
        case Lines() if block.where != "screen":
            tag, item = ("ul", "li") if block.tone == "list" else ("div", "p")
            rows = "".join(f"<{item}>{_line(line)}</{item}>" for line in block.lines)
            return f'<{tag} class="{block.tone}">{rows}</{tag}>'
        case Verbatim():
            title = f"<p>{_text(block.title)}</p>" if block.title else ""
            text = "\n".join(map(_text, block.text.split("\n")))
            return f"{title}<pre>{text}</pre>"
        case _:  # pictures are drawn anew, notes are Markdown
            return ""


def _line(line: Line) -> str:
    if line.more:
        return f'<a href="#about-{_text(line.more)}">{_text(line.text)}</a>'
    if not line.verdict:
        return _text(line.text)
    kind = line.verdict.replace(" ", "-")
    lead = f'<b>{_text(line.subject)}:</b> <span class="verdict {_text(kind)}">'
    return f"{lead}{_text(line.verdict)}</span> {_text(line.text)}"


def _table(table: Table) -> Iterator[str]:
    """A row carries its first cell, by which the page's filters find it."""
    yield '<div class="scroll"><table>'
    yield f"<caption>{_text(table.title)}</caption>" if table.title else ""
    yield "<thead><tr>"
    for column in table.columns:
        yield f'<th scope="col" class="{column.align}">{_text(column.title)}</th>'
    yield "</tr></thead><tbody>"
    for row in table.cells:
        yield f'<tr data-row="{_text(row[0])}">'
        for column, cell in zip(table.columns, row, strict=True):
            yield f'<td class="{column.align}">{_text(cell)}</td>'
        yield "</tr>"
    yield "</tbody></table></div>"


_FEWEST_POINTS = 60
_POINTS_OF_A_PAGE = 80_000
"""Of all steps together, and as many of all devices: 100 cells stay near 4 MB."""
_LOG_LINES = 30
_LOG_BYTES = 4000
_DEVICE_METRICS = words_beside(__file__, dict[str, str])
_NOT_A_DIFFERENCE = ("repeats", "tracking", "sweep", "hydra", "experiment")
"""Keys of a configuration that do not change what a cell trains."""
Curve = tuple[list[float | None], list[float | None]]
"""x and y."""
Values = npt.NDArray[np.float64]


def page_data(analysis: Analysis) -> dict[str, Any]:
    """Everything that is drawn, ready for JSON; a cell names its configuration by its place."""
    configs = analysis.configurations
    measured = {run.cell.planned.name: run for config in configs for run in config.learned}
    cells = [cell for config in configs for cell in config.cells]
    devices = sum(len(series.devices) for cell in cells for series in cell.devices)
    points = (
        _points_each(sum(len(cell.steps) for cell in cells)),
        _points_each(devices * len(_DEVICE_METRICS)),
    )
    return {
        "configurations": [_configuration(analysis, config) for config in configs],
        "rehearsals": [
            {
                "configuration": one.config.label,
                "devices": one.record.ranks,
                "model": one.config.name("model"),
                "speedup": _plain(one.shown),
            }
            for one in analysis.rehearsals
            if one.shown is not None
        ],
        "cells": [
            _cell(analysis, config, place, cell, measured.get(cell.planned.name), points)
            for place, config in enumerate(configs)
            for cell in config.cells
        ],
    }


def _points_each(curves: int) -> int:
    return max(_FEWEST_POINTS, min(MOST_POINTS, _POINTS_OF_A_PAGE // max(curves, 1)))


def _configuration(analysis: Analysis, config: Configuration) -> dict[str, Any]:
    row = Row(analysis, config)
    pair, anatomy, budget = row.pair, row.anatomy, row.budget
    return {
        **{figure.key: _plain(figure.of(row)) for figure in shown_on("page")},
        "rates": [_digits(rate) for rate in config.values("global_samples_per_s")],
        "speedups": [_digits(one) for one in pair.run_speedups] if pair else [],
        "budget": budget
        and {
            "ideal": _digits(budget.ideal_ms),
            "measured": _digits(budget.measured_ms),
            "work": _digits(budget.work_ms),
            "losses": [
                {"name": loss.words(), "ms": _digits(loss.ms), "why": loss.evidence}
                for loss in budget.losses
            ],
        },
        "anatomy": anatomy
        and {
            "timeline": anatomy.timeline,
            "phases": {config.phase_word(n): _digits(ms) for n, ms in anatomy.phases_ms.items()},
        },
    }


def _plain(found: Any) -> Any:
    """A figure over runs with the ends of its interval; anything else as it is."""
    if not isinstance(found, Estimate | RatioEstimate):
        return found
    known = bounding(found)
    low, high = (known.low, known.high) if known else (None, None)
    return {"value": _digits(found.value), "low": _digits(low), "high": _digits(high)}


def _cell(
    analysis: Analysis, config: Configuration, place: int, cell: CellRecords, run: Run | None,
    points: tuple[int, int],
) -> dict[str, Any]:  # fmt: skip
    steps = [(one, one.edges_s[0]) for one in figures_of(cell).ranks if one.edges_s is not None]
    start = min((begin for _, begin in steps), default=0.0)
    timed = [edge for one, _ in steps if one.timed_s for edge in one.timed_s]
    baseline = analysis.pair(config)
    return {
        "name": cell.planned.name,
        "configuration": place,
        "run": _run_words(config, cell),
        "state": cell.state,
        "failure": cell.ending.message,
        "steps": [
            {
                "rank": one.rank,
                "curve": thinned(
                    begin - start + np.array(one.began_s), np.array(one.step_ms), points[0]
                ),
            }
            for one, begin in steps
        ],
        "timed": [_digits(edge - start, 6) for edge in (min(timed), max(timed))] if timed else None,
        "balance": _balance(run),
        "devices": [one for series in cell.devices for one in _devices(series, start, points[1])],
        "loss": _loss(run, start),
        "logged": {
            name: thinned(np.array(steps), np.array(values))
            for name, (steps, values) in (logged_curves(cell) if run else {}).items()
        },
        "facts": _facts(cell),
        "differs": _differences(cell, baseline.single.cells[0]) if baseline else [],
        "log": _log_tail(cell),
    }


def _run_words(config: Configuration, cell: CellRecords) -> str:
    repeat, seed = f"repeat {cell.planned.repeat}", f"seed {seed_of(cell)}"
    if len(config.seeds) < 2:
        return repeat
    return f"{seed}, {repeat}" if len(config.cells) > len(config.seeds) else seed


def thinned(x: Values, y: Values, most: int = MOST_POINTS) -> Curve:
    """The lowest, middle and highest of bins of x, as numbers of few digits; ``x`` rises."""
    x, y = extremes(x, y, most)
    return [_digits(v, 6) for v in x.tolist()], [_digits(v) for v in y.tolist()]


def _balance(run: Run | None) -> Curve | None:
    """Spread of the ranks' arrivals in percent, over steps."""
    if run is None or run.balance is None:
        return None
    windows = run.balance.history
    middle: list[float | None] = [(window.first_step + window.last_step) / 2 for window in windows]
    return middle, [_digits(window.cv_percent) for window in windows]


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
    found = {"typed": " ".join(cell.planned.overrides), "attempts": str(len(cell.attempts) + 1)}
    if cell.result is not None:
        found |= {
            "devices": ", ".join(dict.fromkeys(rank.device.name for rank in cell.result.ranks)),
            "took": f"{cell.result.elapsed_s:.3g} s",
        }
        if cell.result.global_batch_size is not None:
            found["global batch"] = f"{cell.result.global_batch_size} samples"
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


def _digits(value: float | None, digits: int = 4) -> float | None:
    """None too for what is not finite: JSON has no word for it."""
    return float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None

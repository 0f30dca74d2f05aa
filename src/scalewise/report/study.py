"""The files and pictures of the published studies, by their names, from measured records.

``scalewise report FOLDER --study`` writes them into ``study`` beside the report. Memory is no
measure of load balance under data parallelism, so the picture of balance shows arrival beside it.
"""

from __future__ import annotations

import hashlib
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scalewise.analysis import (
    FEWEST_BATCHES,
    Analysis,
    Configuration,
    Pair,
    Row,
    Run,
    analyse,
    average_speedups,
    epochs_after,
    grouped,
    measured_rows,
    p_words,
)
from scalewise.config import ConfigError
from scalewise.records import cv_percent, cv_text, grade
from scalewise.report import export, findings, plots
from scalewise.report.answer import reasons
from scalewise.report.builder import own_folder, report_folder, write_text
from scalewise.report.device_tables import DeviceMemory, device_memory
from scalewise.report.plots import Draw, speedup_efficiency, throughput
from scalewise.report.sections import (
    NOTES,
    Column,
    Note,
    Read,
    Section,
    Table,
    figure_columns,
    lines,
    markdown,
    printable,
    section,
    table,
    words,
)
from scalewise.report.study_tables import average_line, studies, tables_of

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$",
}  # fmt: skip

_WIDTH = 96


def build_study(
    analysis: Analysis, report_to: Path | None = None, *, warmup_epochs: int = 1
) -> tuple[list[Path], list[str]]:
    """Write every file that the sweep's records can fill into ``study`` of ``report_to``.

    Returns their paths, and a line for each plot that could not be written. The first
    ``warmup_epochs`` are in no epoch time.
    """
    folder = own_folder(report_folder(analysis, report_to) / "study")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.iterdir():
        # All of it is ours: a file of an earlier study would show what is no longer there.
        stale.unlink()
    written = []
    columns, rows = figure_columns("summary"), measured_rows(analysis)
    for name, text in (
        *_benchmarks(analysis),
        ("comprehensive_summary.csv", export.results_csv(analysis, warmup_epochs)),
        ("summary_table.tex", _latex(table("summary", columns, rows, is_whole=True))),
        ("performance_report.txt", _performance_report(analysis)),
        *((f"{one.key}.csv", export.table_csv(one)) for one in tables_of(studies(analysis))),
    ):
        write_text(folder / name, text)
        written.append(name)
    drawn, problems = plots.write_plots(study_plots(analysis, warmup_epochs), folder)
    return [folder / name for name in (*written, *drawn)], problems


def of_datasets(analysis: Analysis, datasets: Sequence[str]) -> Analysis:
    """What a study has of these. Raises ConfigError for one that the sweep does not have."""
    known = sorted({name for c in analysis.configurations if (name := c.name("dataset"))})
    if unknown := [name for name in datasets if name not in known]:
        allowed = ", ".join(known) or "none ran"
        raise ConfigError(f"--datasets: found {unknown[0]!r}; allowed: {allowed}")
    return analyse(analysis.sweep, analysis.prices, datasets)


def _benchmarks(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Every run of a model as in ``results.json``, and one device against several in Markdown."""
    for model, configs in by_name(analysis, "model").items():
        for mode in ("single", "multi"):
            side = [config for config in configs if (config.devices == 1) == (mode == "single")]
            if side:
                results = [export.configuration_as_plain(Row(analysis, one)) for one in side]
                plain = {"model": model, "mode": mode, "results": results}
                text = json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
                yield f"benchmark_{file_part(model)}_{mode}_gpu.json", text
        pairs = [p for p in analysis.pairs if p.multi.name("model") == model]
        if pairs:
            page = markdown(f"{model}: one device against several", _comparison(pairs))
            yield f"comparison_report_{file_part(model)}.md", page


def _comparison(pairs: Sequence[Pair]) -> list[Section]:
    """One device against several, batch by batch, and what follows on average."""

    def rate(side: str) -> Read:
        return lambda pair: getattr(pair, side).estimate("global_samples_per_s")

    columns = (
        words("configuration", "configuration", lambda pair: pair.multi.label),
        words("dataset", "dataset", lambda pair: pair.multi.name("dataset")),
        Column("batch", "batch", "", lambda pair: pair.multi.global_batch),
        Column("single", "single", "", rate("single")),
        Column("multi", "multi", "", rate("multi")),
        Column("speedup", "speedup", "", lambda pair: pair.speedup),
        Column("p_value", "p", "", lambda pair: pair.speedup.p_value, p_words),
        words("recommendation", "recommendation", lambda pair: pair.seed_label),
        words("verdict", "verdict", lambda pair: pair.verdict),
    )
    ordered = sorted(
        pairs, key=lambda p: (p.multi.name("dataset") or "", p.devices, p.multi.global_batch or 0)
    )
    compared = table("comparison", columns, ordered, is_whole=True)
    means = average_speedups(ordered)
    few = f"fewer than {FEWEST_BATCHES} batch sizes are like it, so there is no mean"
    alone = [
        f"{pair.multi.label}: {few}"
        for pair in ordered
        if not pair.invalid and all(pair not in one.pairs for one in means)
    ]
    return [
        Section("comparison", "", (Note(NOTES["comparison"]), compared)),
        section("conclusion", "Average and conclusion", lines([*map(average_line, means), *alone])),
    ]


def _latex(table: Table) -> str:
    """A ``tabular`` that needs no package. Put it into a ``table`` with ``\\input``."""
    align = "".join("r" if column.align == "right" else "l" for column in table.columns)
    head, *rows = [
        " & ".join("".join(_LATEX.get(c, c) for c in printable(cell)) for cell in row) + r" \\"
        for row in ([column.title for column in table.columns], *table.cells)
    ]
    rule = "\\hline"
    found = [f"\\begin{{tabular}}{{{align}}}", rule, head, rule, *rows, rule, "\\end{tabular}", ""]
    return "\n".join(found)


def _performance_report(analysis: Analysis) -> str:
    """What limits each configuration, with its evidence, its test, and what follows from it."""
    answers = [f"{n}: {v}. {why}" for n, v, why in reasons(analysis)]
    text = ["PERFORMANCE REPORT", "", f"command: {findings.command(analysis) or 'unknown'}"]
    text += [findings.counts(analysis), "", *_part("Answers", answers)]
    text += _part("Where the time goes, and what to try", findings.losses(analysis).texts)
    text += _part("Remarks", findings.remarks(analysis).texts)
    return "\n".join(map(printable, text)).rstrip() + "\n"


def _part(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    wrapped = [
        line for entry in entries for line in textwrap.wrap(entry, _WIDTH, subsequent_indent="  ")
    ]
    return [title, "-" * len(title), "", *wrapped, ""]


_LONGEST_PART = 150
"""Bytes of a name in a file's name; a letter has up to four."""
_GOOD_EFFICIENCY = 0.8
"""The published plots' line for "good"."""
_MOST_CURVES = 12
"""Configurations of a plot."""


def study_plots(analysis: Analysis, warmup_epochs: int) -> dict[str, Draw]:
    draws = memory_plots(analysis)
    good = f"good: efficiency of {_GOOD_EFFICIENCY:g}"
    for dataset, configs in by_name(analysis, "dataset").items():
        name = file_part(dataset)
        pairs = [p for p in analysis.pairs if p.multi.name("dataset") == dataset]
        draws |= {
            f"{name}_epoch_time_detailed.png": partial(epoch_time, dataset, configs, warmup_epochs),
            f"{name}_speedup_efficiency.png": partial(
                speedup_efficiency, pairs, f"{dataset}: ", _GOOD_EFFICIENCY, good
            ),
            f"{name}_throughput.png": partial(throughput, configs),
            f"{name}_accuracy.png": partial(
                _curves_of, configs, _accuracy, f"{dataset}: accuracy", "validation accuracy (%)"
            ),
        }
    return draws


def by_name(analysis: Analysis, group: str) -> dict[str, list[Configuration]]:
    return grouped(analysis.measured, lambda config: config.name(group) or "unnamed")


def file_part(name: str) -> str:
    part = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return part if len(part.encode()) <= _LONGEST_PART else f"{part[: _LONGEST_PART // 6]}_{digest}"


def epoch_time(dataset: str, configs: Sequence[Configuration], warmup_epochs: int) -> Figure | None:
    """Seconds of each epoch, a line a run; the first ``warmup_epochs`` are left out."""
    left_out = f", the first {warmup_epochs} left out" if warmup_epochs else ""
    title = f"{dataset}: time of each epoch{left_out}"
    read: Points = lambda run: epochs_after(run.cell, warmup_epochs)  # noqa: E731
    made = _curves_of(configs, read, title, "s an epoch", "epoch, from 0")
    for axes in made.axes if made else ():
        axes.set_ylim(0)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    return made


Points = Callable[[Run], Sequence[tuple[int, float]]]
"""Points of a run: epochs or samples, and the values there."""


def _curves_of(
    configs: Sequence[Configuration],
    read: Points,
    title: str,
    what: str,
    over: str = "samples fed by all devices",
) -> Figure | None:
    """What is ``read`` of runs, over samples fed or ``over``: a colour a configuration, a line a
    run; of the first."""
    each = ((config.label, [*filter(None, map(read, config.runs))]) for config in configs)
    curves = [(label, runs) for label, runs in each if runs]
    if not curves:
        return None
    made = plots.figure(8, 4.6)
    axes = made.subplots()
    if len(curves) > _MOST_CURVES:
        title += f" (the first {_MOST_CURVES} of {len(curves)})"
        curves = curves[:_MOST_CURVES]
    for i, (label, runs) in enumerate(curves):
        for j, points in enumerate(runs):
            lonely = plots.marker(i) if len(points) < 3 else None
            axes.plot(*zip(*points, strict=True), color=plots.colour(i), lw=1.4,
                      alpha=0.9 if len(runs) == 1 else 0.6, marker=lonely,
                      ls=("-", "--", "-.", ":")[i % 4],
                      label=label if j == 0 else None)  # fmt: skip
    axes.set(xlabel=over, ylabel=what)
    axes.set_title(title, loc="left", fontsize=11)
    plots.group_thousands(axes, "x")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    plots.legend_below(made, plots.entries_of(axes), 1)
    plots.tidy(axes, "both")
    return made


def _accuracy(run: Run) -> list[tuple[int, float]]:
    """Samples fed and accuracy in percent at each validation."""
    each = ((row.samples, row.values.get("val_accuracy")) for row in run.cell.metrics.get(0, ()))
    return [(samples, 100 * value) for samples, value in each if value is not None]


def memory_plots(analysis: Analysis) -> dict[str, Draw]:
    configs = [c for c in analysis.measured if device_memory(c)]
    return {
        "per_gpu_memory_breakdown.png": partial(memory_breakdown, configs),
        "gpu_load_balance_analysis.png": partial(load_balance, configs),
        "gpu_memory_comparison.png": partial(memory_comparison, configs),
    }


def _cv_bars(axes: Axes, cvs: Mapping[str, Sequence[float | None]]) -> None:
    """Bars of each metric, one under the other in a row; arrival is graded."""
    height = 0.8 / len(cvs)
    for i, (name, values) in enumerate(cvs.items()):
        known = [(row, cv) for row, cv in enumerate(values) if cv is not None]
        for row, cv in known:
            at = row + height * (i - (len(cvs) - 1) / 2)
            axes.barh(at, cv, height=0.9 * height, color=plots.colour(i),
                      label=name if row == known[0][0] else None)  # fmt: skip
            if name == "arrival":
                axes.text(cv, at, f" {cv_text(cv)} {grade(cv)}", va="center", fontsize=8)
    highest = max((cv for values in cvs.values() for cv in values if cv is not None), default=0.0)
    axes.set_xlim(0, max(highest * 1.35, 6.0))


def memory_breakdown(configs: Sequence[Configuration]) -> Figure | None:
    """A panel a device: memory over the first run of each configuration.

    Time is a share of the run, so that runs of a second and of an hour stand side by side.
    """
    first = ((c, next((run for run in c.runs if run.cell.devices), None)) for c in configs)
    shown = [(c, _tracks(run)) for c, run in first if run][: len(plots.PALETTE)]
    count = max((len(tracks) for _, tracks in shown), default=0)
    if not count:
        return None
    rows, columns = panel_grid(count)
    made = plots.figure(max(4.2 * columns, 6.5), 2.9 * rows + 0.6)
    panels = plots.grid_of_panels(made, rows, columns, count)
    highest = max(max(values) for _, tracks in shown for *_, values in tracks)
    for i, axes in enumerate(panels):
        having = [(j, c, tracks[i]) for j, (c, tracks) in enumerate(shown) if len(tracks) > i]
        for j, config, (_, share, values) in having:
            axes.plot(share, values, color=plots.colour(j), marker=plots.marker(j),
                      ms=3, lw=1.2, label=config.label)  # fmt: skip
        title, *_ = having[0][-1]
        axes.set_title(title, fontsize=10, loc="left")
        axes.set(xlim=(0, 100), ylim=(0, 1.1 * highest))
        plots.group_thousands(axes, "y")
        plots.tidy(axes, "both")
        if i % columns == 0:
            axes.set_ylabel("memory used (MiB)")
        if i + columns >= count:
            axes.set_xlabel("share of the run (%)")
    plots.legend_below(made, plots.entries_of(panels[0]), 3)
    return made


def panel_grid(devices: int) -> tuple[int, int]:
    """Rows and columns of panels: up to eight in two rows, and as square as possible above."""
    if devices <= 2:
        return 1, devices
    if devices <= 8:
        return 2, math.ceil(devices / 2)
    columns = math.ceil(math.sqrt(devices))
    return math.ceil(devices / columns), columns


def load_balance(configs: Sequence[Configuration]) -> Figure | None:
    """Left: memory of each device. Right: CV of memory, and of arrival with its grade."""
    memory = [(c, found) for c in configs if len(found := device_memory(c)) > 1]
    several = [config for config, _ in memory]
    if not memory:
        return None
    most = max(len(devices) for _, devices in memory)
    made = plots.figure(11.0, 1.9 + max(0.6, 0.16 * most) * len(several))
    left, right = plots.grid_of_panels(made, 1, 2, 2, sharey=True)
    for row, (_, devices) in enumerate(memory):
        _device_bars(left, row, devices)
    arrivals = [config.estimate("arrival_cv_percent") for config in several]
    cvs: dict[str, list[float | None]] = {
        "arrival": [figure.value if figure else None for figure in arrivals],
        "memory": [cv_percent([d.mean_mib for d in devices]) for _, devices in memory],
    }
    _cv_bars(right, cvs)
    plots.name_rows(left, [c.label for c in several])
    left.set_title("memory of each device, first on top (MiB)", fontsize=10)
    plots.group_thousands(left, "x")
    left.set_xlim(0, left.get_xlim()[1] * 1.15)
    right.set_title("CV across devices (%): arrival is load", fontsize=10)
    for axes in (left, right):
        plots.tidy(axes)
    plots.legend_below(made, plots.entries_of(right), 2)
    return made


def _device_bars(axes: Axes, row: int, devices: Sequence[DeviceMemory]) -> None:
    height = 0.8 / len(devices)
    for i, device in enumerate(devices):
        at = row - 0.4 + (i + 0.5) * height
        axes.barh(at, device.mean_mib, xerr=device.sd_mib, height=height * 0.88,
                  color=plots.colour(0), error_kw={"lw": 1})  # fmt: skip
        if height > 0.15:
            axes.text(0, at, f"  {device.label}", va="center", fontsize=7, color="white")


def memory_comparison(configs: Sequence[Configuration]) -> Figure | None:
    if not configs:
        return None
    made = plots.figure(plots.WIDTH_IN, 1.3 + 0.38 * len(configs))
    axes = made.subplots()
    for row, config in enumerate(configs):
        used = [device.mean_mib for device in device_memory(config)]
        total, several = sum(used), len(used) > 1
        axes.barh(row, total, height=0.65, color=plots.colour(1 if several else 0))
        count = f"{len(used)} x {total / len(used):,.0f}" if several else "1 device"
        axes.text(total, row, f"  {total:,.0f} MiB ({count})", va="center", fontsize=8)
    plots.name_rows(axes, [c.label for c in configs])
    axes.set_xlim(0, axes.get_xlim()[1] * 1.3)
    kind = "resident memory of all ranks" if configs[0].is_cpu else "memory used on all GPUs"
    axes.set_xlabel(f"{kind} (MiB)")
    plots.group_thousands(axes, "x")
    plots.tidy(axes)
    return made


Track = tuple[str, list[float], list[float]]
"""What a device is called, share of the run in percent, and MiB."""


def _tracks(run: Run) -> list[Track]:
    """Of every device that has memory readings, in the order of ranks."""
    found = []
    for series in run.cell.devices:
        kind = "GPU" if series.source == "nvml" else "rank"
        for device in sorted(series.devices, key=lambda d: (d.rank is None, d.rank, d.index)):
            read = zip(series.times, series.values(device.id, "memory_used_mib"), strict=True)
            points = [(t - series.times[0], value) for t, value in read if value is not None]
            length = series.times[-1] - series.times[0] if points else 0.0
            # One sample has no length: it stands in the middle.
            shares = [100 * t / length if length > 0 else 50.0 for t, _ in points]
            found.append((f"{kind} {device.index}", shares, [value for _, value in points]))
    return [track for track in found if track[1]]

"""What every device did over time: ``gpu_timeline.png`` and ``gpu_timeline.csv``."""

from __future__ import annotations

import csv
import io
from typing import Final

from matplotlib.figure import Figure

from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.analysis.timeline import TIMELINE_COLUMNS, timeline_rows
from scalewise.records import DeviceSeries
from scalewise.report import style

NAME: Final = "gpu_timeline.png"
CSV_NAME: Final = "gpu_timeline.csv"
_MOST_TIMES: Final = 1000
"""Times of a cell in the CSV: a report stays small, ``scalewise export`` writes all of them."""

_PANELS: Final = (
    ("sm_activity_percent", "SM activity (%)"),
    ("utilization_percent", "utilisation (%)"),
    ("memory_used_mib", "memory used (MiB)"),
    ("power_w", "power (W)"),
    ("sm_clock_mhz", "SM clock (MHz)"),
)
_PROCESS_WORDS: Final = {
    "utilization_percent": "CPU of the process (%)",
    "memory_used_mib": "resident memory (MiB)",
}


def draw(analysis: Analysis) -> Figure | None:
    """The first run of the widest configuration, one panel a metric, one line a device."""
    chosen = _widest(analysis)
    if chosen is None:
        return None
    config, run = chosen
    series = run.cell.devices[0]
    panels = [(m, _words(series, m, text)) for m, text in _PANELS if _is_known(series, m)]
    if not panels:
        return None
    made = style.figure(9.0, 1.0 + 1.5 * len(panels))
    column = made.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    start = series.times[0]
    for axes, (metric, words) in zip(column, panels, strict=True):
        for i, device in enumerate(series.devices):
            points = [
                (t - start, v)
                for t, v in zip(series.times, series.values(device.id, metric), strict=True)
                if v is not None
            ]
            kind = "GPU" if series.source == "nvml" else "rank"
            axes.plot([t for t, _ in points], [v for _, v in points], color=style.colour(i),
                      marker=style.marker(i) if len(points) < 60 else None, ms=3, lw=1.2,
                      label=f"{kind} {device.index}")  # fmt: skip
        for steps in run.cell.steps[:1]:
            timed = steps.timed().rows
            if len(timed):
                ends = [(int(timed[i]["start_ns"]) + steps.epoch_offset_ns) / 1e9 - start
                        for i in (0, -1)]  # fmt: skip
                axes.axvspan(*ends, color="#dddddd", alpha=0.5, lw=0)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
        axes.set_ylabel(words, fontsize=8)
        style.tidy(axes, "both")
    column[0].set_title(f"{config.label}: timed steps shaded", fontsize=10, loc="left")
    column[-1].set_xlabel("seconds since the first sample")
    handles, labels = column[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False, fontsize=8)
    return made


def as_csv(analysis: Analysis) -> str:
    """Every cell with GPUs, at most 1,000 times of each; empty where no GPU was sampled."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    header = False
    for cell in analysis.sweep.cells:
        for series in (s for s in cell.devices if s.source == "nvml"):
            for row in timeline_rows(series, _MOST_TIMES):
                if not header:
                    rows.writerow(["cell", *TIMELINE_COLUMNS])
                    header = True
                rows.writerow([cell.planned.name, *row])
    return text.getvalue()


def _widest(analysis: Analysis) -> tuple[Configuration, Run] | None:
    sampled = [
        (config, run)
        for config in analysis.measured
        for run in config.runs
        if run.cell.devices and run.cell.devices[0].times
    ]
    return max(sampled, key=lambda each: each[1].world_size, default=None)


def _is_known(series: DeviceSeries, metric: str) -> bool:
    return any(v is not None for d in series.devices for v in series.values(d.id, metric))


def _words(series: DeviceSeries, metric: str, text: str) -> str:
    return text if series.source == "nvml" else _PROCESS_WORDS.get(metric, text)

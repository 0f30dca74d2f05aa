"""Per-device plots of the earlier GPU monitor, under its names.

Memory here is what it is: per device, over time and in total. It is no measure of load balance
under data parallelism, so the balance plot shows arrival beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalewise.analysis.balance import cv_percent, cv_text, grade
from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.records import DeviceSeries, SampledDevice
from scalewise.report import style, timeline
from scalewise.report.device_memory import DeviceMemory, device_memory

NAMES: Final = (
    "per_gpu_memory_breakdown.png",
    "gpu_load_balance_analysis.png",
    "gpu_memory_comparison.png",
    timeline.NAME,
)
_MOST_LINES: Final = len(style.PALETTE)


def draw_all(analysis: Analysis) -> dict[str, Figure]:
    """File name to figure; empty where no device was sampled."""
    memory = {c.config_id: device_memory(c) for c in analysis.measured}
    configs = [c for c in analysis.measured if memory[c.config_id]]
    drawn: dict[str, Figure | None] = {timeline.NAME: timeline.draw(analysis)}
    if configs:
        drawn |= {
            NAMES[0]: memory_breakdown(configs),
            NAMES[1]: load_balance(configs, memory),
            NAMES[2]: memory_comparison(configs, memory),
        }
    return {name: made for name, made in drawn.items() if made is not None}


def grid(devices: int) -> tuple[int, int]:
    """Rows and columns of panels: 1x2, 2x2, 2x3, 2x4, and as square as possible above."""
    known = {1: (1, 1), 2: (1, 2), 3: (2, 2), 4: (2, 2), 5: (2, 3), 6: (2, 3), 7: (2, 4), 8: (2, 4)}
    if devices in known:
        return known[devices]
    columns = math.ceil(math.sqrt(devices))
    return math.ceil(devices / columns), columns


def memory_breakdown(configs: Sequence[Configuration]) -> Figure | None:
    """A panel a device: memory over the first run of each configuration.

    Time is a share of the run, so that runs of a second and of an hour stand side by side.
    """
    shown = [(c, run) for c in configs if (run := _first_sampled(c))][:_MOST_LINES]
    tracks = {c.config_id: _tracks(run) for c, run in shown}
    panels = max((len(t) for t in tracks.values()), default=0)
    if not panels:
        return None
    rows, columns = grid(panels)
    made = style.figure(max(4.2 * columns, 6.5), 2.9 * rows + 0.6)
    axes_list = list(made.subplots(rows, columns, squeeze=False).ravel())
    highest = max(max(values) for each in tracks.values() for _, values in each)
    for i, axes in enumerate(axes_list):
        if i >= panels:
            axes.remove()
            continue
        for j, (config, _) in enumerate(shown):
            if i < len(tracks[config.config_id]):
                share, values = tracks[config.config_id][i]
                axes.plot(share, values, color=style.colour(j), marker=style.marker(j), ms=3,
                          lw=1.2, label=config.label)  # fmt: skip
        axes.set_title(_panel_title([run for _, run in shown], i), fontsize=10, loc="left")
        axes.set(xlim=(0, 100), ylim=(0, 1.1 * highest))
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
        style.tidy(axes, "both")
        if i % columns == 0:
            axes.set_ylabel("memory used (MiB)")
        if i + columns >= panels:
            axes.set_xlabel("share of the run (%)")
    handles, labels = axes_list[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return made


def load_balance(
    configs: Sequence[Configuration], memory: Mapping[str, tuple[DeviceMemory, ...]]
) -> Figure | None:
    """Left: memory of each device. Right: CV of memory, and of arrival with its grade."""
    several = [c for c in configs if len(memory[c.config_id]) > 1]
    if not several:
        return None
    most = max(len(memory[c.config_id]) for c in several)
    made = style.figure(11.0, 1.9 + max(0.6, 0.16 * most) * len(several))
    left, right = made.subplots(1, 2, sharey=True)
    for row, config in enumerate(several):
        _device_bars(left, row, memory[config.config_id])
    for row, config in enumerate(several):
        arrival = config.estimate("arrival_cv_percent")
        cvs = (cv_percent([d.mean_mib for d in memory[config.config_id]]),
               arrival.value if arrival else None)  # fmt: skip
        for i, (cv, name) in enumerate(zip(cvs, ("memory", "arrival: load"), strict=True)):
            if cv is not None:
                at = row + 0.36 * (i - 0.5)
                right.barh(at, cv, height=0.3, color=style.colour(1 - i),
                           label=name if row == 0 else None)  # fmt: skip
                graded = f" {grade(cv)}" if name == "arrival: load" else ""
                right.text(cv, at, f" {cv_text(cv)} %{graded}", va="center", fontsize=8)
    left.set_yticks(range(len(several)), [c.label for c in several])
    left.set_ylim(len(several) - 0.5, -0.5)
    left.set_title("memory of each device, first on top (MiB)", fontsize=10)
    left.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    left.set_xlim(0, left.get_xlim()[1] * 1.15)
    right.set_title("CV across devices (%)", fontsize=10)
    right.set_xlim(0, max(right.get_xlim()[1] * 1.35, 6.0))
    for axes in (left, right):
        style.tidy(axes)
    handles, labels = right.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    return made


def memory_comparison(
    configs: Sequence[Configuration], memory: Mapping[str, tuple[DeviceMemory, ...]]
) -> Figure:
    """Memory of all devices together, configuration by configuration."""
    made = style.figure(9.0, 1.3 + 0.38 * len(configs))
    axes = made.subplots()
    for row, config in enumerate(configs):
        devices = memory[config.config_id]
        total = sum(d.mean_mib for d in devices)
        axes.barh(row, total, height=0.65, color=style.colour(0 if len(devices) == 1 else 1))
        count = f"{len(devices)} x {total / len(devices):,.0f}" if len(devices) > 1 else "1 device"
        axes.text(total, row, f"  {total:,.0f} MiB ({count})", va="center", fontsize=8)
    axes.set_yticks(range(len(configs)), [c.label for c in configs])
    axes.set_ylim(len(configs) - 0.5, -0.5)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.3)
    kind = "resident memory of all ranks" if configs[0].is_cpu else "memory used on all GPUs"
    axes.set_xlabel(f"{kind} (MiB)")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    style.tidy(axes)
    return made


def _device_bars(axes: Axes, row: int, devices: Sequence[DeviceMemory]) -> None:
    height = 0.8 / len(devices)
    for i, device in enumerate(devices):
        at = row - 0.4 + (i + 0.5) * height
        axes.barh(at, device.mean_mib, xerr=device.sd_mib, height=height * 0.88,
                  color=style.colour(0), error_kw={"lw": 1})  # fmt: skip
        if height > 0.15:
            axes.text(0, at, f"  {device.label}", va="center", fontsize=7, color="white")


def _first_sampled(config: Configuration) -> Run | None:
    return next((run for run in config.runs if run.cell.devices), None)


def _devices(run: Run) -> list[tuple[DeviceSeries, SampledDevice]]:
    """Every device of a run that has memory readings, in the order of ranks."""
    return [
        (series, device)
        for series in run.cell.devices
        for device in sorted(series.devices, key=lambda d: (d.rank is None, d.rank, d.index))
        if _track(series, device.id)[0]
    ]


def _tracks(run: Run) -> list[tuple[list[float], list[float]]]:
    """Share of the run in percent, and MiB, of every device of a run, in the order of ranks."""
    return [_track(series, device.id) for series, device in _devices(run)]


def _panel_title(runs: Sequence[Run], position: int) -> str:
    """``GPU 2`` where that is the one of every run, else whose it is."""
    found = {
        (series.source, device.index)
        for run in runs
        for series, device in _devices(run)[position : position + 1]
    }
    if len(found) > 1 or ("process", position) in found:
        return f"rank {position}"
    return f"GPU {found.pop()[1]}" if found else f"GPU {position}"


def _track(series: DeviceSeries, device_id: str) -> tuple[list[float], list[float]]:
    points = [
        (t, value)
        for t, value in zip(series.times, series.values(device_id, "memory_used_mib"), strict=True)
        if value is not None
    ]
    if not points:
        return [], []
    start, length = series.times[0], series.times[-1] - series.times[0]
    # One sample has no length: it stands in the middle.
    return (
        [100 * (t - start) / length if length > 0 else 50.0 for t, _ in points],
        [v for _, v in points],
    )

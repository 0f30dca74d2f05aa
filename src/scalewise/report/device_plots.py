"""Plots of ranks and devices: balance, memory, and what every device did over time.

Memory is per device, over time and in total. It is no measure of load balance under data
parallelism, so the balance plots show arrival beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalewise.analysis import Analysis, Configuration, LoadBalance, Run, figures_of, number
from scalewise.records import GRADES, DeviceSeries, SampledDevice, cv_percent, cv_text, grade
from scalewise.report import plot_style
from scalewise.report.balance_tables import balanced_runs
from scalewise.report.device_tables import DeviceMemory, device_memory
from scalewise.report.plot_style import Draw

_MOST_LINES: Final = 12

_TIMELINE: Final = (
    ("sm_activity_percent", "SM activity (%)"),
    ("utilization_percent", "utilisation (%)"),
    ("memory_used_mib", "memory used (MiB)"),
    ("power_w", "power (W)"),
    ("sm_clock_mhz", "SM clock (MHz)"),
)

_OF_PROCESSES: Final = {
    "utilization_percent": "CPU of the process (%)",
    "memory_used_mib": "resident memory (MiB)",
}
Memory = Mapping[str, Sequence[DeviceMemory]]
"""``config_id`` to the memory of its devices."""


def device_plots(analysis: Analysis) -> dict[str, Draw]:
    """File name to what draws it."""
    # An earlier report may have them.
    of_studies: dict[str, Draw] = dict.fromkeys(memory_plots(analysis), lambda: None)
    return {
        **of_studies,
        "balance.png": lambda: balance(analysis),
        "balance_history.png": lambda: balance_history(analysis),
        "device_memory.png": lambda: device_memory_plot(*_memory(analysis)),
        "gpu_timeline.png": lambda: timeline(analysis),
    }


def _memory(analysis: Analysis) -> tuple[list[Configuration], Memory]:
    memory = {c.config_id: device_memory(c) for c in analysis.measured}
    return [c for c in analysis.measured if memory[c.config_id]], memory


def memory_plots(analysis: Analysis) -> dict[str, Draw]:
    """The pictures of memory that published studies have, by their names."""
    configs, memory = _memory(analysis)
    return {
        "per_gpu_memory_breakdown.png": lambda: memory_breakdown(configs),
        "gpu_load_balance_analysis.png": lambda: load_balance(configs, memory),
        "gpu_memory_comparison.png": lambda: memory_comparison(configs, memory),
    }


def balance(analysis: Analysis) -> Figure | None:
    """Arrival of every rank against the mean of its configuration."""
    configs = [c for c in analysis.measured if any(r.balance for r in c.runs)]
    if not configs:
        return None
    ranks = max(c.runs[0].world_size for c in configs)
    height = 2.0 + max(0.55, 0.11 * ranks) * len(configs)
    made = plot_style.figure(plot_style.WIDTH_IN, height)
    axes = made.subplots()
    for row, config in enumerate(configs):
        _arrivals(axes, row, config)
    axes.axvline(0, color=plot_style.GREY, lw=1)
    most = max(map(abs, axes.get_xlim()))
    reach = max(most * 1.1, 1.0)  # below 1 % the ranks arrive together: do not zoom into noise
    axes.set_xlim(-reach, reach)
    plot_style.name_rows(axes, [c.label for c in configs])
    axes.set_title("arrival of each rank (rank 0 on top)", fontsize=11)
    axes.set_xlabel("against the mean of the ranks (%)")
    plot_style.tidy(axes)
    return made


def _arrivals(axes: Axes, row: int, config: Configuration) -> None:
    """A dot a rank, one under the other: its mean arrival against the mean of all, in percent."""
    means = np.mean([run.balance.arrival_ms for run in config.runs if run.balance], axis=0)
    offsets = 100 * (means / means.mean() - 1)
    heights = row + np.linspace(-0.3, 0.3, len(means))
    axes.hlines(heights, 0, offsets, color=plot_style.colour(0), lw=2)
    axes.plot(offsets, heights, "o", color=plot_style.colour(0), ms=4)
    slowest = int(np.argmax(means))
    # On the empty side of the zero line: the slowest rank's own line is on the other.
    axes.annotate(
        f"rank {slowest}: {number(float(means[slowest]))} ms",
        (0, float(heights[slowest])),
        xytext=(-6, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=8,
    )


def _cv_bars(axes: Axes, cvs: Mapping[str, Sequence[float | None]]) -> None:
    """Bars of each metric, one under the other in a row; arrival is graded."""
    height = 0.8 / len(cvs)
    for i, (name, values) in enumerate(cvs.items()):
        known = [(row, cv) for row, cv in enumerate(values) if cv is not None]
        for row, cv in known:
            at = row + height * (i - (len(cvs) - 1) / 2)
            axes.barh(at, cv, height=0.9 * height, color=plot_style.colour(i),
                      label=name if row == known[0][0] else None)  # fmt: skip
            if name == "arrival":
                axes.text(cv, at, f" {cv_text(cv)} {grade(cv)}", va="center", fontsize=8)
    highest = max((cv for values in cvs.values() for cv in values if cv is not None), default=0.0)
    axes.set_xlim(0, max(highest * 1.35, 6.0))


def balance_history(analysis: Analysis) -> Figure | None:
    """Left: the CV over each run. Right: each run's CV against its speed.

    Speed is over the fastest run of its configuration, so that unlike models share an axis.
    """
    runs = balanced_runs(analysis)
    if not runs:
        return None
    made = plot_style.figure(11.0, 4.2)
    left, right = plot_style.grid_of_panels(made, 1, 2, 2)
    for i, (config, run, found) in enumerate(runs[:_MOST_LINES]):
        at = [(w.first_step + w.last_step) / 2 for w in found.history]
        left.plot(at, [w.cv_percent for w in found.history], color=plot_style.colour(i),
                  marker=plot_style.marker(i), ms=3, lw=1.2,
                  label=f"{config.label}, repeat {run.cell.planned.repeat}")  # fmt: skip
    for i, (label, points) in enumerate(_against_speed(runs).items()):
        right.plot([cv for cv, _ in points], [speed for _, speed in points], ls="",
                   color=plot_style.colour(i), marker=plot_style.marker(i), ms=6,
                   label=label)  # fmt: skip
    left.set_ylim(0, max(left.get_ylim()[1] * 1.1, 6.0))
    right.set_xlim(0, max(right.get_xlim()[1] * 1.1, 6.0))
    for edge in GRADES.values():
        if edge < left.get_ylim()[1]:
            left.axhline(edge, ls=":", color=plot_style.GREY, lw=1)
        if edge < right.get_xlim()[1]:
            right.axvline(edge, ls=":", color=plot_style.GREY, lw=1)
    left.set(xlabel="step", ylabel="arrival CV across ranks (%)")
    left.set_title("balance over time", fontsize=10)
    right.set(xlabel="arrival CV of a run (%)", ylabel="samples/s, % of the fastest repeat")
    right.set_title("balance against training speed", fontsize=10)
    for axes in (left, right):
        plot_style.tidy(axes, "both")
        axes.legend(fontsize=7, frameon=False, loc="best")
    return made


def _against_speed(
    runs: Sequence[tuple[Configuration, Run, LoadBalance]],
) -> dict[str, list[tuple[float, float]]]:
    """Label to each run's CV and speed."""
    points: dict[str, list[tuple[float, float]]] = {}
    for config, run, found in runs:
        if run.samples_per_s is not None:
            speed = 100 * run.samples_per_s / max(config.values("global_samples_per_s"))
            points.setdefault(config.label, []).append((found.cv_percent, speed))
    return points


def memory_breakdown(configs: Sequence[Configuration]) -> Figure | None:
    """A panel a device: memory over the first run of each configuration.

    Time is a share of the run, so that runs of a second and of an hour stand side by side.
    """
    sampled = [(c, run) for c in configs for run in c.runs if run.cell.devices]
    first = {c.config_id: (c, run) for c, run in reversed(sampled)}
    shown = [first[c.config_id] for c in configs if c.config_id in first][: len(plot_style.PALETTE)]
    tracks = {c.config_id: [_track(*one) for one in _devices(run)] for c, run in shown}
    count = max((len(t) for t in tracks.values()), default=0)
    if not count:
        return None
    rows, columns = panel_grid(count)
    made = plot_style.figure(max(4.2 * columns, 6.5), 2.9 * rows + 0.6)
    panels = plot_style.grid_of_panels(made, rows, columns, count)
    highest = max(max(values) for each in tracks.values() for _, values in each)
    for i, axes in enumerate(panels):
        for j, (config, _) in enumerate(shown):
            if i < len(tracks[config.config_id]):
                share, values = tracks[config.config_id][i]
                axes.plot(share, values, color=plot_style.colour(j), marker=plot_style.marker(j),
                          ms=3, lw=1.2, label=config.label)  # fmt: skip
        axes.set_title(_panel_title([run for _, run in shown], i), fontsize=10, loc="left")
        axes.set(xlim=(0, 100), ylim=(0, 1.1 * highest))
        plot_style.group_thousands(axes, "y")
        plot_style.tidy(axes, "both")
        if i % columns == 0:
            axes.set_ylabel("memory used (MiB)")
        if i + columns >= count:
            axes.set_xlabel("share of the run (%)")
    plot_style.legend_below(made, plot_style.entries_of(panels[0]), 3)
    return made


def panel_grid(devices: int) -> tuple[int, int]:
    """Rows and columns of panels: up to eight in two rows, and as square as possible above."""
    if devices <= 2:
        return 1, devices
    if devices <= 8:
        return 2, math.ceil(devices / 2)
    columns = math.ceil(math.sqrt(devices))
    return math.ceil(devices / columns), columns


def load_balance(configs: Sequence[Configuration], memory: Memory) -> Figure | None:
    """Left: memory of each device. Right: CV of memory, and of arrival with its grade."""
    several = [c for c in configs if len(memory[c.config_id]) > 1]
    if not several:
        return None
    most = max(len(memory[c.config_id]) for c in several)
    made = plot_style.figure(11.0, 1.9 + max(0.6, 0.16 * most) * len(several))
    left, right = plot_style.grid_of_panels(made, 1, 2, 2, sharey=True)
    for row, config in enumerate(several):
        _device_bars(left, row, memory[config.config_id])
    arrivals = [config.estimate("arrival_cv_percent") for config in several]
    cvs: dict[str, list[float | None]] = {
        "arrival": [figure.value if figure else None for figure in arrivals],
        "memory": [cv_percent([d.mean_mib for d in memory[c.config_id]]) for c in several],
    }
    _cv_bars(right, cvs)
    plot_style.name_rows(left, [c.label for c in several])
    left.set_title("memory of each device, first on top (MiB)", fontsize=10)
    plot_style.group_thousands(left, "x")
    left.set_xlim(0, left.get_xlim()[1] * 1.15)
    right.set_title("CV across devices (%): arrival is load", fontsize=10)
    for axes in (left, right):
        plot_style.tidy(axes)
    plot_style.legend_below(made, plot_style.entries_of(right), 2)
    return made


def _device_bars(axes: Axes, row: int, devices: Sequence[DeviceMemory]) -> None:
    height = 0.8 / len(devices)
    for i, device in enumerate(devices):
        at = row - 0.4 + (i + 0.5) * height
        axes.barh(at, device.mean_mib, xerr=device.sd_mib, height=height * 0.88,
                  color=plot_style.colour(0), error_kw={"lw": 1})  # fmt: skip
        if height > 0.15:
            axes.text(0, at, f"  {device.label}", va="center", fontsize=7, color="white")


def device_memory_plot(configs: Sequence[Configuration], memory: Memory) -> Figure | None:
    """A bar a configuration, as long as the mean of its devices, and a dot a device."""

    def draw(axes: Axes, row: int, used: Sequence[float]) -> None:
        axes.barh(row, sum(used) / len(used), height=0.65, alpha=0.5,
                  color=plot_style.colour(1 if len(used) > 1 else 0))  # fmt: skip
        axes.plot(used, row + np.linspace(-0.2, 0.2, len(used) + 2)[1:-1], "o", ms=4,
                  color="black", mfc="white")  # fmt: skip
        low, high = f"{min(used):,.0f}", f"{max(used):,.0f}"
        each = low if low == high else f"{low} to {high}"
        axes.text(max(used), row, f"   {len(used)} x {each} MiB", va="center", fontsize=8)

    kinds = "resident memory of a rank", "memory used on a GPU"
    return _memory_rows(configs, memory, draw, kinds, "; bar: mean of the devices, dot: a device")


def memory_comparison(configs: Sequence[Configuration], memory: Memory) -> Figure | None:
    """Memory of all devices together, configuration by configuration."""

    def draw(axes: Axes, row: int, used: Sequence[float]) -> None:
        total, several = sum(used), len(used) > 1
        axes.barh(row, total, height=0.65, color=plot_style.colour(1 if several else 0))
        count = f"{len(used)} x {total / len(used):,.0f}" if several else "1 device"
        axes.text(total, row, f"  {total:,.0f} MiB ({count})", va="center", fontsize=8)

    kinds = "resident memory of all ranks", "memory used on all GPUs"
    return _memory_rows(configs, memory, draw, kinds, "")


def _memory_rows(
    configs: Sequence[Configuration],
    memory: Memory,
    draw: Callable[[Axes, int, Sequence[float]], None],
    kinds: tuple[str, str],
    how: str,
) -> Figure | None:
    """A row a configuration, drawn by ``draw``; ``kinds`` of memory on a CPU host and on GPUs."""
    if not configs:
        return None
    made = plot_style.figure(plot_style.WIDTH_IN, 1.3 + 0.38 * len(configs))
    axes = made.subplots()
    for row, config in enumerate(configs):
        draw(axes, row, [device.mean_mib for device in memory[config.config_id]])
    plot_style.name_rows(axes, [c.label for c in configs])
    axes.set_xlim(0, axes.get_xlim()[1] * 1.3)
    axes.set_xlabel(f"{kinds[0 if configs[0].is_cpu else 1]} (MiB{how})")
    plot_style.group_thousands(axes, "x")
    plot_style.tidy(axes)
    return made


Device = tuple[DeviceSeries, SampledDevice]


def _devices(run: Run) -> list[Device]:
    """Every device of a run that has memory readings, in the order of ranks."""
    return [
        (series, device)
        for series in run.cell.devices
        for device in sorted(series.devices, key=lambda d: (d.rank is None, d.rank, d.index))
        if _track(series, device)[0]
    ]


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


def _track(series: DeviceSeries, device: SampledDevice) -> tuple[list[float], list[float]]:
    """Share of the run in percent, and MiB."""
    times, values = _readings(series, device, "memory_used_mib")
    length = series.times[-1] - series.times[0] if times else 0.0
    # One sample has no length: it stands in the middle.
    return [100 * t / length if length > 0 else 50.0 for t in times], values


def _readings(
    series: DeviceSeries, device: SampledDevice, metric: str
) -> tuple[list[float], list[float]]:
    """Seconds since the first sample, and the values that were read."""
    read = zip(series.times, series.values(device.id, metric), strict=True)
    points = [(t - series.times[0], value) for t, value in read if value is not None]
    return [t for t, _ in points], [v for _, v in points]


def timeline(analysis: Analysis) -> Figure | None:
    """The first run of the most devices, one panel a metric, one line a device."""
    sampled = [
        (config, run, run.cell.devices[0])
        for config in analysis.measured
        for run in config.runs
        if run.cell.devices and run.cell.devices[0].times
    ]
    if not sampled:
        return None
    config, run, series = max(sampled, key=lambda one: one[1].world_size)
    on_gpus = series.source == "nvml"
    metrics = [
        (metric, words if on_gpus else _OF_PROCESSES.get(metric, words))
        for metric, words in _TIMELINE
        if any(_readings(series, device, metric)[0] for device in series.devices)
    ]
    if not metrics:
        return None
    made = plot_style.figure(9.0, 1.0 + 1.5 * len(metrics))
    panels = plot_style.grid_of_panels(made, len(metrics), 1, len(metrics), sharex=True)
    for axes, (metric, words) in zip(panels, metrics, strict=True):
        for i, device in enumerate(series.devices):
            times, values = _readings(series, device, metric)
            axes.plot(times, values, color=plot_style.colour(i), ms=3, lw=1.2,
                      marker=plot_style.marker(i) if len(times) < 60 else None,
                      label=f"{'GPU' if on_gpus else 'rank'} {device.index}")  # fmt: skip
        timed = figures_of(run.cell).timed_s
        if timed is not None:
            begin, end = (at - series.times[0] for at in timed)
            axes.axvspan(begin, end, color="#dddddd", alpha=0.5, lw=0)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
        axes.set_ylabel(words, fontsize=8)
        plot_style.tidy(axes, "both")
    panels[0].set_title(f"{config.label}: timed steps shaded", fontsize=10, loc="left")
    panels[-1].set_xlabel("seconds since the first sample")
    plot_style.legend_below(made, plot_style.entries_of(panels[0]), 8)
    return made

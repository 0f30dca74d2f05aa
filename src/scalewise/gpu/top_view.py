"""The screen of ``scalewise top``: a row a GPU, the most telling columns that fit the width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.gpu.export import multi_entry
from scalewise.records import DeviceSample, SampledDevice, cv_percent

_BALANCE = {
    "sm_activity_percent": "SM",
    "utilization_percent": "util",
    "memory_used_mib": "memory",
    "power_w": "power",
}
_GAP = 2
"""Blanks between two columns."""
_WORKER_MODULE = "scalewise.sweep.worker"


@dataclass(frozen=True)
class Owner:
    """The owner of a process on a GPU."""

    pid: int
    name: str
    rank: int | None
    cell: str | None
    """The cell's name, for a rank that scalewise started."""
    memory_mib: float | None


@dataclass(frozen=True)
class Frame:
    """All devices at one moment."""

    time: float
    """Unix time."""
    devices: tuple[SampledDevice, ...]
    samples: Mapping[str, DeviceSample]
    """By device id; a device that is lost is absent."""
    owners: Mapping[str, tuple[Owner, ...]]
    """Processes by device id."""
    notes: tuple[str, ...] = ()
    """The last events, in words."""


def balance_of(samples: Sequence[DeviceSample]) -> Mapping[str, float]:
    """CV across devices in percent, by metric; metrics not read are left out.

    None has a grade: only the time to the last gradient judges load, and no device tells it.
    """
    found = {}
    for name in _BALANCE:
        values = [getattr(s, name) for s in samples]
        if len(values) > 1 and None not in values and sum(values) > 0:
            found[name] = cv_percent(values)
    return found


def identify(pid: int) -> Owner:
    """Name, rank and cell of a process; what cannot be read is left out."""
    try:
        process = psutil.Process(pid)
        name, words = process.name(), process.cmdline()
    except psutil.Error:
        # Another user's, or numbered in another pid namespace.
        return Owner(pid, "?", None, None, None)
    cell = None
    if _WORKER_MODULE in words[:-1]:
        cell = Path(" ".join(words[words.index(_WORKER_MODULE) + 1 :])).name
    try:
        # A fork shows the environment of what it was forked from; its name tells.
        rank = process.environ().get("RANK", name.removeprefix("rank "))
    except psutil.Error:
        rank = ""
    # "python train.py" tells more than "python".
    script = next((Path(word).name for word in words[1:] if word.endswith(".py")), None)
    name = f"{name} {script}" if script else name
    return Owner(pid, name, int(rank) if rank.isdecimal() else None, cell, None)


def render(frame: Frame, title: str, width: int) -> RenderableType:
    """A row a device in ``width`` columns; below them totals, balance, events and processes."""
    stamp = datetime.fromtimestamp(frame.time).strftime("%H:%M:%S")
    return Group(
        _line("scalewise top", f"{title}, {stamp}"),
        _devices(frame, width),
        *_totals(frame),
        *_throttled(frame),
        *(_line("note", note, "bold red") for note in frame.notes),
        *_processes(frame),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _of(value: float | None, limit: float | None, digits: int = 0) -> str:
    if value is None or limit is None:
        return "-" if value is None else f"{value:.{digits}f}"
    return f"{value:.{digits}f}/{limit:.0f}"


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


def _pair(sample: DeviceSample, link: str) -> str:
    """Sent and received, in GiB/s."""
    sent, received = (getattr(sample, f"{link}_{way}_mib_per_s") for way in ("tx", "rx"))
    if sent is None or received is None:
        return "-"
    return f"{sent / 1024:.1f}/{received / 1024:.1f}"


_COLUMNS: Mapping[str, Callable[[SampledDevice, DeviceSample], str]] = {
    "GPU": lambda d, s: str(d.index),
    "name": lambda d, s: d.name.removeprefix("NVIDIA "),
    "util%": lambda d, s: _number(s.utilization_percent),
    "memory GiB": lambda d, s: _of(_gib(s.memory_used_mib), _gib(d.memory_total_mib), 1),
    "power W": lambda d, s: _of(s.power_w, d.power_limit_w),
    "°C": lambda d, s: _number(s.temperature_c),
    "SM%": lambda d, s: _number(s.sm_activity_percent),
    "tensor%": lambda d, s: _number(s.tensor_activity_percent),
    "DRAM%": lambda d, s: _number(s.dram_activity_percent),
    "SM MHz": lambda d, s: _number(s.sm_clock_mhz),
    "NVLink GiB/s": lambda d, s: _pair(s, "nvlink"),
    "occupancy%": lambda d, s: _number(s.sm_occupancy_percent),
    "memory MHz": lambda d, s: _number(s.memory_clock_mhz),
    "PCIe GiB/s": lambda d, s: _pair(s, "pcie"),
}
"""By title, as many from the left as fit."""


def _devices(frame: Frame, width: int) -> Table:
    readings = [(d, frame.samples.get(d.id)) for d in frame.devices]
    columns: dict[str, list[str]] = {}
    for title, cell in _COLUMNS.items():
        column = [cell(device, sample or DeviceSample(device.id)) for device, sample in readings]
        if set(column) == {"-"}:
            continue  # as on GPUs without GPM: it would only take room
        width -= max(map(len, (title, *column))) + _GAP
        if width + _GAP < 0:
            break
        columns[title] = column
    table = _table(columns, left="name")
    for (device, sample), row in zip(readings, zip(*columns.values(), strict=True), strict=True):
        table.add_row(*row, style="red" if _is_alarming(device, sample) else None)
    return table


def _table(titles: Iterable[str], left: str) -> Table:
    """An empty table of numbers, and one column of words."""
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold dim")
    for title in titles:
        table.add_column(title, justify="left" if title == left else "right", no_wrap=True)
    return table


def _is_alarming(device: SampledDevice, sample: DeviceSample | None) -> bool:
    """Whether a device is lost, hot or nearly full."""
    if sample is None:
        return True
    used, capacity = sample.memory_used_mib, device.memory_total_mib
    is_full = used is not None and capacity is not None and used > 0.95 * capacity
    return is_full or (sample.temperature_c or 0) >= 85


def _line(label: str, words: str, style: str = "bold dim") -> Text:
    return Text.assemble((f"{label}  ", style), words, no_wrap=True, overflow="ellipsis")


_TOTALS = {
    "total_memory_used": "memory {:,.0f} MiB",
    "total_power": "power {:.0f} W",
    "average_utilization": "utilisation {:.0f} % on average",
    "max_temperature": "hottest {:.0f} °C",
}


def _totals(frame: Frame) -> list[Text]:
    lost = [str(d.index) for d in frame.devices if d.id not in frame.samples]
    lines = [_line("lost", f"GPU {', '.join(lost)}", "bold red")] if lost else []
    total = multi_entry(frame.time, frame.devices, frame.samples)["aggregate_stats"]
    known = [text.format(total[name]) for name, text in _TOTALS.items() if total[name] is not None]
    lines += [_line("all", ", ".join(known))] if known else []
    if found := balance_of(list(frame.samples.values())):
        cvs = ", ".join(f"{_BALANCE[metric]} {cv:.1f} %" for metric, cv in found.items())
        lines.append(_line("CV", cvs))
    return lines


def _throttled(frame: Frame) -> Iterator[Text]:
    """The throttled GPUs; those with the same reasons share a line."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for device in frame.devices:
        sample = frame.samples.get(device.id)
        if sample is not None and sample.throttle_reasons:
            groups.setdefault(sample.throttle_reasons, []).append(str(device.index))
    for reasons, indices in groups.items():
        yield _line("held back", f"GPU {', '.join(indices)}: {', '.join(reasons)}", "bold yellow")


def _processes(frame: Frame) -> list[Table]:
    rows = [(d.index, owner) for d in frame.devices for owner in frame.owners.get(d.id, ())]
    if not rows:
        return []
    table = _table(("GPU", "pid", "rank", "memory GiB", "process"), left="process")
    for index, owner in rows:
        rank = "-" if owner.rank is None else str(owner.rank)
        what = f"cell {owner.cell}" if owner.cell else owner.name
        table.add_row(str(index), str(owner.pid), rank, _of(_gib(owner.memory_mib), None, 1), what)
    return [table]

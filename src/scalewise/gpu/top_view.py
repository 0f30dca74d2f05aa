"""The screen of ``scalewise top``: a row a device, the most telling columns that fit the width."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.records import DeviceSample, SampledDevice, cv_percent

HISTORY = 120
_SORT_METRIC = {
    "utilization": "utilization_percent",
    "memory": "memory_used_mib",
    "power": "power_w",
    "temperature": "temperature_c",
}
SORTS = ("index", *_SORT_METRIC)
_BALANCE = {
    "sm_activity_percent": "SM",
    "utilization_percent": "util",
    "memory_used_mib": "memory",
    "power_w": "power",
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_MIN_HISTORY = 8
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
    """Events, in words."""


@dataclass
class TopState:
    """The memory of the view between frames."""

    title: str
    interval_s: float
    """0 for a single reading."""
    sort: str = "index"
    paused: bool = False
    frame: Frame | None = None
    history: dict[str, deque[float | None]] = field(default_factory=dict)
    """Utilisation by device id, the newest last."""
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=3))

    def add(self, frame: Frame) -> None:
        self.frame = frame
        for device in frame.devices:
            sample = frame.samples.get(device.id)
            row = self.history.setdefault(device.id, deque(maxlen=HISTORY))
            row.append(None if sample is None else sample.utilization_percent)
        stamp = datetime.fromtimestamp(frame.time).strftime("%H:%M:%S")
        self.notes.extend(f"{stamp} {note}" for note in frame.notes)

    def next_sort(self) -> None:
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]


def render(state: TopState, width: int, height: int) -> RenderableType:
    """The whole screen, at most ``height`` lines of ``width`` columns."""
    frame = state.frame
    if frame is None:
        return Text("waiting for the first reading", no_wrap=True)
    notes = [_line(("note  ", "bold red"), note) for note in state.notes]
    below = [*_totals(frame), *_throttled(frame), *notes]
    keys = [_line((f"s sort: {state.sort}  p pause  q quit", "dim"))] if state.interval_s else []
    room = height - 2 - len(frame.devices) - len(below) - len(keys)
    table = _devices(state, frame, width)
    return Group(_header(state, frame, width), table, *below, *_processes(frame, room), *keys)


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


@dataclass(frozen=True)
class Column:
    """A column: what it shows, how wide it is, and how soon it has to go."""

    title: str
    width: int
    rank: int
    """Columns with a higher one are left out first."""
    cell: Callable[[SampledDevice, DeviceSample], Text | str]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def _of(value: float | None, limit: float | None) -> str:
    if value is None or limit is None:
        return _number(value)
    return f"{value:.0f}/{limit:.0f}"


def _memory(device: SampledDevice, sample: DeviceSample) -> Text | str:
    used, total = sample.memory_used_mib, device.memory_total_mib
    if used is None or total is None:
        return "-" if used is None else f"{used / 1024:.1f}"
    words = f"{used / 1024:.1f}/{total / 1024:.0f}"
    return Text(words, "red") if used > 0.95 * total else words


def _hot(value: float | None) -> Text | str:
    words = _number(value)
    return Text(words, "red") if value is not None and value >= 85 else words


def _pair(sample: DeviceSample, link: str) -> str:
    """Sent and received, in GiB/s."""
    sent, received = (getattr(sample, f"{link}_{way}_mib_per_s") for way in ("tx", "rx"))
    if sent is None or received is None:
        return "-"
    return f"{sent / 1024:.1f}/{received / 1024:.1f}"


_COLUMNS = (
    Column("GPU", 3, 0, lambda d, s: str(d.index)),
    Column("name", 10, 3, lambda d, s: d.name.removeprefix("NVIDIA ")),
    Column("util%", 5, 0, lambda d, s: _number(s.utilization_percent)),
    Column("memory GiB", 12, 0, _memory),
    Column("mem%", 4, 5, lambda d, s: _number(_share(s.memory_used_mib, d.memory_total_mib))),
    Column("power W", 8, 1, lambda d, s: _of(s.power_w, d.power_limit_w)),
    Column("°C", 3, 1, lambda d, s: _hot(s.temperature_c)),
    Column("SM%", 4, 2, lambda d, s: _number(s.sm_activity_percent)),
    Column("tens%", 5, 2, lambda d, s: _number(s.tensor_activity_percent)),
    Column("DRAM%", 5, 2, lambda d, s: _number(s.dram_activity_percent)),
    Column("occ%", 4, 6, lambda d, s: _number(s.sm_occupancy_percent)),
    Column("SM MHz", 6, 4, lambda d, s: _number(s.sm_clock_mhz)),
    Column("mem MHz", 7, 8, lambda d, s: _number(s.memory_clock_mhz)),
    Column("NVLink GiB/s", 12, 7, lambda d, s: _pair(s, "nvlink")),
    Column("PCIe GiB/s", 10, 9, lambda d, s: _pair(s, "pcie")),
)


def _fitting_columns(frame: Frame, width: int) -> list[Column]:
    """The most telling columns that leave room for the history, in their order."""
    shown = [(d, frame.samples[d.id]) for d in frame.devices if d.id in frame.samples]
    # A column that is empty for every device (no GPM on this GPU) only takes room.
    columns = [c for c in _COLUMNS if c.rank == 0 or any(str(c.cell(*one)) != "-" for one in shown)]
    while sum(c.width + 1 for c in columns) + _MIN_HISTORY > width:
        columns.remove(max(columns, key=lambda c: c.rank))
    return columns


def _devices(state: TopState, frame: Frame, width: int) -> Table:
    columns = _fitting_columns(frame, width)
    spare = width - sum(c.width + 1 for c in columns)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold dim")
    for column in columns:
        justify = "left" if column.title == "name" else "right"
        table.add_column(
            column.title,
            width=column.width,
            no_wrap=True,
            justify=justify,  # type: ignore[arg-type]
        )
    table.add_column("history", width=min(spare, HISTORY), no_wrap=True, justify="right")
    for device in _sorted(state, frame):
        sample = frame.samples.get(device.id)
        if sample is None:
            lost: list[str | Text] = [str(device.index), *[Text("-", "dim")] * (len(columns) - 1)]
            table.add_row(*lost, Text("lost", "red"))
            continue
        cells = [c.cell(device, sample) for c in columns]
        table.add_row(*cells, _sparkline(state.history[device.id], min(spare, HISTORY)))
    return table


def _sorted(state: TopState, frame: Frame) -> list[SampledDevice]:
    if state.sort == "index":
        return sorted(frame.devices, key=lambda d: d.index)

    def key(device: SampledDevice) -> float:
        sample = frame.samples.get(device.id)
        value = None if sample is None else getattr(sample, _SORT_METRIC[state.sort])
        return float("inf") if value is None else -value

    return sorted(frame.devices, key=key)


def _sparkline(values: Sequence[float | None], width: int) -> Text:
    """0 to 100 percent, the newest at the right; a gap where nothing was read."""
    text = Text()
    for value in list(values)[-width:]:
        if value is None:
            text.append(" ")
        else:
            level = min(len(_BLOCKS) - 1, int(value / 100 * len(_BLOCKS)))
            text.append(_BLOCKS[level], "cyan")
    return text


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _header(state: TopState, frame: Frame, width: int) -> Text:
    stamp = datetime.fromtimestamp(frame.time).strftime("%H:%M:%S")
    count = len(frame.devices)
    left = f"scalewise top  {state.title}, {count} device{'s' * (count != 1)}"
    if state.interval_s == 0:
        right = f"{stamp}  once"
    else:
        right = f"{stamp}  " + ("PAUSED" if state.paused else f"every {state.interval_s:g} s")
    gap = max(2, width - len(left) - len(right))
    return _line((left, "bold"), " " * gap, (right, "bold red" if state.paused else "dim"))


def _totals(frame: Frame) -> list[Text]:
    samples = [frame.samples[d.id] for d in frame.devices if d.id in frame.samples]
    if not samples:
        return [_line(("no device answers", "red"))]

    def known(metric: str) -> list[float]:
        return [value for s in samples if (value := getattr(s, metric)) is not None]

    parts: list[str] = []
    if used := known("memory_used_mib"):
        parts.append(f"memory {sum(used) / 1024:.1f} GiB")
    if power := known("power_w"):
        parts.append(f"power {sum(power):.0f} W")
    if busy := known("utilization_percent"):
        parts.append(f"utilisation {sum(busy) / len(busy):.0f} % on average")
    if hot := known("temperature_c"):
        parts.append(f"hottest {max(hot):.0f} °C")
    lines = [_line(("all  ", "bold dim"), ", ".join(parts))]
    if found := balance_of(samples):
        cvs = ", ".join(f"{_BALANCE[metric]} {cv:.1f} %" for metric, cv in found.items())
        lines.append(_line(("CV   ", "bold dim"), cvs))
    return lines


def _throttled(frame: Frame) -> list[Text]:
    """The throttled GPUs; those with the same reasons share a line."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for device in frame.devices:
        sample = frame.samples.get(device.id)
        if sample is not None and sample.throttle_reasons:
            groups.setdefault(sample.throttle_reasons, []).append(device.index)
    return [
        _line(
            ("held back  ", "bold yellow"),
            f"GPU {', '.join(map(str, indices))}: {', '.join(reasons)}",
        )
        for reasons, indices in groups.items()
    ]


def _processes(frame: Frame, room: int) -> list[Text]:
    rows = [
        (device.index, owner)
        for device in frame.devices
        for owner in frame.owners.get(device.id, ())
    ]
    if not rows or room < 2:
        return []
    title = f"{'GPU':>3} {'pid':>8} {'rank':>4} {'memory GiB':>10}  process"
    lines = [_line((title, "bold dim"))]
    shown = rows if len(rows) <= room - 1 else rows[: room - 2]
    lines += [_line(_process(index, owner)) for index, owner in shown]
    if len(shown) < len(rows):
        lines.append(_line((f"and {len(rows) - len(shown)} more", "dim")))
    return lines


def _process(index: int, owner: Owner) -> str:
    memory = "-" if owner.memory_mib is None else f"{owner.memory_mib / 1024:.1f}"
    rank = "-" if owner.rank is None else str(owner.rank)
    what = f"cell {owner.cell}" if owner.cell else owner.name
    return f"{index:>3} {owner.pid:>8} {rank:>4} {memory:>10}  {what}"

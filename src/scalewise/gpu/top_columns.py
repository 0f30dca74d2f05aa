"""The columns of ``scalewise top``, and which of them fit a width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from scalewise.gpu.frames import Frame
from scalewise.records import DeviceSample, SampledDevice


@dataclass(frozen=True)
class Column:
    """A column: what it shows, how wide it is, and how soon it has to go."""

    title: str
    width: int
    rank: int
    """Columns with a higher one are left out first."""
    cell: Callable[[SampledDevice, DeviceSample], Text | str]


def _columns() -> tuple[Column, ...]:
    return (
        Column("GPU", 3, 0, lambda d, s: str(d.index)),
        Column("name", 10, 3, lambda d, s: _short_name(d.name)),
        Column("util%", 5, 0, lambda d, s: _percent(s.utilization_percent)),
        Column("memory GiB", 12, 0, _memory),
        Column("mem%", 4, 5, lambda d, s: _percent(_share(s.memory_used_mib, d.memory_total_mib))),
        Column("power W", 8, 1, lambda d, s: _of(s.power_w, d.power_limit_w)),
        Column("°C", 3, 1, lambda d, s: _hot(s.temperature_c)),
        Column("SM%", 4, 2, lambda d, s: _percent(s.sm_activity_percent)),
        Column("tens%", 5, 2, lambda d, s: _percent(s.tensor_activity_percent)),
        Column("DRAM%", 5, 2, lambda d, s: _percent(s.dram_activity_percent)),
        Column("occ%", 4, 6, lambda d, s: _percent(s.sm_occupancy_percent)),
        Column("SM MHz", 6, 4, lambda d, s: _number(s.sm_clock_mhz)),
        Column("mem MHz", 7, 8, lambda d, s: _number(s.memory_clock_mhz)),
        Column("NVLink GiB/s", 12, 7, lambda d, s: _pair(s, "nvlink")),
        Column("PCIe GiB/s", 10, 9, lambda d, s: _pair(s, "pcie")),
    )


def fitting_columns(frame: Frame, width: int, reserved: int) -> list[Column]:
    """The most telling columns that leave ``reserved`` of ``width`` free, in their order."""
    columns = [c for c in _columns() if _any_value(c, frame)]
    while sum(c.width + 1 for c in columns) + reserved > width:
        columns.remove(max(columns, key=lambda c: c.rank))
    return columns


def _any_value(column: Column, frame: Frame) -> bool:
    """A column that is empty for every device (no GPM on this GPU) only takes room."""
    if column.rank == 0:
        return True
    shown = [column.cell(d, frame.samples[d.id]) for d in frame.devices if d.id in frame.samples]
    return any(str(cell) != "-" for cell in shown)


def _short_name(name: str) -> str:
    return name.removeprefix("NVIDIA ").removeprefix("process of ")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return _number(value)


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

"""``scalewise top``: the GPUs of this host, live, in as many columns as fit the terminal."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalewise.config import ConfigError
from scalewise.gpu.export import StatsLog, multi_entry
from scalewise.gpu.nvml import open_nvml
from scalewise.gpu.readers import GpuReader
from scalewise.gpu.sampler import Ticks
from scalewise.gpu.xid import NEARLY_FULL
from scalewise.host import open_console
from scalewise.records import DeviceSample, SampledDevice, cv_percent

_BETWEEN_TWO_S = 0.15
"""Between two readings of GPM, which are to be more than 0.1 s apart."""


def show_gpus(interval_s: float, *, once: bool, log: Path | None, gpu_index: int | None) -> None:
    """Show all GPUs of this host until told to end, or ``once``.

    Where the output is no terminal, one table after the other; none where there is a log.

    Args:
        log: the file that gets one GPU's readings; beside it lies one for all of them.
        gpu_index: the GPU in ``log``; the first if None.

    Raises :class:`NvmlUnavailable`, :class:`ConfigError` for a log that cannot be opened, and
    OSError where it cannot be written later.
    """
    with contextlib.ExitStack() as opened:
        reader = opened.enter_context(contextlib.closing(GpuReader(open_nvml(), interval_s)))
        stats = None
        if log is not None:
            try:
                stats = StatsLog(log, gpu_index)
            except (OSError, ValueError) as error:
                raise ConfigError(f"--log: {error}") from error
        console, live = open_console(), None
        title = f"driver {reader.nvml.driver_version()}"
        frames = _frames(reader, interval_s, once=once)
        if once:
            frames = itertools.islice(frames, 1)
        else:
            # Both signals leave the blocks, which put the terminal and the log in order.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            opened.enter_context(contextlib.suppress(KeyboardInterrupt))
            title += f", every {interval_s:g} s"
            if sys.stdout.isatty():
                live = opened.enter_context(Live(console=console, auto_refresh=False))
        for frame in frames:
            if stats is not None:
                stats.append(frame.time, frame.devices, frame.samples)
            if live is not None:
                live.update(render(frame, title, console.width), refresh=True)
            elif once or stats is None:
                console.print(render(frame, title, console.width))


def _frames(reader: GpuReader, interval_s: float, *, once: bool) -> Iterator[Frame]:
    """A frame for each reading; what is read less often is that of the last one.

    ``once``: one with every group, from the second reading on, as GPM compares two.
    """
    devices = tuple(device.as_sampled() for device in reader.devices.values())
    samples: dict[str, DeviceSample] = {}
    notes: deque[str] = deque(maxlen=3)
    ticks = Ticks(interval_s)
    for number in itertools.count():
        reading = reader.read(all_groups=once)
        events = itertools.chain(*reading.events.values())
        stamp = datetime.fromtimestamp(reading.time).strftime("%H:%M:%S")
        told = (*reading.faults, *(event.text for event in events))
        notes.extend(f"{stamp} {note}" for note in told)
        samples = {u: _filled(s, samples.get(u)) for u, s in reading.samples.items()}
        if number or not once:
            yield Frame(reading.time, devices, samples, tuple(notes))
        time.sleep(_BETWEEN_TWO_S if once else ticks.wait_s())


def _filled(sample: DeviceSample, last: DeviceSample | None) -> DeviceSample:
    """``sample`` with the values of the last one where it has none."""
    if last is None:
        return sample
    missing = [f.name for f in fields(sample) if getattr(sample, f.name) is None]
    return replace(sample, **{name: getattr(last, name) for name in missing})


_BALANCE = {
    "sm_activity_percent": "SM",
    "utilization_percent": "util",
    "memory_used_mib": "memory",
    "power_w": "power",
}
_GAP = 2
"""Blanks between two columns."""


@dataclass(frozen=True)
class Frame:
    time: float
    """Unix time."""
    devices: tuple[SampledDevice, ...]
    samples: Mapping[str, DeviceSample]
    """By device id; a device that is lost is absent."""
    notes: tuple[str, ...] = ()
    """The last events, in words."""


def balance_of(samples: Sequence[DeviceSample]) -> Mapping[str, float]:
    """CV across devices in percent, by metric; metrics not read are left out.

    None has a grade: only the time to the last gradient judges load, and no device tells it.
    """
    read = {name: [getattr(s, name) for s in samples] for name in _BALANCE}
    known = {name: values for name, values in read.items() if None not in values}
    return {n: cv_percent(v) for n, v in known.items() if len(v) > 1 and sum(v) > 0}


def render(frame: Frame, title: str, width: int) -> RenderableType:
    """A row a device in ``width`` columns; below them totals, balance and events."""
    stamp = datetime.fromtimestamp(frame.time).strftime("%H:%M:%S")
    return Group(
        _line("scalewise top", f"{title}, {stamp}"),
        _devices(frame, width),
        *_totals(frame),
        *_throttled(frame),
        *(_line("note", note, "bold red") for note in frame.notes),
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
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold dim")
    for title in columns:
        table.add_column(title, justify="left" if title == "name" else "right", no_wrap=True)
    for (device, sample), row in zip(readings, zip(*columns.values(), strict=True), strict=True):
        table.add_row(*row, style="red" if _is_alarming(device, sample) else None)
    return table


def _is_alarming(device: SampledDevice, sample: DeviceSample | None) -> bool:
    if sample is None:
        return True
    used, capacity = sample.memory_used_mib, device.memory_total_mib
    is_full = used is not None and capacity is not None and used > NEARLY_FULL * capacity
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

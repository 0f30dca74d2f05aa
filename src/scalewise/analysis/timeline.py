"""A device series as the rows of ``gpu_timeline.csv``: one for each device and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime

from scalewise.records import DeviceSample, DeviceSeries

_METRICS = tuple(f.name for f in fields(DeviceSample) if f.name not in ("id", "processes"))
TIMELINE_COLUMNS = ("timestamp", "unix_time", "gpu_index", "gpu_name", "gpu_uuid", *_METRICS)
"""``timestamp`` is local time in ISO 8601; metrics carry their unit in their name."""


def timeline_rows(series: DeviceSeries, most_times: int | None = None) -> Iterator[list[object]]:
    """Rows in the order of :data:`TIMELINE_COLUMNS`; empty text where nothing could be read.

    With ``most_times`` every n-th time is kept, the last one always, so that no more are left.
    """
    count = len(series.times)
    every = 1 if most_times is None else -(-count // most_times)
    for i, (when, samples) in enumerate(zip(series.times, series.samples, strict=True)):
        if every > 1 and (count - 1 - i) % every:
            continue
        stamp = datetime.fromtimestamp(when).isoformat(timespec="milliseconds")
        for device in series.devices:
            if device.id in samples:
                values = [_cell(getattr(samples[device.id], m)) for m in _METRICS]
                yield [stamp, when, device.index, device.name, device.id, *values]


def _cell(value: object) -> object:
    if value is None:
        return ""
    return "; ".join(value) if isinstance(value, tuple) else value

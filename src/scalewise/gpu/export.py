"""A cell's device series in seed 003's files: two JSON formats and a timeline."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path

from scalewise.gpu.seed_format import multi_entry, multi_gpu_path, single_entry
from scalewise.records import CellFolder, DeviceSample, DeviceSeries, read_device_series

_METRICS = tuple(f.name for f in fields(DeviceSample) if f.name not in ("id", "processes"))


def export_cell(folder: CellFolder, target: Path) -> list[Path]:
    """Write the device series of a cell to ``target`` and return the files written.

    ``gpu_stats_<cell>.json`` (its first device), ``gpu_stats_<cell>_multi_gpu.json`` and
    ``gpu_timeline.csv``. Of several hosts, each after the first has its id in its files' names.
    Raises :class:`~scalewise.records.RecordError` where a series cannot be read.
    """
    target.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, path in enumerate(folder.device_series_paths()):
        series = read_device_series(path)
        suffix = f"_{series.host}" if number else ""
        single = target / f"gpu_stats_{folder.name}{suffix}.json"
        timeline = target / f"gpu_timeline{suffix}.csv"
        _write_array(single, _single_entries(series))
        _write_array(multi_gpu_path(single), _multi_entries(series))
        write_timeline(timeline, series)
        written += [single, multi_gpu_path(single), timeline]
    return written


def write_timeline(path: Path, series: DeviceSeries) -> None:
    """One row for each device and time; a cell is empty where nothing could be read."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["timestamp", "unix_time", "gpu_index", "gpu_name", "gpu_uuid", *_METRICS])
        for when, samples in zip(series.times, series.samples, strict=True):
            stamp = datetime.fromtimestamp(when).isoformat(timespec="milliseconds")
            for device in series.devices:
                if device.id in samples:
                    values = [_cell(getattr(samples[device.id], m)) for m in _METRICS]
                    rows.writerow([stamp, when, device.index, device.name, device.id, *values])


def _cell(value: object) -> object:
    if value is None:
        return ""
    return "; ".join(value) if isinstance(value, tuple) else value


def _single_entries(series: DeviceSeries) -> Iterator[object]:
    first = min(series.devices, key=lambda d: d.index, default=None)
    for when, samples in zip(series.times, series.samples, strict=True):
        if first is not None and first.id in samples:
            yield single_entry(when, first, samples[first.id])


def _multi_entries(series: DeviceSeries) -> Iterator[object]:
    for when, samples in zip(series.times, series.samples, strict=True):
        yield multi_entry(when, series.devices, samples)


def _write_array(path: Path, entries: Iterator[object]) -> None:
    lines = ",\n".join(json.dumps(e, allow_nan=False, ensure_ascii=False) for e in entries)
    path.write_text(f"[\n{lines}\n]\n" if lines else "[\n]\n", encoding="utf-8")

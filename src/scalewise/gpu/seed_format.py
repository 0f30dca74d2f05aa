"""The two JSON formats of the earlier GPU monitor (single- and multi-GPU), written and read back.

``FILE.json`` is an array of entries of one GPU; ``FILE_multi_gpu.json`` an array of entries with
``multi_gpu_data`` (a list of the former) and ``aggregate_stats``. Memory is in MiB, power in W,
temperature in degrees Celsius, utilisation in percent, ``timestamp`` local time in ISO 8601. What
could not be read is null; totals and means are over the GPUs that could be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from scalewise.records import (
    CellFolder,
    DeviceSample,
    DeviceSeries,
    DeviceSeriesWriter,
    RecordError,
    SampledDevice,
)
from scalewise.records.files import parse_json, read_record

Entry = dict[str, Any]


def multi_gpu_path(path: Path) -> Path:
    """``gpu_stats.json`` to ``gpu_stats_multi_gpu.json``."""
    return path.with_name(f"{path.stem}_multi_gpu{path.suffix}")


def single_entry(when: float, device: SampledDevice, sample: DeviceSample) -> Entry:
    """One GPU at Unix time ``when``."""
    return {"timestamp": _timestamp(when), **_gpu_data(device, sample)}


def multi_entry(
    when: float, devices: Sequence[SampledDevice], samples: Mapping[str, DeviceSample]
) -> Entry:
    """All GPUs that answered at Unix time ``when``, with their aggregate."""
    rows = [_gpu_data(d, samples[d.id]) for d in devices if d.id in samples]
    return {
        "timestamp": _timestamp(when),
        "multi_gpu_data": rows,
        "aggregate_stats": _aggregate(rows),
    }


def _gpu_data(device: SampledDevice, sample: DeviceSample) -> Entry:
    return {
        "gpu_index": device.index,
        "gpu_name": device.name,
        "gpu_uuid": device.id,
        "utilization": sample.utilization_percent,
        "memory_used": sample.memory_used_mib,
        "memory_total": device.memory_total_mib,
        "power": sample.power_w,
        "temperature": sample.temperature_c,
    }


def _aggregate(rows: Sequence[Entry]) -> Entry:
    def known(name: str) -> list[float]:
        return [row[name] for row in rows if row[name] is not None]

    def total(name: str) -> float | None:
        # A sum that leaves a GPU out would be read as the whole host's.
        values = known(name)
        return sum(values) if rows and len(values) == len(rows) else None

    used, capacity = total("memory_used"), total("memory_total")
    utilization = known("utilization")
    return {
        "total_memory_used": used,
        "total_memory_total": capacity,
        "total_memory_percent": 100 * used / capacity if used is not None and capacity else None,
        "average_utilization": sum(utilization) / len(utilization) if utilization else None,
        "total_power": total("power"),
        "max_temperature": max(known("temperature"), default=None),
        "gpu_count": len(rows),
    }


def _timestamp(when: float) -> str:
    return datetime.fromtimestamp(when).isoformat(timespec="milliseconds")


# Reading


def read_seed_file(path: Path) -> DeviceSeries:
    """Either format, old files included, as a device series.

    Accepts an array, one object, or one object a line. Old files name GPUs by index alone; their
    ids are then ``gpu<index>``. Raises :class:`RecordError` naming the entry that does not fit.
    """
    entries = _load(path)
    devices: dict[str, SampledDevice] = {}
    times: list[float] = []
    rows: list[dict[str, DeviceSample]] = []
    for number, entry in enumerate(entries, start=1):
        try:
            when = datetime.fromisoformat(str(entry["timestamp"])).timestamp()
            data = entry.get("multi_gpu_data", [entry])
            samples = [_parse_gpu(row, devices) for row in data]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise RecordError(
                f"{path}, entry {number}: {what}; an entry of either gpu_stats format was expected"
            ) from None
        times.append(when)
        rows.append({sample.id: sample for sample in samples})
    ordered = tuple(sorted(devices.values(), key=lambda d: d.index))
    interval_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
    return DeviceSeries(
        host="imported",
        source="nvml",
        interval_s=interval_s,
        devices=ordered,
        unavailable=_unavailable(rows),
        times=tuple(times),
        samples=tuple(rows),
        cost_ms=(None,) * len(times),
    )


def import_seed_file(path: Path, folder: CellFolder) -> Path:
    """Store either format as a device series of ``folder`` and return its path.

    Several files become several series, named after them. Raises :class:`RecordError`.
    """
    series = read_seed_file(path)
    target = folder.device_series_path(f"imported-{path.stem}")
    writer = DeviceSeriesWriter(
        target,
        series.host,
        series.source,
        series.interval_s,
        series.devices,
        series.unavailable,
    )
    for when, samples in zip(series.times, series.samples, strict=True):
        writer.append(when, samples, None)
    writer.close()
    return target


def _load(path: Path) -> list[Any]:
    try:
        text = read_record(path).decode()
    except OSError as error:
        raise RecordError(
            f"{path}: cannot be read: {error.strerror or error}; allowed: a file in either "
            "gpu_stats format"
        ) from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    try:
        plain = parse_json(text)
    except ValueError as whole:
        try:
            plain = [parse_json(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise RecordError(f"{path}: not JSON: {whole}") from None
    entries = plain if isinstance(plain, list) else [plain]
    if not entries:
        raise RecordError(f"{path}: it holds no entry")
    return entries


def _parse_gpu(row: Mapping[str, Any], devices: dict[str, SampledDevice]) -> DeviceSample:
    index = int(row["gpu_index"])
    uuid = str(row.get("gpu_uuid") or f"gpu{index}")
    device = SampledDevice(
        uuid, index, str(row["gpu_name"]), memory_total_mib=_number(row, "memory_total")
    )
    known = devices.setdefault(uuid, device)
    if known.memory_total_mib is None:
        devices[uuid] = replace(known, memory_total_mib=device.memory_total_mib)
    return DeviceSample(
        uuid,
        utilization_percent=_number(row, "utilization"),
        memory_used_mib=_number(row, "memory_used"),
        power_w=_number(row, "power"),
        temperature_c=_number(row, "temperature"),
    )


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return None if value is None else float(value)


def _unavailable(rows: Sequence[Mapping[str, DeviceSample]]) -> dict[str, str]:
    """Metrics that no entry holds."""
    names = ("utilization_percent", "memory_used_mib", "power_w", "temperature_c")
    samples = [sample for row in rows for sample in row.values()]
    return {
        name: "not in the imported file"
        for name in names
        if all(getattr(sample, name) is None for sample in samples)
    }

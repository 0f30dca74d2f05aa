"""The earlier GPU monitor's files: a cell's device series written to them, and read back.

``FILE.json`` is an array of entries of one GPU; ``FILE_multi_gpu.json`` an array of entries with
``multi_gpu_data`` (a list of the former) and ``aggregate_stats``. Memory is in MiB, power in W,
temperature in degrees Celsius, utilisation in percent, ``timestamp`` local time in ISO 8601.
A value that could not be read is null.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from scalewise.records import (
    TIMELINE_COLUMNS,
    CellFolder,
    DeviceSample,
    DeviceSeries,
    DeviceSeriesWriter,
    RecordError,
    SampledDevice,
    parse_json,
    read_device_series,
    timeline_rows,
    unpacked,
)

StatsEntry = dict[str, Any]

_EMPTY = b"[\n]\n"
_END = b"\n]\n"


class Exported(NamedTuple):
    """The files written, and the cells left out, when a folder is exported."""

    written: tuple[Path, ...]
    problems: tuple[str, ...]
    """A line for each cell that was left out: a series of its cannot be read."""


def export_folder(path: Path, target: Path | None) -> Exported:
    """Export the cell in ``path``, or every cell of the sweep there.

    A cell is exported into its own folder, or with ``target`` into that folder, where the cells of
    a sweep get a folder each; those of an archive ``A.zip`` go to ``A``. Cells without GPUs are
    passed over. Raises :class:`~scalewise.records.RecordError` where no GPU was sampled at all.
    """
    if path.is_file():
        path, target = unpacked(path), target or path.with_suffix("")
    if (path / "config.yaml").exists():
        cells = {path: target or path}
    else:
        found = sorted(p.parent for p in path.glob("*/config.yaml"))
        cells = {cell: target / cell.name if target else cell for cell in found}
    if not cells:
        raise RecordError(
            f"{path}: found no cell and no sweep; give the folder of either, e.g. multirun/<sweep>"
        )
    written: list[Path] = []
    problems: list[str] = []
    for cell, own_target in cells.items():
        try:
            written += export_cell(CellFolder(cell), own_target)
        except RecordError as error:
            problems.append(str(error))
    if not written and not problems:
        raise RecordError(
            f"{path}: no GPU was sampled there: the cells ran on a CPU or never trained, or "
            "monitor.devices was false; nothing was written"
        )
    return Exported(tuple(written), tuple(problems))


def export_cell(folder: CellFolder, target: Path) -> list[Path]:
    """Write the device series of a cell to ``target`` and return the files written.

    ``gpu_stats_<cell>.json`` (its first device), ``gpu_stats_<cell>_multi_gpu.json`` and
    ``gpu_timeline.csv``. Each host after the first has its id in its files' names.
    Nothing is written of a host without GPUs: its samples are of processes. Raises
    :class:`~scalewise.records.RecordError` where a series cannot be read.
    """
    written: list[Path] = []
    found = [read_device_series(path) for path in folder.device_series_paths()]
    for number, series in enumerate(s for s in found if s.source == "nvml"):
        target.mkdir(parents=True, exist_ok=True)
        suffix = f"_{series.host}" if number else ""
        single = target / stats_path(folder, series.host if number else None).name
        timeline = target / f"gpu_timeline{suffix}.csv"
        first = min(series.devices, key=lambda d: d.index, default=None)
        rows = list(zip(series.times, series.samples, strict=True))
        _write_array(
            single,
            (
                single_entry(when, first, at[first.id])
                for when, at in rows
                if first and first.id in at
            ),
        )
        _write_array(
            multi_gpu_path(single), (multi_entry(when, series.devices, at) for when, at in rows)
        )
        with timeline.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(TIMELINE_COLUMNS)
            table.writerows(timeline_rows(series))
        written += [single, multi_gpu_path(single), timeline]
    return written


def _write_array(path: Path, entries: Iterable[StatsEntry]) -> None:
    lines = ",\n".join(json.dumps(e, allow_nan=False, ensure_ascii=False) for e in entries)
    path.write_text(f"[\n{lines}\n]\n" if lines else "[\n]\n", encoding="utf-8")


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
        unavailable={
            name: "not in the imported file"
            for name in ("utilization_percent", "memory_used_mib", "power_w", "temperature_c")
            if all(getattr(sample, name) is None for row in rows for sample in row.values())
        },
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
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
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


def stats_path(folder: CellFolder, host: str | None = None) -> Path:
    """``gpu_stats_<cell>.json`` in a cell's folder; hosts after the first have their id in it."""
    suffix = f"_{host}" if host else ""
    return folder.path / f"gpu_stats_{folder.name}{suffix}.json"


def multi_gpu_path(path: Path) -> Path:
    """``gpu_stats.json`` to ``gpu_stats_multi_gpu.json``."""
    return path.with_name(f"{path.stem}_multi_gpu{path.suffix}")


def single_entry(when: float, device: SampledDevice, sample: DeviceSample) -> StatsEntry:
    """One GPU at Unix time ``when``."""
    return {"timestamp": _timestamp(when), **_gpu_data(device, sample)}


def multi_entry(
    when: float, devices: Sequence[SampledDevice], samples: Mapping[str, DeviceSample]
) -> StatsEntry:
    """All GPUs that answered at Unix time ``when``, with their aggregate."""
    rows = [_gpu_data(d, samples[d.id]) for d in devices if d.id in samples]
    return {
        "timestamp": _timestamp(when),
        "multi_gpu_data": rows,
        "aggregate_stats": _aggregate(rows),
    }


def _gpu_data(device: SampledDevice, sample: DeviceSample) -> StatsEntry:
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


def _aggregate(rows: Sequence[StatsEntry]) -> StatsEntry:
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


class StatsLog:
    """``FILE`` and ``FILE_multi_gpu`` while they grow, valid JSON at every moment."""

    def __init__(self, path: Path, gpu_index: int | None = None) -> None:
        """``gpu_index`` chooses the GPU of ``FILE``: by default the first.

        Raises ValueError where a file holds something else than a JSON array, or OSError.
        """
        self._gpu_index = gpu_index
        self._single = JsonArrayFile(path)
        self._multi = JsonArrayFile(multi_gpu_path(path))

    def append(
        self, when: float, devices: Sequence[SampledDevice], samples: Mapping[str, DeviceSample]
    ) -> None:
        """Add a reading of Unix time ``when``. Raises OSError."""
        chosen = next((d for d in devices if self._gpu_index in (None, d.index)), None)
        if chosen is not None and chosen.id in samples:
            self._single.append(single_entry(when, chosen, samples[chosen.id]))
        self._multi.append(multi_entry(when, devices, samples))

    def close(self) -> None:
        self._single.close()
        self._multi.close()


class JsonArrayFile:
    """A JSON array on disk that grows, and that is whole at every moment, after kill -9 too.

    An array that is already there is continued. A write may be cut off at a page boundary by a
    SIGKILL, and rewriting everything costs the square of the number of entries. So an entry is
    appended to the hidden one of two copies, which then takes the public name in one atomic step.
    A reader who opened the public file has until the entry after next to read it.
    """

    def __init__(self, path: Path) -> None:
        """Raises ValueError where ``path`` holds something else than a JSON array, or OSError."""
        self.path = path
        self._copies = [path.with_name(f".{path.name}.{suffix}") for suffix in "ab"]
        self._pending: list[bytes] = []
        """Entries that the hidden copy lacks: what was appended to the other one last."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = self._existing()
        for copy in self._copies:
            copy.write_bytes(content)
        self._publish(self._copies[0])
        self._hidden = 1

    def append(self, entry: Any) -> None:
        """Raises OSError; the public file then stays as it was."""
        text = json.dumps(entry, allow_nan=False, ensure_ascii=False).encode()
        hidden = self._copies[self._hidden]
        _extend(hidden, [*self._pending, text])
        self._publish(hidden)
        self._pending = [text]
        self._hidden = 1 - self._hidden

    def close(self) -> None:
        """Leave the public file alone behind."""
        for copy in self._copies:
            copy.unlink(missing_ok=True)

    def _existing(self) -> bytes:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return _EMPTY
        try:
            entries = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path}: not JSON ({error}); name another file") from None
        if not isinstance(entries, list):
            raise ValueError(f"{self.path}: not a JSON array; name another file")
        if not entries:
            return _EMPTY
        return content.rstrip().removesuffix(b"]").rstrip() + _END

    def _publish(self, copy: Path) -> None:
        name = self.path.with_name(f".{self.path.name}.new")
        name.unlink(missing_ok=True)
        os.link(copy, name)
        name.replace(self.path)


def _extend(path: Path, entries: list[bytes]) -> None:
    """Put entries before the closing bracket."""
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        empty = size == len(_EMPTY)
        file.seek(size - len(_END))
        separator = b"\n" if empty else b",\n"
        try:
            unwritten = memoryview(separator + b",\n".join(entries) + _END)
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
        except OSError:
            # A full disk: what stood there before fits again, so that later entries may follow.
            file.truncate(size - len(_END))
            file.seek(size - len(_END))
            file.write(_END)
            raise

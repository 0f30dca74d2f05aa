"""The earlier GPU monitor's files, to which a cell's device series is written.

``FILE.json`` is an array of entries of one GPU; ``FILE_multi_gpu.json`` an array of entries with
``multi_gpu_data`` (a list of the former) and ``aggregate_stats``. Memory is in MiB, power in W,
temperature in degrees Celsius, utilisation in percent, ``timestamp`` local time in ISO 8601.
A value that could not be read is null.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from scalewise.records import (
    TIMELINE_COLUMNS,
    CellFolder,
    DeviceSample,
    RecordError,
    SampledDevice,
    read_device_series,
    timeline_rows,
    unpacked,
    write_atomically,
)

StatsEntry = dict[str, Any]

_END = b"\n]\n"


def export_folder(path: Path, target: Path | None) -> tuple[list[Path], list[str]]:
    """Export the cell in ``path``, or every cell of the sweep there.

    Returns the files written, and a line for each cell a series of which cannot be read.

    A cell is exported into its own folder, or with ``target`` into that folder, where the cells of
    a sweep get a folder each; those of an archive ``A.zip`` go to ``A``. Cells without GPUs are
    passed over. Raises :class:`~scalewise.records.RecordError` where no GPU was sampled at all.
    """
    given = path
    if path.is_file():
        path, target = unpacked(path), target or path.with_suffix("")
    if (path / "config.yaml").exists():
        cells = {path: target or path}
    else:
        found = sorted(p.parent for p in path.glob("*/config.yaml"))
        cells = {cell: target / cell.name if target else cell for cell in found}
    if not cells:
        raise RecordError(
            f"{given}: found no cell and no sweep; give the folder of either, e.g. multirun/<sweep>"
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
            f"{given}: no GPU was sampled there: the cells ran on a CPU or never trained, or "
            "monitor.devices was false; nothing was written"
        )
    return written, problems


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
        log = StatsLog(single, None if first is None else first.index, anew=True)
        for when, at in zip(series.times, series.samples, strict=True):
            log.append(when, series.devices, at)
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(TIMELINE_COLUMNS)
        table.writerows(timeline_rows(series))
        write_atomically(timeline, text.getvalue().encode())
        written += [single, multi_gpu_path(single), timeline]
    return written


def stats_path(folder: CellFolder, host: str | None = None) -> Path:
    """``gpu_stats_<cell>.json`` in a cell's folder; hosts after the first have their id in it."""
    return folder.path / f"{'_'.join(filter(None, ('gpu_stats', folder.name, host)))}.json"


def multi_gpu_path(path: Path) -> Path:
    """``gpu_stats.json`` to ``gpu_stats_multi_gpu.json``."""
    return path.with_name(f"{path.stem}_multi_gpu{path.suffix}")


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
    """``FILE`` and ``FILE_multi_gpu`` while they grow, valid JSON after each reading."""

    def __init__(self, path: Path, gpu_index: int | None = None, *, anew: bool = False) -> None:
        """``gpu_index`` chooses the GPU of ``FILE``: by default the first.

        What is there is continued, or removed for one that begins ``anew``. Raises ValueError where
        a file holds something else than a JSON array, or OSError.
        """
        self._gpu_index = gpu_index
        for stale in (path, multi_gpu_path(path)) if anew else ():
            stale.unlink(missing_ok=True)
        self._single = JsonArrayFile(path)
        self._multi = JsonArrayFile(multi_gpu_path(path))

    def append(
        self, when: float, devices: Sequence[SampledDevice], samples: Mapping[str, DeviceSample]
    ) -> None:
        """Add a reading of Unix time ``when``. Raises OSError."""
        chosen = next((d for d in devices if self._gpu_index in (None, d.index)), None)
        if chosen is not None and chosen.id in samples:
            data = _gpu_data(chosen, samples[chosen.id])
            self._single.append({"timestamp": _timestamp(when), **data})
        self._multi.append(multi_entry(when, devices, samples))


class JsonArrayFile:
    """A JSON array on disk that grows: each entry is written over the closing bracket, at one go.

    An array that is already there is continued.
    """

    def __init__(self, path: Path) -> None:
        """Raises ValueError where ``path`` holds something else than a JSON array, or OSError."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.exists() else b"[]"
        try:
            entries = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not JSON ({error}); name another file") from None
        if not isinstance(entries, list):
            raise ValueError(f"{path}: not a JSON array; name another file")
        write_atomically(path, content.rstrip().removesuffix(b"]").rstrip() + _END)

    def append(self, entry: Any) -> None:
        """Raises OSError; the file is then as it was."""
        text = json.dumps(entry, allow_nan=False, ensure_ascii=False).encode()
        with self.path.open("r+b", buffering=0) as file:
            begin = file.seek(-len(_END), os.SEEK_END)
            unwritten = memoryview((b",\n" if begin > 1 else b"\n") + text + _END)
            try:
                while unwritten:
                    unwritten = unwritten[file.write(unwritten) :]
            except OSError:
                # A full disk: what stood there before fits again, so that later entries may follow.
                file.truncate(begin)
                file.seek(begin)
                file.write(_END)
                raise

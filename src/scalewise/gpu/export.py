"""A cell's device series in the earlier GPU monitor's files: two JSON formats and a timeline."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.analysis.timeline import TIMELINE_COLUMNS, timeline_rows
from scalewise.gpu.seed_format import multi_entry, multi_gpu_path, single_entry
from scalewise.records import CellFolder, DeviceSeries, RecordError, read_device_series


@dataclass(frozen=True)
class Exported:
    """What became of the cells of a folder."""

    written: tuple[Path, ...]
    problems: tuple[str, ...]
    """Of cells that were left out, in a line each: a series of theirs cannot be read."""


def export_folder(path: Path, target: Path | None) -> Exported:
    """Export the cell in ``path``, or every cell of the sweep there.

    A cell is exported into its own folder, or with ``target`` into that folder, where the cells of
    a sweep get a folder each. Cells without GPUs are passed over. Raises
    :class:`~scalewise.records.RecordError` where no GPU was sampled at all.
    """
    written: list[Path] = []
    problems: list[str] = []
    cells = [path]
    if (path / "config.yaml").exists():
        written = export_cell(CellFolder(path), target or path)
    else:
        cells = sorted(p.parent for p in path.glob("*/config.yaml"))
        if not cells:
            raise RecordError(
                f"{path}: found no cell and no sweep; give the folder of either, "
                "e.g. multirun/<sweep>"
            )
        for cell in cells:
            try:
                written += export_cell(CellFolder(cell), target / cell.name if target else cell)
            except RecordError as error:
                problems.append(str(error))
    if not written and not problems:
        raise RecordError(f"{path}: {_why_nothing(cells)}; nothing was written")
    return Exported(tuple(written), tuple(problems))


def _why_nothing(cells: Sequence[Path]) -> str:
    series = [found for cell in cells for found in CellFolder(cell).device_series_paths()]
    if series:
        return "no GPU was sampled there: the cells ran on a CPU, and their processes were sampled"
    return "no device was sampled there: the cells never trained, or monitor.devices was false"


def export_cell(folder: CellFolder, target: Path) -> list[Path]:
    """Write the device series of a cell to ``target`` and return the files written.

    ``gpu_stats_<cell>.json`` (its first device), ``gpu_stats_<cell>_multi_gpu.json`` and
    ``gpu_timeline.csv``. Of several hosts, each after the first has its id in its files' names.
    Nothing is written of a host without GPUs: its samples are of processes. Raises
    :class:`~scalewise.records.RecordError` where a series cannot be read.
    """
    written: list[Path] = []
    found = [read_device_series(path) for path in folder.device_series_paths()]
    for number, series in enumerate(s for s in found if s.source == "nvml"):
        target.mkdir(parents=True, exist_ok=True)
        suffix = f"_{series.host}" if number else ""
        single = target / f"gpu_stats_{folder.name}{suffix}.json"
        timeline = target / f"gpu_timeline{suffix}.csv"
        _write_array(single, _single_entries(series))
        _write_array(multi_gpu_path(single), _multi_entries(series))
        write_timeline(timeline, series)
        written += [single, multi_gpu_path(single), timeline]
    return written


def write_timeline(path: Path, series: DeviceSeries) -> None:
    """Every sample, in the columns of :data:`~scalewise.analysis.timeline.TIMELINE_COLUMNS`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(TIMELINE_COLUMNS)
        rows.writerows(timeline_rows(series))


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

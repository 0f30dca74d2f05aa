"""Everything of a cell that a tracker is given, read while the cell runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scalewise.records import Alert, CellFolder, MetricRow, RecordError
from scalewise.tracking.alerts import ImbalanceWatch, build_alert
from scalewise.tracking.base import metric_name
from scalewise.tracking.devices import DeviceRows
from scalewise.tracking.rank_means import RankMeans
from scalewise.tracking.tail import LineTail, StepTail
from scalewise.tracking.windows import StepWindows
from scalewise.validation import DataError, build


@dataclass(frozen=True)
class Row:
    """One row for a tracker."""

    kind: Literal["metrics", "system", "alert"]
    id: str
    """Its place in the records: the same row always has the same id."""
    time: float
    """Unix time."""
    step: int
    """Optimizer step; 0 for device readings."""
    values: dict[str, float]
    alert: Alert | None = None
    """Present if and only if the kind is ``alert``, which has no values."""


class CellRows:
    """Reads a cell's series from where it stopped reading them last."""

    def __init__(
        self,
        cell: CellFolder,
        every_n_steps: int,
        world_size: int,
        system_interval_s: float,
        since_ns: int = 0,
        *,
        one_model: bool = True,
    ) -> None:
        """``since_ns``: files not written to since then belong to an earlier try.

        Without ``one_model`` the ranks never meet, and nothing is their mean.
        """
        self._cell = cell
        self._since_ns = since_ns
        self._system_interval_s = system_interval_s
        self._ranks = world_size
        self._means = RankMeans(world_size) if one_model and world_size > 1 else None
        self._metrics: dict[int, LineTail] = {}
        self._steps: dict[int, StepTail] = {}
        self._devices: dict[str, tuple[LineTail, DeviceRows]] = {}
        self._counts: dict[str, int] = {}
        self.windows = StepWindows(every_n_steps, world_size)
        self._imbalance = ImbalanceWatch()
        self._last_step = 0

    def read(self, *, final: bool = False) -> Iterator[Row]:
        """Rows added since the last call; with ``final`` all that is left, to the last step.

        Raises RecordError for a file that is not what it should be, ``tail.ReplacedError`` for one
        that a retry has begun anew.
        """
        while True:
            found = False
            for row in (*self._read_metrics(), *self._read_devices()):
                found = True
                yield row
            read_steps = self._read_steps()
            yield from self._window_rows(final=False)
            if not (final and (found or read_steps)):
                break
        if final:
            yield from self._window_rows(final=True)

    def _is_current(self, path: Path) -> bool:
        return path.stat().st_mtime_ns >= self._since_ns

    def _number(self, series: str) -> str:
        self._counts[series] = self._counts.get(series, 0) + 1
        return f"{series}:{self._counts[series]}"

    def _read_metrics(self) -> Iterator[Row]:
        for rank in self._cell.ranks_with_metrics():
            path = self._cell.metrics_path(rank)
            if rank not in self._metrics:
                if not self._is_current(path):
                    continue
                self._metrics[rank] = LineTail(path)
            tail = self._metrics[rank]
            for line in tail.read():
                try:
                    row = build(MetricRow, line)
                except DataError as error:
                    raise RecordError(f"{path}: {error}") from error
                row = replace(row, values={metric_name(k): v for k, v in row.values.items()})
                # Alone it speaks for the run; among several it has seen a part of each batch.
                prefix = f"rank_{rank}/" if self._ranks > 1 or rank else ""
                values = {f"{prefix}{k}": v for k, v in row.values.items() if v is not None}
                if rank == 0:
                    values |= {
                        "progress/epoch": float(row.epoch),
                        "progress/samples": float(row.samples),
                    }
                if values:
                    name = self._number(f"metrics/rank{rank}")
                    yield Row("metrics", name, row.time, row.step, values)
                yield from self._mean_row(rank, row)

    def _mean_row(self, rank: int, row: MetricRow) -> Iterator[Row]:
        """Once the last rank has come to a step: what holds for all of them."""
        values = self._means.add(rank, row) if self._means is not None else {}
        if values:
            yield Row("metrics", self._number("metrics/all"), row.time, row.step, values)

    def _read_devices(self) -> Iterator[Row]:
        paths = self._cell.device_series_paths()
        for path in paths:
            host = path.stem
            if host not in self._devices:
                if not self._is_current(path):
                    continue
                label = "" if len(paths) == 1 else f"{host[:4]}-"
                rows = DeviceRows(self._system_interval_s, label)
                self._devices[host] = (LineTail(path), rows)
            tail, rows = self._devices[host]
            for line in tail.read():
                if "alert" in line:
                    yield self._alert(build_alert(path, line))
                    continue
                for time, values in rows.rows(line):
                    yield Row("system", self._number(f"devices/{host}"), time, 0, values)

    def _read_steps(self) -> bool:
        found = False
        for rank in self._cell.ranks_with_steps():
            if rank not in self._steps:
                path = self._cell.steps_path(rank)
                if not self._is_current(path):
                    continue
                self._steps[rank] = StepTail(path)
            rows = self._steps[rank].read()
            if len(rows):
                found = True
                self.windows.add(rank, rows)
        return found

    def _window_rows(self, *, final: bool) -> Iterator[Row]:
        for window in self.windows.cut(final=final):
            offset_ns = self._steps[0].epoch_offset_ns or 0
            time = (window.start_ns + offset_ns) / 1e9
            self._last_step = window.step
            yield Row("metrics", self._number("steps"), time, window.step, window.values)
            alert = self._imbalance.check(time, window)
            if alert is not None:
                yield self._alert(alert)

    def _alert(self, alert: Alert) -> Row:
        # Numbers would depend on how far each series was read when: mirrored again, they differ.
        name = f"alert:{alert.device_id}:{alert.title}"
        return Row("alert", name, alert.time, self._last_step, {}, alert)

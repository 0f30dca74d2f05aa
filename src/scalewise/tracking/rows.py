"""Everything of a cell that a tracker is given, read while the cell runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scalewise.records import (
    Alert,
    CellFolder,
    LineParser,
    MetricRow,
    RowKey,
    RowKeys,
    StepParser,
    Tail,
    build,
    load_or_none,
    mean_over_ranks,
    weights_of,
)
from scalewise.tracking.row_sources import DeviceRows, StepWindows
from scalewise.tracking.tracker import Row

_LOG_EVERY_N_STEPS: Final = 50
"""Where the configuration does not say: Lightning's own."""


class CellRows:
    """Reads a cell's series from where it stopped reading them last."""

    def __init__(
        self, cell: CellFolder, config: Mapping[str, Any], system_interval_s: float
    ) -> None:
        """``config`` is the cell's, resolved."""
        self._cell = cell
        self._system_interval_s = system_interval_s
        provenance = load_or_none(cell.load_provenance)
        devices = () if provenance is None else provenance.devices  # one a rank, if known by now
        self._ranks = max(1, len(devices))
        strategy = config.get("strategy")
        kind = strategy.get("kind") if isinstance(strategy, Mapping) else None
        # Models that never meet have no mean.
        one_model = kind != "task_parallel" and self._ranks > 1
        self._means = RankMeans(self._ranks) if one_model else None
        self._metrics: dict[int, Tail[list[MetricRow]]] = {}
        self._steps: dict[int, tuple[Tail[npt.NDArray[np.void]], StepParser]] = {}
        self._devices: dict[str, Tail[list[Alert | tuple[float, dict[str, float]] | None]]] = {}
        self._counts: dict[str, int] = {}
        every = config.get("log_every_n_steps")
        if not isinstance(every, int) or every < 1:
            every = _LOG_EVERY_N_STEPS
        self.windows = StepWindows(
            every, self._ranks, on_gpus=any(d.kind == "cuda" for d in devices)
        )
        self._last_step = 0

    def read(self, *, final: bool = False) -> Iterator[Row]:
        """Rows added since the last call; with ``final`` all that is left, to the last step.

        Raises RecordError for a file that is not what it should be, or that a retry began anew.
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

    def _number(self, series: str) -> str:
        self._counts[series] = self._counts.get(series, 0) + 1
        return f"{series}:{self._counts[series]}"

    def _read_metrics(self) -> Iterator[Row]:
        for rank in self._cell.ranks_with_metrics():
            path = self._cell.metrics_path(rank)
            if rank not in self._metrics:
                self._metrics[rank] = Tail(path, LineParser(partial(build, MetricRow)))
            for row in self._metrics[rank].read():
                # Alone it speaks for the run; among several it has seen a part of each batch.
                prefix = f"rank_{rank}/" if self._ranks > 1 or rank else ""
                values = {f"{prefix}{k}": v for k, v in row.values.items() if v is not None}
                if rank == 0:
                    values["progress/epoch"] = float(row.epoch)
                    values["progress/samples"] = float(row.samples)
                # Once the last rank has come to a step, what holds for all of them is a row too.
                means = self._means.add(rank, row) if self._means is not None else {}
                for series, found in ((f"metrics/rank{rank}", values), ("metrics/all", means)):
                    if found:
                        yield Row("metrics", self._number(series), row.time, row.step, found)

    def _read_devices(self) -> Iterator[Row]:
        paths = self._cell.device_series_paths()
        for path in paths:
            host = path.stem
            if host not in self._devices:
                label = "" if len(paths) == 1 else f"{host[:4]}-"
                rows = DeviceRows(self._system_interval_s, label)
                self._devices[host] = Tail(path, LineParser(rows.row))
            for found in self._devices[host].read():
                if isinstance(found, Alert):
                    yield self._alert(found)
                elif found is not None:
                    time, values = found
                    yield Row("system", self._number(f"devices/{host}"), time, 0, values)

    def _read_steps(self) -> bool:
        found = False
        for rank in self._cell.ranks_with_steps():
            if rank not in self._steps:
                parser = StepParser()
                self._steps[rank] = (Tail(self._cell.steps_path(rank), parser), parser)
            rows = self._steps[rank][0].read()
            if len(rows):
                found = True
                self.windows.add(rank, rows)
        return found

    def _window_rows(self, *, final: bool) -> Iterator[Row]:
        for window in self.windows.cut(final=final):
            offset_ns = self._steps[0][1].epoch_offset_ns or 0
            time = (window.start_ns + offset_ns) / 1e9
            self._last_step = window.step
            yield Row("metrics", self._number("steps"), time, window.step, window.values)

    def _alert(self, alert: Alert) -> Row:
        # Numbers would depend on how far each series was read when: mirrored again, they differ.
        name = f"alert:{alert.device_id}:{alert.title}"
        return Row("alert", name, alert.time, self._last_step, {}, alert)


class RankMeans:
    """Matches the rows of all ranks, whichever of them come first."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._keys: dict[int, RowKeys] = {}
        self._waiting: dict[RowKey, dict[int, MetricRow]] = {}

    def add(self, rank: int, row: MetricRow) -> Mapping[str, float]:
        """One more row of ``rank``, in order; returns the means if it was the last of its step.

        A metric has a mean if every rank has recorded it and it is finite on all of them. A loss of
        unknown numbers of samples has none, unless all ranks agree on it.
        """
        key = self._keys.setdefault(rank, RowKeys()).key(row)
        waiting = self._waiting.setdefault(key, {})
        waiting[rank] = row
        if len(waiting) < self._world_size:
            return {}
        rows = [one for _, one in sorted(self._waiting.pop(key).items())]
        found: dict[str, float] = {}
        for name in rows[0].values:
            if not all(name in one.values for one in rows):
                continue
            values, weights = [one.values[name] for one in rows], weights_of(name, rows)
            if weights is None and len(set(values)) > 1:
                continue
            mean = mean_over_ranks(values, weights)
            if mean is not None:
                found[name] = mean
        return found

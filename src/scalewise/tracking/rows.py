"""Everything of a cell that a tracker is given, read while the cell runs.

Device samples are named by device, and steps are one row a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from scalewise.analysis import rehearsed_kind
from scalewise.records import (
    PHASES,
    READINGS,
    STEP_DTYPE,
    WARMUP,
    Alert,
    CellFolder,
    DeviceSample,
    LineParser,
    MetricRow,
    RowKey,
    SampledDevice,
    StepParser,
    Tail,
    build,
    cv_percent,
    key_after,
    load_or_none,
    mean_over_ranks,
    weights_of,
)
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
            every,
            self._ranks,
            on_gpus=any(d.kind == "cuda" for d in devices),
            are_all=rehearsed_kind(config) is None,
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
                    # A number would tell how far each series was read: mirrored again, it differs.
                    name = f"alert:{found.device_id}:{found.title}"
                    yield Row("alert", name, found.time, self._last_step, {}, found)
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
        for step, start_ns, values in self.windows.cut(final=final):
            time = (start_ns + (self._steps[0][1].epoch_offset_ns or 0)) / 1e9
            self._last_step = step
            yield Row("metrics", self._number("steps"), time, step, values)


class RankMeans:
    """Matches the rows of all ranks, whichever of them come first."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._keys: dict[int, RowKey] = {}
        self._waiting: dict[RowKey, dict[int, MetricRow]] = {}

    def add(self, rank: int, row: MetricRow) -> Mapping[str, float]:
        """One more row of ``rank``, in order; returns the means if it was the last of its step.

        A metric has a mean if every rank has recorded it and it is finite on all of them. A loss of
        unknown numbers of samples has none, unless all ranks agree on it.
        """
        key = self._keys[rank] = key_after(self._keys.get(rank), row)
        waiting = self._waiting.setdefault(key, {})
        waiting[rank] = row
        if len(waiting) < self._world_size:
            return {}
        rows = [one for _, one in sorted(self._waiting.pop(key).items())]
        found: dict[str, float] = {}
        shared = [name for name in rows[0].values if all(name in one.values for one in rows)]
        for name in shared:
            values, weights = [one.values[name] for one in rows], weights_of(name, rows)
            if weights is None and len(set(values)) > 1:
                continue
            mean = mean_over_ranks(values, weights)
            if mean is not None:
                found[name] = mean
        return found


_AGGREGATES: Final[Mapping[str, tuple[str, str | None]]] = {
    "memory_used_mib": ("total", "gpu_total_memory"),
    "utilization_percent": ("mean", "gpu_avg_utilization"),
    "sm_activity_percent": ("mean", None),
    "power_w": ("total", None),
}
"""Metric to what is told of all GPUs together, and the earlier GPU monitor's name of it."""
_PROCESS_METRICS: Final = {"utilization_percent": "cpu_percent", "memory_used_mib": "rss_mib"}


class DeviceRows:
    """Turns the lines of one host's device series into rows, at most one every ``interval_s``."""

    def __init__(self, interval_s: float, host_label: str = "") -> None:
        self._interval_s = interval_s
        self._label = host_label
        """Tells the devices of several hosts apart; empty for a single host."""
        self._devices: dict[str, SampledDevice] = {}
        self._source = ""
        self._last_time: float | None = None

    def row(self, line: Mapping[str, Any]) -> Alert | tuple[float, dict[str, float]] | None:
        """The alert or the row (Unix time, values) of a line.

        None for headers, notes and thinned samples. Raises ValueError, KeyError or TypeError for
        a line that is not of a device series.
        """
        if "alert" in line:
            return build(Alert, line["alert"])
        if "source" in line:
            self._source = str(line["source"])
            for plain in line["devices"]:
                self._add(plain)
        elif "device" in line:
            self._add(line["device"])
        elif "devices" in line and self._is_due(float(line["time"])):
            samples = [build(DeviceSample, plain) for plain in line["devices"]]
            values = self._values([s for s in samples if s.id in self._devices])
            return (float(line["time"]), values) if values else None
        return None

    def _add(self, plain: object) -> None:
        device = build(SampledDevice, plain)
        self._devices[device.id] = device

    def _is_due(self, time: float) -> bool:
        # A sampler at the same rate jitters: a tenth early is not thinned.
        if self._last_time is not None and time - self._last_time < 0.9 * self._interval_s:
            return False
        self._last_time = time
        return True

    def _values(self, samples: list[DeviceSample]) -> dict[str, float]:
        found: dict[str, float | None] = {}
        on_gpu = self._source == "nvml"
        for sample in samples:
            index = f"{self._label}{self._devices[sample.id].index}"
            if not on_gpu:
                read = {name: getattr(sample, of) for of, name in _PROCESS_METRICS.items()}
                found |= {f"process/{index}/{name}": value for name, value in read.items()}
                continue
            read = {name: getattr(sample, name) for name in READINGS}
            reasons = read.pop("throttle_reasons")
            read["throttled"] = None if reasons is None else float(bool(reasons))
            found |= {f"gpu/{index}/{name}": value for name, value in read.items()}
            found[f"gpu_{index}_memory"] = sample.memory_used_mib
        known = {name: value for name, value in found.items() if value is not None}
        return known | (self._totals(samples) if on_gpu else {})

    def _totals(self, samples: list[DeviceSample]) -> dict[str, float]:
        """Over the host's GPUs, if all were read; under the earlier GPU monitor's names too."""
        if len(samples) < len(self._devices):
            return {}
        suffix = f"_{self._label.rstrip('-')}" if self._label else ""
        totals: dict[str, float] = {}
        for metric, (kind, seed_name) in _AGGREGATES.items():
            known = [v for s in samples if (v := getattr(s, metric)) is not None]
            if not known or len(known) < len(samples):
                continue
            total = sum(known)
            value = total if kind == "total" else total / len(known)
            totals[f"gpus{suffix}/{kind}_{metric}"] = value
            if seed_name is not None:
                totals[f"{seed_name}{suffix}"] = value
            if len(known) > 1 and total > 0:
                name = metric.rpartition("_")[0]
                totals[f"gpus{suffix}/{name}_cv_percent"] = cv_percent(known)
        return totals


_MIN_WINDOW_NS: Final = 500_000_000


class WindowRow(NamedTuple):
    """Figures of all ranks in one window of steps."""

    step: int
    """The last step of the window."""
    start_ns: int
    """``perf_counter_ns`` of rank 0 at the start of that step."""
    values: dict[str, float]


@dataclass
class StepWindows:
    """Cuts the steps of all ranks at the same places.

    A window ends at the first multiple of ``every_n_steps`` that is half a second or more after
    its start, by rank 0's own clock: the cuts depend on what was recorded alone, so that
    mirroring the same steps again gives the same rows. Warm-up steps are left out. A long step
    stays in: which step is one is known when the run has ended, and the report says it.
    """

    every_n_steps: int
    world_size: int
    on_gpus: bool = False
    """Whether there are names ``gpu_...``."""
    are_all: bool = True
    """Whether these are all ranks: else nobody measured what all of them do."""
    _rows: dict[int, npt.NDArray[np.void]] = field(default_factory=dict)
    _samples: dict[int, int] = field(default_factory=dict)
    _total_ms: dict[int, float] = field(default_factory=dict)

    def add(self, rank: int, rows: npt.NDArray[np.void]) -> None:
        """More steps of ``rank``, in order; shape ``[steps]`` of ``STEP_DTYPE``."""
        timed = rows[(rows["flags"] & WARMUP) == 0]
        self._rows[rank] = np.concatenate([self._rows.get(rank, _NO_ROWS), timed])
        step_ms = timed[f"{_timeline(timed)}_step_ms"].sum(dtype=np.float64)
        self._samples[rank] = self._samples.get(rank, 0) + int(timed["samples"].sum())
        self._total_ms[rank] = self._total_ms.get(rank, 0.0) + float(step_ms)

    def global_samples_per_s(self) -> float | None:
        """Samples of all ranks over the slowest rank's time, all timed steps; None if unknown."""
        slowest_ms = max(self._total_ms.values(), default=0.0)
        if len(self._total_ms) < self.world_size or not slowest_ms > 0 or not self.are_all:
            return None
        return sum(self._samples.values()) / slowest_ms * 1000

    def cut(self, *, final: bool) -> Iterator[WindowRow]:
        """Windows every rank has completed; with ``final``, what is left is one more."""
        while (end := self._window_end(final)) is not None:
            taken = {}
            for rank, rows in self._rows.items():
                inside = rows["step"] <= end
                taken[rank] = rows[inside]
                self._rows[rank] = rows[~inside]
            yield self._summarise(end, taken)

    def _window_end(self, final: bool) -> int | None:
        rows = self._rows.get(0, _NO_ROWS)
        if len(rows) == 0 or (len(self._rows) < self.world_size and not final):
            return None
        late_enough = rows["start_ns"] - rows["start_ns"][0] >= _MIN_WINDOW_NS
        ends = rows["step"][late_enough & (rows["step"] % self.every_n_steps == 0)]
        if len(ends) == 0:
            return int(rows["step"][-1]) if final else None
        end = int(ends[0])
        reached = all(len(r) and r["step"][-1] >= end for r in self._rows.values())
        return end if reached or final else None

    def _summarise(self, end: int, ranks: dict[int, npt.NDArray[np.void]]) -> WindowRow:
        lead = ranks[0]
        # A rank cut off earlier than the others has no say in this window.
        whole = {rank: rows for rank, rows in ranks.items() if len(rows) == len(lead)}
        line = _timeline(np.concatenate(list(whole.values())))
        values: dict[str, float] = {}
        step_ms = [float(np.mean(r[f"{line}_step_ms"], dtype=np.float64)) for r in whole.values()]
        slowest_ms = max(step_ms)
        if np.isfinite(slowest_ms) and slowest_ms > 0:
            values["step_time_ms"] = slowest_ms
            counted = all(r["samples"].all() for r in whole.values())
            if self.are_all and len(whole) == len(ranks) and counted:
                samples = sum(int(r["samples"].sum()) for r in whole.values())
                values["global_samples_per_s"] = samples / (slowest_ms * len(lead)) * 1000
        for phase in PHASES:
            times = np.concatenate([r[f"{line}_{phase}_ms"] for r in whole.values()])
            if not np.isnan(times).all():
                values[f"phases/{phase}_ms"] = float(np.nanmean(times.astype(np.float64)))
        arrival_ms = {r: float(np.mean(rows[f"{line}_arrival_ms"])) for r, rows in whole.items()}
        arrivals = list(arrival_ms.values())
        if len(arrivals) > 1 and np.isfinite(arrivals).all() and sum(arrivals) > 0:
            cv = values["balance/arrival_cv_percent"] = cv_percent(arrivals)
            if self.on_gpus:
                # The name that dashboards made for the earlier GPU monitor look for; arrival,
                # because memory cannot show a straggler.
                values["gpu_load_balance_cv"] = cv
            values |= {f"balance/rank_{rank}_arrival_ms": ms for rank, ms in arrival_ms.items()}
        return WindowRow(end, int(lead["start_ns"][-1]), values)


_NO_ROWS: Final = np.empty(0, STEP_DTYPE)


def _timeline(rows: npt.NDArray[np.void]) -> str:
    """``device`` where every step was timed there, else ``host``: the two are never mixed."""
    return "host" if np.isnan(rows["device_step_ms"]).any() else "device"

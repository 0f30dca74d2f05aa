"""Device samples and steps as rows for the trackers: named by device, and one a window of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scalewise.records import (
    PHASES,
    STEP_DTYPE,
    WARMUP,
    Alert,
    DeviceSample,
    SampledDevice,
    build,
    cv_percent,
)

_METRICS: Final = tuple(
    f.name for f in fields(DeviceSample) if f.name not in ("id", "throttle_reasons", "processes")
)

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
        on_gpu = self._source == "nvml"
        kind = "gpu" if on_gpu else "process"
        values: dict[str, float] = {}
        for sample in samples:
            index = f"{self._label}{self._devices[sample.id].index}"
            for metric in _METRICS if on_gpu else _PROCESS_METRICS:
                reading = getattr(sample, metric)
                if reading is not None:
                    name = metric if on_gpu else _PROCESS_METRICS[metric]
                    values[f"{kind}/{index}/{name}"] = reading
            if on_gpu and sample.throttle_reasons is not None:
                values[f"gpu/{index}/throttled"] = float(bool(sample.throttle_reasons))
            if on_gpu and sample.memory_used_mib is not None:
                values[f"gpu_{index}_memory"] = sample.memory_used_mib
        return {**values, **(self._totals(samples) if on_gpu else {})}

    def _totals(self, samples: list[DeviceSample]) -> dict[str, float]:
        """Over the host's GPUs; absent unless every one of them was read.

        Under the earlier GPU monitor's names too.
        """
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


@dataclass(frozen=True)
class WindowRow:
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
        if len(self._total_ms) < self.world_size or not slowest_ms > 0:
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
            yield _summarise(end, taken, self.on_gpus)

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


_NO_ROWS: Final = np.empty(0, STEP_DTYPE)


def _timeline(rows: npt.NDArray[np.void]) -> str:
    """``device`` where every step was timed there, else ``host``: the two are never mixed."""
    return "host" if np.isnan(rows["device_step_ms"]).any() else "device"


def _summarise(end: int, ranks: dict[int, npt.NDArray[np.void]], on_gpus: bool) -> WindowRow:
    lead = ranks[0]
    # A rank cut off earlier than the others has no say in this window.
    whole = {rank: rows for rank, rows in ranks.items() if len(rows) == len(lead)}
    line = _timeline(np.concatenate(list(whole.values())))
    values: dict[str, float] = {}
    step_ms = [float(np.mean(r[f"{line}_step_ms"], dtype=np.float64)) for r in whole.values()]
    slowest_ms = max(step_ms)
    if np.isfinite(slowest_ms) and slowest_ms > 0:
        values["step_time_ms"] = slowest_ms
        if len(whole) == len(ranks):
            samples = sum(int(r["samples"].sum()) for r in whole.values())
            values["global_samples_per_s"] = samples / (slowest_ms * len(lead)) * 1000
    for phase in PHASES:
        times = np.concatenate([r[f"{line}_{phase}_ms"] for r in whole.values()])
        if not np.isnan(times).all():
            values[f"phases/{phase}_ms"] = float(np.nanmean(times.astype(np.float64)))
    arrival_ms = {r: float(np.mean(rows[f"{line}_arrival_ms"])) for r, rows in whole.items()}
    values.update(_balance(arrival_ms, on_gpus))
    return WindowRow(end, int(lead["start_ns"][-1]), values)


def _balance(arrival_ms: dict[int, float], on_gpus: bool) -> dict[str, float]:
    """Time to the last gradient of each rank, and its CV across ranks in percent."""
    times = list(arrival_ms.values())
    if len(times) < 2 or not np.isfinite(times).all() or sum(times) <= 0:
        return {}
    cv = cv_percent(times)
    by_rank = {f"balance/rank_{rank}_arrival_ms": ms for rank, ms in arrival_ms.items()}
    return {
        "balance/arrival_cv_percent": cv,
        # The name that dashboards made for the earlier GPU monitor look for; arrival, because
        # memory cannot show a straggler.
        **({"gpu_load_balance_cv": cv} if on_gpus else {}),
        **by_rank,
    }

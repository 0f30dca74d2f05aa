"""Device samples as rows for the trackers, named by device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from statistics import fmean, pstdev
from typing import Any, Final

from scalewise.records import DeviceSample, RecordError, SampledDevice
from scalewise.validation import DataError, build

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

    def rows(self, line: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, float]]]:
        """The row (Unix time, values) of a line: none for headers, notes and thinned samples.

        Raises RecordError for a line that is not of a device series.
        """
        try:
            if "source" in line:
                self._source = str(line["source"])
                for plain in line["devices"]:
                    self._add(plain)
            elif "device" in line:
                self._add(line["device"])
            elif "devices" in line and self._is_due(float(line["time"])):
                samples = [build(DeviceSample, plain) for plain in line["devices"]]
                values = self._values([s for s in samples if s.id in self._devices])
                if values:
                    if line.get("cost_ms") is not None:
                        values["sampler/cost_ms"] = float(line["cost_ms"])
                    yield float(line["time"]), values
        except (DataError, KeyError, TypeError) as error:
            raise RecordError(f"not a line of a device series: {error}") from error

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

        Under the earlier GPU monitor's names too. CV = population standard deviation / mean: the
        GPUs are all there are, not a sample.
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
                totals[f"gpus{suffix}/{name}_cv_percent"] = 100 * pstdev(known) / fmean(known)
        return totals

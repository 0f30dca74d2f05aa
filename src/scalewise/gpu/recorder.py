"""Writes a cell's slice of what was sampled; whatever goes wrong is kept in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from scalewise.gpu.alerts import DeviceAlerts
from scalewise.gpu.events import DeviceEvent
from scalewise.gpu.reader import Reading
from scalewise.host_identity import host_id
from scalewise.records import DeviceSample, DeviceSeriesWriter, SampledDevice


class SeriesRecorder:
    """One cell's device series. Never raises: a full disk must not end a training."""

    def __init__(self, path: Path, interval_s: float, problems: list[str]) -> None:
        """``problems`` is shared with the owner, who may read it at any time."""
        self._path = path
        self._interval_s = interval_s
        self._problems = problems
        self._writer: DeviceSeriesWriter | None = None
        self._said: set[str] = set()
        self._alerts = DeviceAlerts()
        self._devices: dict[str, SampledDevice] = {}

    def begin(
        self,
        source: Literal["nvml", "process"],
        devices: Sequence[SampledDevice],
        unavailable: Mapping[str, str],
    ) -> None:
        """Write the header."""
        self._said.update(unavailable)
        # Conditions are those of GPUs: a process has neither clocks nor memory of its own.
        self._devices = {d.id: d for d in devices} if source == "nvml" else {}
        try:
            self._writer = DeviceSeriesWriter(
                self._path, host_id(), source, self._interval_s, tuple(devices), unavailable
            )
        except OSError as error:
            self._give_up(error)

    def add_device(self, device: SampledDevice) -> None:
        if self._writer is not None:
            try:
                self._writer.add_device(device)
            except OSError as error:
                self._give_up(error)

    def accept(self, reading: Reading) -> None:
        for uuid, events in reading.events.items():
            for event in events:
                self._accept_event(reading.time, uuid, event)
        if reading.samples:
            self.append(reading.time, reading.samples, reading.cost_ms)

    def _accept_event(self, when: float, uuid: str, event: DeviceEvent) -> None:
        self.note(event.text)
        if uuid in self._devices and self._writer is not None:
            try:
                for alert in self._alerts.happened(when, self._devices[uuid], event):
                    self._writer.alert(alert)
            except OSError as error:
                self._give_up(error)

    def append(self, when: float, samples: Mapping[str, DeviceSample], cost_ms: float) -> None:
        if self._writer is not None:
            try:
                self._writer.append(when, samples, cost_ms)
                for uuid, sample in samples.items():
                    if uuid in self._devices:
                        for alert in self._alerts.check(when, self._devices[uuid], sample):
                            self._writer.alert(alert)
            except OSError as error:
                self._give_up(error)

    def note(self, problem: str) -> None:
        """Record what happened, in words; the same words once only, until they change."""
        if problem in self._said:
            return
        self._said.add(problem)
        self._problems.append(problem)
        if self._writer is not None:
            try:
                self._writer.note(problem)
            except OSError as error:
                self._give_up(error)

    def unavailable(self, reasons: Mapping[str, str]) -> None:
        """Record metrics that turned out not to be there."""
        for metric, reason in reasons.items():
            if metric not in self._said and self._writer is not None:
                self._said.add(metric)
                try:
                    self._writer.unavailable(metric, reason)
                except OSError as error:
                    self._give_up(error)

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.close()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        self._problems.append(f"device samples are no longer recorded: {error}")

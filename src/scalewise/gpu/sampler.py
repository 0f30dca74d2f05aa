"""The thread that samples the devices of a cell while it runs.

It is a thread of the cell's supervisor (on a cluster one on each node), under ``Monitor`` of local
rank 0. Cells lease their GPUs, so that no GPU is read for two of them. On a host without GPUs the
ranks' processes are sampled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scalewise.config import in_one_line
from scalewise.gpu.nvml import open_nvml
from scalewise.gpu.readers import GpuReader, ProcessReader, Reading
from scalewise.gpu.xid import DeviceAlerts
from scalewise.host import host_id, place_id, say
from scalewise.records import Alert, CellFolder, DeviceSeriesWriter, SampledDevice

if TYPE_CHECKING:
    from scalewise.gpu.export import StatsLog

_STOP_TIMEOUT_S = 10.0


class DeviceSampler:
    """Records a cell's devices to ``gpu/<host>.jsonl`` until :meth:`close`."""

    def __init__(
        self, folder: CellFolder, gpus: Mapping[str, int], pids: Callable[[], Mapping[int, int]],
        interval_s: float, stats: Path | None = None,
    ) -> None:  # fmt: skip
        """``gpus`` maps UUIDs to the rank that uses each; empty on a CPU host.

        ``pids`` tells each living rank's process id. Without GPUs it is asked at each sample,
        because ranks start late. ``stats`` and its ``_multi_gpu`` get the samples of GPUs in the
        earlier monitor's formats too.
        """
        self._gpus = dict(gpus)
        self._pids = pids
        self._interval_s = interval_s
        self._recorder = SeriesRecorder(folder.device_series_path(place_id()), interval_s, stats)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scalewise-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take a last sample of every group and close the record. Returns within 10 s."""
        self._stop.set()
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            self._recorder.note_hang(f"no end within {_STOP_TIMEOUT_S:g} s: a driver call hangs")

    def _run(self) -> None:
        try:
            with contextlib.closing(self._open()) as reader:
                self._sample(reader)
        except Exception as error:  # the border to the training, which must not end with it
            self._recorder.note(f"sampling ended early: {in_one_line(error, with_class=True)}")
        finally:
            self._recorder.close()

    def _open(self) -> GpuReader | ProcessReader:
        """What reads the devices of the record, which begins."""
        reader, why = None, ""
        if self._gpus:
            try:
                reader = GpuReader(open_nvml(), self._interval_s, self._gpus)
            except Exception as error:  # of NVML's, whichever: its record would not have begun
                why = f"{in_one_line(error)}; the ranks' processes are sampled instead"
        if reader is None:
            self._recorder.begin("process", ())
            if why:
                self._recorder.note(why)
            return ProcessReader(self._pids)
        devices = [d.as_sampled(self._gpus[uuid]) for uuid, d in reader.devices.items()]
        self._recorder.begin("nvml", devices)
        for uuid in self._gpus.keys() - reader.devices.keys():
            self._recorder.note(f"GPU {uuid} is not there and is not sampled")
        return reader

    def _sample(self, reader: GpuReader | ProcessReader) -> None:
        self._recorder.accept(reader.read(all_groups=True))
        ticks = Ticks(self._interval_s)
        while not self._stop.wait(ticks.wait_s()):
            self._recorder.accept(reader.read())
        self._recorder.accept(reader.read(all_groups=True))
        if ticks.missed:
            self._recorder.note(
                f"{ticks.missed} of {ticks.missed + ticks.kept} samples were missed: "
                f"the host was too busy or the driver too slow"
            )


class SeriesRecorder:
    """One cell's device series. Never raises: a full disk must not end a training."""

    def __init__(self, path: Path, interval_s: float, stats: Path | None = None) -> None:
        self._path = path
        self._stats_path = stats
        self._stats: StatsLog | None = None
        self._interval_s = interval_s
        self._writer: DeviceSeriesWriter | None = None
        self._has_begun = False
        self._said: set[str] = set()
        self._alerts = DeviceAlerts()
        self._devices: dict[str, SampledDevice] = {}

    def begin(self, source: Literal["nvml", "process"], devices: Sequence[SampledDevice]) -> None:
        self._has_begun = True
        # Conditions are those of GPUs: a process has neither clocks nor memory of its own.
        self._devices = {d.id: d for d in devices} if source == "nvml" else {}
        try:
            header = host_id(), source, self._interval_s, tuple(devices)
            self._writer = DeviceSeriesWriter(self._path, *header)
            if self._stats_path is not None and source == "nvml":
                from scalewise.gpu.export import StatsLog

                self._stats = StatsLog(self._stats_path, anew=True)  # an earlier try's goes
        except OSError as error:
            self._give_up(error)

    def accept(self, reading: Reading) -> None:
        """Record a reading and its events, with the alerts that they give rise to."""
        for device in reading.new:
            self._write(DeviceSeriesWriter.tell, "device", device)
        for uuid, events in reading.events.items():
            for event in events:
                self.note(event.text)
                self._alert(self._alerts.happened(reading.time, self._devices[uuid], event))
        if reading.samples:
            self._write(DeviceSeriesWriter.append, reading.time, reading.samples, reading.cost_ms)
            self._write_stats(reading)
        for uuid, sample in reading.samples.items():
            if uuid in self._devices:
                self._alert(self._alerts.check(reading.time, self._devices[uuid], sample))
        for fault in reading.faults:
            self.note(fault)
        for metric in [metric for metric in reading.unavailable if metric not in self._said]:
            self._said.add(metric)
            found = {metric: reading.unavailable[metric]}
            self._write(DeviceSeriesWriter.tell, "unavailable", found)

    def note(self, problem: str) -> None:
        """Record a problem in words; the same words once."""
        if problem not in self._said:
            self._said.add(problem)
            self._write(DeviceSeriesWriter.tell, "problem", problem)

    def note_hang(self, problem: str) -> None:
        """From another thread, while the sampler's is within the driver: the record ends here."""
        if not self._has_begun:
            self.begin("process", ())
        self.note(problem)
        self.close()

    def close(self) -> None:
        self._write(DeviceSeriesWriter.close)
        self._writer = None

    def _alert(self, alerts: Iterable[Alert]) -> None:
        for alert in alerts:
            self._write(DeviceSeriesWriter.tell, "alert", alert)

    def _write(self, write: Callable[..., None], *arguments: object) -> None:
        """End the record at the first write that fails."""
        if self._writer is not None:
            try:
                write(self._writer, *arguments)
            except OSError as error:
                self._give_up(error)

    def _write_stats(self, reading: Reading) -> None:
        """The same in the earlier monitor's formats: whole files, until one cannot be written."""
        if self._stats is not None:
            try:
                self._stats.append(reading.time, tuple(self._devices.values()), reading.samples)
            except OSError as error:
                self._stats = None
                self.note(f"gpu_stats are no longer written: {error}")

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        say(f"scalewise: device samples are no longer recorded: {error}")


class Ticks:
    """A steady beat: a missed one is counted and left out, so that lateness never adds up."""

    def __init__(self, interval_s: float) -> None:
        self.kept = self.missed = 0
        self._interval_s = interval_s
        self._next = time.monotonic() + interval_s

    def wait_s(self) -> float:
        """Seconds until the next beat, which is taken to be kept."""
        wait = self._next - time.monotonic()
        late = int(max(0.0, -wait) / self._interval_s)
        self.missed += late
        self.kept += 1
        self._next += (late + 1) * self._interval_s
        return max(0.0, wait)

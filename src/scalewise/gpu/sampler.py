"""Samples the devices of a cell while it runs, in a thread of a light process.

On a GPU host all cells of a user share one sampler, because NVML serialises on driver locks: the
participant that holds the host's lock reads every GPU that any of them wants and spools it; the
others follow the spool, each keeping its own GPUs. When the holder goes, however it goes, the
kernel frees the lock and another participant takes over. On a host without GPUs each participant
samples its own ranks' processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from scalewise.errors import in_one_line
from scalewise.gpu.election import Wish, runtime_folder
from scalewise.gpu.nvml import NvmlUnavailable, open_nvml
from scalewise.gpu.peers import Peers, patience_s
from scalewise.gpu.process import ProcessReader, process_device
from scalewise.gpu.reader import GpuReader
from scalewise.gpu.recorder import SeriesRecorder
from scalewise.gpu.spool import Reading, SpoolReader, SpoolWriter
from scalewise.gpu.ticks import Ticks
from scalewise.host_identity import place_id
from scalewise.records import CellFolder, SampledDevice

MIN_INTERVAL_S = 0.1
_STOP_TIMEOUT_S = 10.0


class DeviceSampler:
    """Records a cell's devices to ``gpu/<host>.jsonl`` from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        folder: CellFolder,
        gpus: Mapping[str, int | None],
        pids: Callable[[], Mapping[int, int]],
        interval_s: float = 1.0,
    ) -> None:
        """``gpus`` maps UUIDs to the rank that uses each; empty on a CPU host.

        ``pids`` maps ranks to process ids and is asked again at each sample, because ranks start
        late; it is used where there are no GPUs. ``interval_s`` is at least 0.1.
        """
        if interval_s < MIN_INTERVAL_S:
            raise ValueError(
                f"interval_s: found {interval_s}; allowed: {MIN_INTERVAL_S} or more "
                f"(10 samples a second)"
            )
        self.problems: list[str] = []
        """What went wrong so far, in words; the records hold the same."""
        self._gpus = dict(gpus)
        self._pids = pids
        self._interval_s = interval_s
        self._recorder = SeriesRecorder(
            folder.device_series_path(place_id()), interval_s, self.problems
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scalewise-sampler", daemon=True)

    def __enter__(self) -> DeviceSampler:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample of every lane and close the record. Returns within 10 s."""
        self._stop.set()
        if self._thread.ident is None:
            return
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            self.problems.append(
                f"the sampler did not stop within {_STOP_TIMEOUT_S:g} s: a driver call hangs"
            )

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # the border to the training, which must not end with it
            self._recorder.note(f"sampling ended early: {in_one_line(error, with_class=True)}")
        finally:
            self._recorder.close()

    def _sample(self) -> None:
        if self._gpus:
            try:
                reader = GpuReader(open_nvml())
            except NvmlUnavailable as error:
                self._recorder.begin("process", (), {})
                self._recorder.note(f"{error}; the ranks' processes are sampled instead")
            else:
                try:
                    self._sample_gpus(reader)
                finally:
                    reader.close()
                return
        else:
            self._recorder.begin("process", (), {})
        self._sample_processes()

    # Processes

    def _sample_processes(self) -> None:
        reader, ticks = ProcessReader(), Ticks(self._interval_s)
        known: set[int] = set()
        while True:
            last = self._stop.is_set()
            begun = time.perf_counter()
            when, pids = time.time(), dict(self._pids())
            for rank in sorted(pids.keys() - known):
                self._recorder.add_device(process_device(rank))
                known.add(rank)
            samples = reader.read(pids)
            if samples:
                self._recorder.append(when, samples, 1e3 * (time.perf_counter() - begun))
            if last:
                break
            self._stop.wait(ticks.wait_s())
        self._tell_missed(ticks)

    # GPUs

    def _sample_gpus(self, reader: GpuReader) -> None:
        self._begin_gpus(reader)
        peers: Peers | None
        try:
            peers = Peers(runtime_folder(), Wish(self._interval_s, tuple(self._gpus)))
        except OSError as error:
            self._recorder.note(f"this cell samples for itself alone: {error}")
            peers = None
        try:
            while not self._stop.is_set():
                if peers is None or peers.lock.try_acquire():
                    self._lead(reader, peers)
                else:
                    self._follow(reader, peers)
        finally:
            if peers is not None:
                peers.leave()
        self._read_own(reader, all_lanes=True)

    def _begin_gpus(self, reader: GpuReader) -> None:
        devices = []
        for uuid, rank in self._gpus.items():
            gpu = reader.devices.get(uuid)
            if gpu is None:
                continue
            devices.append(
                SampledDevice(
                    uuid, gpu.index, gpu.name, rank, gpu.memory_total_mib, gpu.power_limit_w
                )
            )
        reading = reader.read(self._gpus, self._interval_s, all_lanes=True)
        self._recorder.begin("nvml", devices, reader.nvml.unavailable)
        for uuid in self._gpus.keys() - reader.devices.keys():
            self._recorder.note(f"GPU {uuid} is not there and is not sampled")
        self._recorder.accept(reading)
        self._tell_faults(reader)

    def _lead(self, reader: GpuReader, peers: Peers | None) -> None:
        """Sample for everyone until the end."""
        spool = None if peers is None else SpoolWriter(peers.folder)
        wish = Wish(self._interval_s, tuple(self._gpus))
        ticks = Ticks(wish.interval_s)
        try:
            while not self._stop.wait(ticks.wait_s()):
                if peers is not None:
                    wish = peers.merged(wish)
                    ticks.set_interval(wish.interval_s)
                reading = reader.read(wish.uuids, wish.interval_s)
                if spool is not None:
                    try:
                        spool.write(reading)
                    except OSError as error:
                        self._recorder.note(f"other cells cannot be told: {error}")
                self._recorder.accept(_own(reading, self._gpus))
                self._tell_faults(reader)
        finally:
            if spool is not None:
                spool.close()
        self._tell_missed(ticks)

    def _follow(self, reader: GpuReader, peers: Peers) -> None:
        """Keep this cell's slice of what the elected one samples, until the lock is free."""
        spool = SpoolReader(peers.folder, since=time.time())
        own = frozenset(self._gpus)
        patience = patience_s(self._interval_s)
        heard_at = time.monotonic()
        while not self._stop.wait(min(self._interval_s / 2, 0.25)):
            for reading in spool.read(own):
                self._recorder.accept(reading)
                heard_at = time.monotonic()
            if peers.lock.try_acquire():
                return
            if time.monotonic() - heard_at > patience:
                # The elected one has not seen our wish yet, hangs, or does not see our GPUs.
                self._read_own(reader)
                heard_at = time.monotonic() - patience + self._interval_s
        for reading in spool.read(own):
            self._recorder.accept(reading)

    def _read_own(self, reader: GpuReader, *, all_lanes: bool = False) -> None:
        self._recorder.accept(reader.read(self._gpus, self._interval_s, all_lanes=all_lanes))
        self._tell_faults(reader)

    def _tell_faults(self, reader: GpuReader) -> None:
        self._recorder.unavailable(reader.nvml.unavailable)
        for where, reason in reader.nvml.faults.items():
            self._recorder.note(f"{where}: {reason}")
        reader.nvml.faults.clear()

    def _tell_missed(self, ticks: Ticks) -> None:
        if ticks.missed:
            self._recorder.note(
                f"{ticks.missed} of {ticks.missed + ticks.kept} samples were missed: "
                f"the host was too busy or the driver too slow"
            )


def _own(reading: Reading, uuids: Mapping[str, object]) -> Reading:
    return replace(
        reading,
        samples={u: s for u, s in reading.samples.items() if u in uuids},
        events={u: e for u, e in reading.events.items() if u in uuids},
        lost=tuple(u for u in reading.lost if u in uuids),
    )

"""``scalewise top``: the GPUs of this host, live in the terminal."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.live import Live

from scalewise.config import ConfigError
from scalewise.gpu.export import StatsLog
from scalewise.gpu.nvml import open_nvml
from scalewise.gpu.readers import GpuReader
from scalewise.gpu.sampler import Ticks
from scalewise.gpu.top_view import Frame, Owner, balance_of, identify, render
from scalewise.host import open_console
from scalewise.records import DeviceProcess, DeviceSample, to_plain


def show_gpus(
    interval_s: float, *, once: bool, as_json: bool, log: Path | None, gpu_index: int | None
) -> None:
    """Show all GPUs of this host until told to end, or ``once``.

    Where the output is no terminal, a line of JSON a reading; nothing where there is a log.

    Args:
        as_json: with ``once``, print the reading as JSON.
        log: the file that gets one GPU's readings; beside it lies one for all of them.
        gpu_index: the GPU in ``log``; the first if None.

    Raises :class:`NvmlUnavailable`, :class:`ConfigError` for a log that cannot be opened, and
    OSError where it cannot be written later.
    """
    with contextlib.ExitStack() as opened:
        source = opened.enter_context(contextlib.closing(LiveFrames(interval_s)))
        stats = None
        if log is not None:
            try:
                stats = StatsLog(log, gpu_index)
            except (OSError, ValueError) as error:
                raise ConfigError(f"--log: {error}") from error
        title = source.title
        if once:
            frames = iter([source.once()])
        else:
            # Both signals leave the blocks, which put the terminal and the log in order.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            opened.enter_context(contextlib.suppress(KeyboardInterrupt))
            frames, title = _frames(source, interval_s), f"{title}, every {interval_s:g} s"
        console, live = open_console(), None
        if sys.stdout.isatty() and not once:
            live = opened.enter_context(Live(console=console, auto_refresh=False))
        for frame in frames:
            if stats is not None:
                stats.append(frame.time, frame.devices, frame.samples)
            if live is not None:
                live.update(render(frame, title, console.width), refresh=True)
            elif once and not as_json:
                console.print(render(frame, title, console.width))
            elif once or stats is None:
                plain = frame_json(frame, source.title)
                sys.stdout.write(json.dumps(plain, indent=2 if once else None) + "\n")
                sys.stdout.flush()


def frame_json(frame: Frame, title: str) -> dict[str, Any]:
    """A frame as plain data: each device's constants, reading, and processes; CVs."""
    devices = []
    for device in frame.devices:
        sample = frame.samples.get(device.id)
        devices.append(
            {
                **to_plain(device),
                "answers": sample is not None,
                **({} if sample is None else to_plain(sample)),
                "processes": [to_plain(o) for o in frame.owners.get(device.id, ())],
            }
        )
    balance = {
        metric: {"cv_percent": cv}
        for metric, cv in balance_of(list(frame.samples.values())).items()
    }
    return {"time": frame.time, "source": title, "devices": devices, "balance": balance}


def _frames(source: LiveFrames, interval_s: float) -> Iterator[Frame]:
    """A frame every ``interval_s``."""
    ticks = Ticks(interval_s)
    while True:
        yield source.next()
        time.sleep(ticks.wait_s())


class LiveFrames:
    """All GPUs of this host, now."""

    def __init__(self, interval_s: float) -> None:
        """Raises :class:`NvmlUnavailable` where there is no GPU."""
        self._reader = GpuReader(open_nvml())
        self._interval_s = interval_s
        self._devices = tuple(d.as_sampled() for d in self._reader.devices.values())
        self.title = f"driver {self._reader.nvml.driver_version()}"
        self._owners: dict[int, Owner] = {}
        self._samples: dict[str, DeviceSample] = {}
        self._notes: deque[str] = deque(maxlen=3)

    def once(self) -> Frame:
        """A frame with every group; GPM compares two readings, so this takes 0.15 s."""
        self.next(all_groups=True)
        time.sleep(0.15)
        return self.next(all_groups=True)

    def next(self, *, all_groups: bool = False) -> Frame:
        """A frame; what is read less often than at each reading is that of the last one."""
        reader = self._reader
        reading = reader.read(reader.devices, self._interval_s, all_groups=all_groups)
        notes = [f"{where}: {reason}" for where, reason in reader.nvml.faults.items()]
        reader.nvml.faults.clear()
        notes += [event.text for event in itertools.chain(*reading.events.values())]
        stamp = datetime.fromtimestamp(reading.time).strftime("%H:%M:%S")
        self._notes.extend(f"{stamp} {note}" for note in notes)
        self._samples = {u: _filled(s, self._samples.get(u)) for u, s in reading.samples.items()}
        owners = {
            uuid: tuple(self._owner(process) for process in sample.processes or ())
            for uuid, sample in self._samples.items()
        }
        return Frame(reading.time, self._devices, self._samples, owners, tuple(self._notes))

    def close(self) -> None:
        self._reader.close()

    def _owner(self, process: DeviceProcess) -> Owner:
        if process.pid not in self._owners:
            self._owners[process.pid] = identify(process.pid)
        return replace(self._owners[process.pid], memory_mib=process.memory_mib)


def _filled(sample: DeviceSample, last: DeviceSample | None) -> DeviceSample:
    """``sample`` with the values of the last one where it has none."""
    if last is None:
        return sample
    missing = [f.name for f in fields(sample) if getattr(sample, f.name) is None]
    return replace(sample, **{name: getattr(last, name) for name in missing})

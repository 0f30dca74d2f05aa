"""``scalewise top``: the GPUs of this host, live in the terminal."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from scalewise.config import ConfigError
from scalewise.gpu.export import JsonArrayFile, multi_entry, multi_gpu_path, single_entry
from scalewise.gpu.metrics import GPM_METRICS
from scalewise.gpu.nvml import open_nvml
from scalewise.gpu.readers import GpuReader
from scalewise.gpu.sampler import Ticks
from scalewise.gpu.top_view import Frame, Owner, TopState, balance_of, identify, render
from scalewise.host import open_console
from scalewise.records import DeviceProcess, DeviceSample, to_plain


def show_gpus(
    interval_s: float, *, once: bool, as_json: bool, log: Path | None, gpu_index: int | None
) -> None:
    """Show all GPUs of this host until told to end, or ``once``.

    Args:
        as_json: with ``once``, print the reading as JSON.
        log: the file that gets one GPU's readings; beside it lies one for all of them.
        gpu_index: the GPU in ``log``; the first if None.

    Raises :class:`NvmlUnavailable`, :class:`ConfigError` for a log that cannot be opened, and
    OSError where it cannot be written later.
    """
    with contextlib.ExitStack() as opened:
        source = opened.enter_context(contextlib.closing(LiveFrames(interval_s)))
        try:
            stats = None if log is None else StatsLog(log, gpu_index)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--log: {error}") from error
        if stats is not None:
            opened.callback(stats.close)
        if once:
            _show_once(source, stats, as_json=as_json)
            return
        state = TopState(source.title, interval_s)
        interactive = sys.stdout.isatty() and sys.stdin.isatty()
        with _ended_by_signals() as ended:
            (_run_screen if interactive else _run_lines)(source, state, stats, ended)


def _show_once(source: LiveFrames, log: StatsLog | None, *, as_json: bool) -> None:
    frame = source.once()
    if log is not None:
        log.write(frame)
    if as_json:
        sys.stdout.write(json.dumps(frame_json(frame, source.title), indent=2) + "\n")
        return
    state = TopState(source.title, 0.0)
    state.add(frame)
    console = Console()
    console.width = console.width or shutil.get_terminal_size().columns  # COLUMNS=0 is no width
    console.print(render(state, console.width, 10_000))


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


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """The SIGTERM and SIGINT that came: loops end by them, and the terminal is put in order."""
    ended: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {n: signal.signal(n, lambda number, _: ended.append(number)) for n in numbers}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_lines(source: LiveFrames, state: TopState, log: StatsLog | None, ended: list[int]) -> None:
    """Not a terminal: one line a reading, and nothing but the log where there is one."""
    ticks = Ticks(state.interval_s)
    while not ended:
        frame = source.next()
        if log is not None:
            log.write(frame)
        else:
            sys.stdout.write(json.dumps(frame_json(frame, source.title)) + "\n")
            sys.stdout.flush()
        until = time.monotonic() + ticks.wait_s()
        # In short naps: a handler that only notes a signal does not cut a sleep short.
        while not ended and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))


def _run_screen(
    source: LiveFrames, state: TopState, log: StatsLog | None, ended: list[int]
) -> None:
    console = open_console()
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while not ended:
            if not state.paused and time.monotonic() >= due:
                frame = source.next()
                state.add(frame)
                if log is not None:
                    log.write(frame)
                due = max(due + state.interval_s, time.monotonic())
            live.update(render(state, console.width, console.height), refresh=True)
            wait = 3600.0 if state.paused else due - time.monotonic()
            key = keys.read(max(0.0, min(wait, 0.5)))
            if key == "q":
                return
            if key == "p":
                state.paused = not state.paused
                due = time.monotonic()
            if key == "s":
                state.next_sort()


class LiveFrames:
    """All GPUs of this host, now."""

    def __init__(self, interval_s: float) -> None:
        """Raises :class:`NvmlUnavailable` where there is no GPU."""
        self._reader = GpuReader(open_nvml())
        self._interval_s = interval_s
        self._devices = tuple(d.as_sampled() for d in self._reader.devices.values())
        self.title = f"driver {self._reader.nvml.driver_version()}"
        self._identified: dict[int, Owner] = {}
        self._owners: dict[str, tuple[Owner, ...]] = {}
        self._gpm: dict[str, dict[str, Any]] = {}

    def once(self) -> Frame:
        """A frame with every lane; GPM compares two readings, so this takes 0.15 s."""
        self.next(all_lanes=True)
        time.sleep(0.15)
        return self.next(all_lanes=True)

    def next(self, *, all_lanes: bool = False) -> Frame:
        reader = self._reader
        reading = reader.read(reader.devices, self._interval_s, all_lanes=all_lanes)
        notes = [f"{where}: {reason}" for where, reason in reader.nvml.faults.items()]
        reader.nvml.faults.clear()
        notes += [event.text for event in itertools.chain(*reading.events.values())]
        for uuid, sample in reading.samples.items():
            if sample.processes is not None:
                self._owners[uuid] = tuple(self._owner(p) for p in sample.processes)
        samples = {uuid: self._with_gpm(s) for uuid, s in reading.samples.items()}
        owners = {uuid: self._owners.get(uuid, ()) for uuid in samples}
        return Frame(reading.time, self._devices, samples, owners, tuple(notes))

    def close(self) -> None:
        self._reader.close()

    def _with_gpm(self, sample: DeviceSample) -> DeviceSample:
        """GPM is read once a second: between two readings the last one is shown."""
        if sample.sm_activity_percent is not None:
            self._gpm[sample.id] = {name: getattr(sample, name) for name in GPM_METRICS}
            return sample
        return replace(sample, **self._gpm.get(sample.id, {}))

    def _owner(self, process: DeviceProcess) -> Owner:
        known = self._identified.get(process.pid)
        if known is None:
            known = self._identified[process.pid] = identify(process.pid)
        return replace(known, memory_mib=process.memory_mib)


class StatsLog:
    """``--log FILE``: the earlier GPU monitor's two files, valid JSON at every moment."""

    def __init__(self, path: Path, gpu_index: int | None) -> None:
        self._gpu_index = gpu_index
        self._single = JsonArrayFile(path)
        self._multi = JsonArrayFile(multi_gpu_path(path))

    def write(self, frame: Frame) -> None:
        """Append a frame. Raises OSError."""
        chosen = next(
            (d for d in frame.devices if self._gpu_index in (None, d.index)),
            None,
        )
        if chosen is not None and chosen.id in frame.samples:
            self._single.append(single_entry(frame.time, chosen, frame.samples[chosen.id]))
        self._multi.append(multi_entry(frame.time, frame.devices, frame.samples))

    def close(self) -> None:
        self._single.close()
        self._multi.close()


class Keys:
    """Single key presses, without echo and without Enter."""

    def __enter__(self) -> Keys:
        self._descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(self, *exc: object) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def read(self, timeout_s: float) -> str | None:
        """A key pressed within ``timeout_s``; ``q`` when the terminal is gone."""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return None
        return os.read(self._descriptor, 1).decode(errors="replace").lower() or "q"

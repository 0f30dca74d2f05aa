"""``scalewise top``: the GPUs of this host, live in the terminal."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live

from scalewise.gpu.frames import Frame
from scalewise.gpu.keys import Keys
from scalewise.gpu.live import LiveFrames
from scalewise.gpu.nvml import NvmlUnavailable
from scalewise.gpu.sampler import MIN_INTERVAL_S
from scalewise.gpu.stats_log import StatsLog
from scalewise.gpu.ticks import Ticks
from scalewise.gpu.top_view import TopState, balance_of, render
from scalewise.terminal import open_console
from scalewise.validation import to_plain

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Run ``scalewise top`` with its arguments and return the exit status."""
    options = _parser().parse_args(argv)
    if options.json and not options.once:
        return _complain("--json goes with --once", EXIT_USAGE)
    try:
        source = LiveFrames(options.interval)
    except NvmlUnavailable as error:
        return _complain(str(error), EXIT_FAILED)
    try:
        log = None if options.log is None else StatsLog(options.log, options.gpu)
    except (OSError, ValueError) as error:
        source.close()
        return _complain(f"--log: {error}", EXIT_USAGE)
    try:
        return _show(source, log, options)
    except BrokenPipeError:
        raise  # whoever reads has seen enough
    except OSError as error:
        return _complain(str(error), EXIT_FAILED)
    finally:
        source.close()
        if log is not None:
            log.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scalewise top", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="S", help="seconds between readings"
    )
    parser.add_argument("--once", action="store_true", help="print one reading and end")
    parser.add_argument("--json", action="store_true", help="with --once: print it as JSON")
    parser.add_argument(
        "--log",
        "--stats-file",
        type=Path,
        metavar="FILE",
        help="also append one GPU to FILE and all to FILE_multi_gpu.json, as JSON arrays",
    )
    parser.add_argument(
        "--gpu", type=int, metavar="N", help="the GPU that FILE of --log holds (default: the first)"
    )
    return parser


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value >= MIN_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"found {text}; allowed: {MIN_INTERVAL_S} or more")
    return value


def _complain(message: str, status: int) -> int:
    sys.stderr.write(f"scalewise top: {message}\n")
    return status


def _show(source: LiveFrames, log: StatsLog | None, options: argparse.Namespace) -> int:
    if options.once:
        return _show_once(source, log, as_json=options.json)
    state = TopState(source.title, options.interval)
    interactive = sys.stdout.isatty() and sys.stdin.isatty()
    with _ended_by_signals() as ended:
        (_run_screen if interactive else _run_lines)(source, state, log, ended)
    return EXIT_OK


def _show_once(source: LiveFrames, log: StatsLog | None, *, as_json: bool) -> int:
    frame = source.once()
    if log is not None:
        log.write(frame)
    if as_json:
        sys.stdout.write(json.dumps(frame_json(frame, source.title), indent=2) + "\n")
        return EXIT_OK
    state = TopState(source.title, 0.0)
    state.add(frame)
    console = Console()
    console.width = console.width or shutil.get_terminal_size().columns  # COLUMNS=0 is no width
    console.print(render(state, console.width, 10_000))
    return EXIT_OK


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


# Two ways to run


class _Ended:
    """Set by SIGTERM and SIGINT, so that the terminal is put back in order."""

    def __init__(self) -> None:
        self.by_signal = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.by_signal = True


@contextmanager
def _ended_by_signals() -> Iterator[_Ended]:
    ended = _Ended()
    before = {n: signal.signal(n, ended) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_lines(source: LiveFrames, state: TopState, log: StatsLog | None, ended: _Ended) -> None:
    """Not a terminal: one line a reading, and nothing but the log where there is one."""
    ticks = Ticks(state.interval_s)
    while not ended.by_signal:
        frame = source.next()
        if log is not None:
            log.write(frame)
        else:
            sys.stdout.write(json.dumps(frame_json(frame, source.title)) + "\n")
            sys.stdout.flush()
        _sleep(ticks.wait_s(), ended)


def _sleep(seconds: float, ended: _Ended) -> None:
    until = time.monotonic() + seconds
    # In short naps: a handler that only sets a flag does not cut a sleep short.
    while not ended.by_signal and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))


def _run_screen(source: LiveFrames, state: TopState, log: StatsLog | None, ended: _Ended) -> None:
    console = open_console()
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while not ended.by_signal:
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

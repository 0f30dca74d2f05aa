"""What the sampler costs a training beside it; ``sampler_cost.py`` runs it.

One training and one sampler process, which samples at 10 Hz in every other window and sleeps in
between. Two neighbouring windows, in random order, are a pair; the ratio of their step times has a
95 % t interval over pairs, on logarithms. Both windows share the processes, their memory and their
clocks, so what differs between fresh runs cancels. Where steps are short, a second look is finer
still: steps within 10 ms of the beginning of a reading against the others of the same 100 ms, which
shows whatever a reading does while it lasts and shortly after.

``overhead.py`` switches the same sampler at the product's rate, beside all else that measures.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sampler_judgement import HZ, Window, judge_readings, judge_windows

ROOT = Path(__file__).resolve().parents[1]
_START_TIMEOUT_S = 120.0
_LAST_STEPS_S = 1.5
"""The ranks write their steps twice a second."""


# Windows


def measure_windows(
    overrides: Sequence[str],
    folder: Path,
    pairs: int,
    window_s: float,
    seed: int,
    env: Mapping[str, str],
) -> dict[str, Any]:
    """Train, sample in every other window, and compare; every pair is kept.

    ``env`` is the sampler's alone: where its GPUs are made up, the training must not see them.
    """
    command = [
        sys.executable, str(ROOT / "benchmarks" / "sampler_cost.py"), "--only", "windows",
        "--pairs", str(pairs), "--window-s", str(window_s), "--seed", str(seed),
    ]  # fmt: skip
    with _training(overrides, folder) as training:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the sampler failed:\n{done.stderr[-2000:]}")
        if training.poll() is not None:
            raise SystemExit("the training ended before the last window did")
        time.sleep(_LAST_STEPS_S)
    told = json.loads(done.stdout)
    windows = [Window(**plain) for plain in told.pop("windows")]
    readings_ns, steps = told.pop("readings_ns"), _timed_steps(folder)
    judged = {
        **judge_windows(steps, windows),
        "beside_readings": judge_readings(steps, readings_ns),
    }
    return {"overrides": list(overrides), "window_s": window_s, "seed": seed, **told, **judged}


@contextmanager
def _training(overrides: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of ``train.py`` without a sampler of its own, which trains until the block ends."""
    command = [
        sys.executable, str(ROOT / "train.py"), *overrides, "max_steps=10000000",
        "validation=never", "tracking=none", "monitor.devices=false", f"hydra.run.dir={folder}",
    ]  # fmt: skip
    log = folder.with_suffix(".log")
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, env=with_source(os.environ), stdout=out, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not any(len(rows) for rows in _timed_steps(folder)):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"train.py did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.5)
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _timed_steps(folder: Path) -> list[npt.NDArray[np.void]]:
    """Rows of each rank without warm-up; empty while there are none."""
    from scalewise.records import CellFolder, read_steps

    paths = sorted(folder.glob("**/steps/rank*.bin"))
    cells = [CellFolder(path.parent.parent) for path in paths]
    ranks = [int(path.stem.removeprefix("rank")) for path in paths]
    return [
        read_steps(cell.steps_path(rank), rank).timed().rows
        for cell, rank in zip(cells, ranks, strict=True)
        if cell.steps_path(rank).stat().st_size > 0
    ]


def sample_in_windows(pairs: int, window_s: float, seed: int) -> dict[str, Any]:
    """Do what a sampler does, in one window of each pair, and tell when they were."""
    import tempfile

    import psutil

    from scalewise.gpu import open_nvml
    from scalewise.gpu.readers import GpuReader
    from scalewise.gpu.sampler import SeriesRecorder
    from scalewise.records import SampledDevice

    order, windows, readings_ns, costs_ms, cpu_s = random.Random(seed), [], [], [], 0.0
    with tempfile.TemporaryDirectory(prefix="scalewise-cost-") as scratch:
        reader = GpuReader(open_nvml())
        recorder = SeriesRecorder(Path(scratch) / "gpu.jsonl", 1 / HZ, [])
        gpus = [
            SampledDevice(g.uuid, g.index, g.name, None, g.memory_total_mib, g.power_limit_w)
            for g in reader.devices.values()
        ]
        recorder.begin("nvml", gpus)
        reader.read(reader.devices, 1 / HZ, all_groups=True)
        rss = psutil.Process().memory_info().rss
        sampled_first = [True, False] * ((pairs + 1) // 2)
        order.shuffle(sampled_first)
        for pair, first in zip(range(pairs), sampled_first, strict=False):
            for sampled in (first, not first):
                begin, cpu = time.perf_counter_ns(), time.process_time()
                for tick in range(round(HZ * window_s) if sampled else 0):
                    wait = begin / 1e9 + tick / HZ - time.perf_counter()
                    time.sleep(max(0.0, wait))
                    readings_ns.append(time.perf_counter_ns())
                    reading = reader.read(reader.devices, 1 / HZ)
                    recorder.accept(reading)
                    costs_ms.append(reading.cost_ms)
                time.sleep(max(0.0, begin / 1e9 + window_s - time.perf_counter()))
                cpu_s += (time.process_time() - cpu) if sampled else 0.0
                windows.append(Window(pair, sampled, begin, time.perf_counter_ns()))
        grown = psutil.Process().memory_info().rss - rss
        recorder.close()
        reader.close()
    return {
        "gpus": len(gpus), "windows": [asdict(w) for w in windows], "readings_ns": readings_ns,
        "reading_ms_p50": float(np.median(costs_ms)),
        "reading_ms_p99": float(np.percentile(costs_ms, 99)),
        "cpu_percent_per_gpu": 100 * cpu_s / (pairs * window_s) / len(gpus),
        "rss_growth_mib": grown / 2**20,
    }  # fmt: skip


def with_source(env: Mapping[str, str]) -> dict[str, str]:
    """The environment in which this checkout's scalewise is imported, and what stood there."""
    paths = [str(ROOT / "src"), env.get("PYTHONPATH", "")]
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

"""Does the sampler lose samples or grow? A cell is sampled on a fake host for minutes.

    python benchmarks/sampler_soak.py [--minutes 30] [--gpus 8] [--interval 0.1] [--out FILE]

NVML is the tests' fake library (it needs a C compiler): its energy counter takes 3.5 ms, as an
H200's does. A sample counts as lost where a beat of the interval has none.
RSS growth is the slope of a line through the readings after the first tenth, in MiB an hour.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

ROOT = Path(__file__).resolve().parents[1]
_ENERGY_COUNTER_US = 3500
_READINGS = 120
"""Readings of RSS and CPU time over the whole soak."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between samples")
    parser.add_argument("--out", type=Path, default=None, help="where the result is kept, as JSON")
    parser.add_argument("--cell", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        return _be_a_cell(arguments.cell, arguments.gpus, arguments.interval)
    result = soak(60 * arguments.minutes, arguments.gpus, arguments.interval)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    return 0 if result["passed"] else 1


def soak(seconds: float, gpus: int, interval_s: float) -> dict[str, Any]:
    """Run the cell and judge what it recorded."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    from fakes.nvml.scenario import Scenario, environment

    with tempfile.TemporaryDirectory(prefix="scalewise-soak-") as scratch:
        folder = Path(scratch)
        scenario = Scenario().h200(gpus)
        for index in range(gpus):
            scenario.latency(index, "energy_mj", _ENERGY_COUNTER_US)
        env = environment(scenario.write(folder / "scenario.txt"))
        env |= {"PYTHONPATH": str(ROOT / "src")}
        with _cell(folder / "cell", gpus, interval_s, env) as cell:
            readings = _watch(cell.pid, seconds)
        found = {**_judge_series(folder / "cell", interval_s), **_judge_process(readings)}
    passed = found["lost"] == 0 and found["rss_growth_mib_per_h"] < 10 and not found["problems"]
    return {
        "seconds": seconds, "gpus": gpus, "interval_s": interval_s, "library": "fake", **found,
        "passed": passed,
    }  # fmt: skip


@contextmanager
def _cell(
    folder: Path, gpus: int, interval_s: float, env: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A cell that samples until it is told to stop."""
    command = [
        sys.executable, __file__, "--cell", str(folder),
        "--gpus", str(gpus), "--interval", str(interval_s),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "started\n", "the cell did not start"
        yield process
    finally:
        process.stdin.close()
        process.wait(60)


def _be_a_cell(folder: Path, gpus: int, interval_s: float) -> int:
    from scalewise.gpu import DeviceSampler, open_nvml
    from scalewise.records import CellFolder

    with open_nvml() as nvml:
        uuids = {gpu.uuid: gpu.index for gpu in nvml.devices()[:gpus]}
    with DeviceSampler(CellFolder(folder), uuids, dict, interval_s):
        time.sleep(2 * interval_s)
        print("started", flush=True)
        sys.stdin.read()
    return 0


def _watch(pid: int, seconds: float) -> list[tuple[float, float, float]]:
    """Seconds, RSS in MiB and CPU seconds of a process, read at even intervals."""
    process = psutil.Process(pid)
    found: list[tuple[float, float, float]] = []
    begun = time.monotonic()
    for reading in range(_READINGS + 1):
        time.sleep(max(0.0, begun + seconds * reading / _READINGS - time.monotonic()))
        with process.oneshot():
            times, rss = process.cpu_times(), process.memory_info().rss
        at = time.monotonic() - begun
        found.append((at, rss / 2**20, times.user + times.system))
    return found


def _judge_process(readings: list[tuple[float, float, float]]) -> dict[str, float]:
    seconds, rss_mib, cpu_s = np.array(readings).T
    settled = seconds >= seconds[-1] / 10
    slope_mib_per_s = float(np.polyfit(seconds[settled], rss_mib[settled], 1)[0])
    return {
        "rss_first_mib": float(rss_mib[0]),
        "rss_last_mib": float(rss_mib[-1]),
        "rss_growth_mib_per_h": 3600 * slope_mib_per_s,
        "cpu_percent_of_a_core": 100 * float(cpu_s[-1] - cpu_s[0]) / float(seconds[-1]),
    }


def _judge_series(folder: Path, interval_s: float) -> dict[str, Any]:
    from scalewise.records import CellFolder, read_device_series

    (path,) = CellFolder(folder).device_series_paths()
    series = read_device_series(path)
    times = np.array(series.times)
    gaps = np.diff(times)
    incomplete = sum(len(row) < len(series.devices) for row in series.samples)
    costs_ms = np.array([c for c in series.cost_ms if c is not None])
    return {
        "samples": len(series.times),
        "lost": count_lost(times, interval_s) + incomplete,
        "longest_gap_s": float(gaps.max()),
        "cost_ms_median": float(np.median(costs_ms)),
        "cost_ms_p99": float(np.percentile(costs_ms, 99)),
        "problems": list(series.problems),
    }


def count_lost(times: npt.NDArray[np.float64], interval_s: float) -> int:
    """Beats without a sample. One that comes late fills its beat: the next is then the nearer.

    The first and the last second are left out: the first and the last reading are on no beat.
    """
    inner = times[(times > times[0] + 1) & (times < times[-1] - 1)]
    due = int(np.round((inner[-1] - inner[0]) / interval_s)) if len(inner) > 1 else 0
    return max(0, due - (len(inner) - 1))


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['seconds'] / 60:.1f} minutes, {result['gpus']} GPUs ({result['library']} NVML), "
        f"one sample every {result['interval_s']:g} s"
    )
    rss = f"{result['rss_first_mib']:.1f} to {result['rss_last_mib']:.1f}"
    print(
        f"{result['samples']} samples, {result['lost']} lost, longest gap "
        f"{result['longest_gap_s']:.3f} s; RSS {rss} MiB, growth "
        f"{result['rss_growth_mib_per_h']:.2f} MiB/h; CPU {result['cpu_percent_of_a_core']:.2f} %"
    )
    for problem in result["problems"]:
        print(problem)
    print("passed" if result["passed"] else "FAILED")


if __name__ == "__main__":
    raise SystemExit(main())

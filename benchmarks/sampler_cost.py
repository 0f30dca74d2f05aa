"""What watching costs: the sampler alone, lane by lane, and a training with it over one without.

    python benchmarks/sampler_cost.py [--fake 8] [--parts lanes cpu windows] [--out F]

* ``lanes``: time of a core sample, of the slow lane and of the GPM lane, for each GPU and for the
  host, median and 99th percentile over fresh readings;
* ``cpu``: a process that does nothing but sample, at 1 and at 10 Hz: CPU time per GPU in percent
  of a core, RSS growth. Growth needs minutes: ``--seconds``, or ``sampler_soak.py``;
* ``windows``: step time of a training while the sampler reads at 10 Hz over that while it sleeps,
  in pairs of neighbouring windows (``sampler_beside.py``).

On a host without GPUs ``--fake N`` uses the tests' fake library (its calls take no time but for the
energy counter's 3.5 ms, so what it shows is our own cost). A short table comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from sampler_beside import measure_windows, sample_in_windows, with_source  # noqa: E402

_ENERGY_COUNTER_US = 3500
_RATES_HZ = (1, 10)
PARTS = ("lanes", "cpu", "windows")
_MEDIUM_MLP = ("model=medium", "dataset=tabular", "batch_size=128")
"""Steps of about a millisecond: the training that is easiest to disturb."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--fake", type=int, default=0, metavar="N", help="N GPUs that are not real")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--readings", type=int, default=500, help="of the core lane")
    parser.add_argument("--seconds", type=float, default=30.0, help="of sampling at each rate")
    parser.add_argument("--pairs", type=int, default=20, help="of windows with and without")
    parser.add_argument("--window-s", type=float, default=1.0, metavar="S", help="of a window")
    parser.add_argument("--seed", type=int, default=0, help="of the order of windows")
    parser.add_argument(
        "--overrides", nargs="*", default=_MEDIUM_MLP,
        help="what train.py trains, e.g. strategy=ddp; name the GPUs by hardware.gpus",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=None, help="where all is kept, as JSON")
    parser.add_argument("--only", choices=("lanes", "cpu", "windows"), help=argparse.SUPPRESS)
    parser.add_argument("--hz", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # `timeout` and schedulers end it politely: the training beside it must not stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.only:
        print(json.dumps(_be_a_part(arguments)))
        return 0
    result = measure(arguments)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    return 0


def _be_a_part(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a process of its own does for one part."""
    if arguments.only == "lanes":
        return measure_lanes(arguments.readings)
    if arguments.only == "cpu":
        return measure_cpu(arguments.hz, arguments.seconds)
    return sample_in_windows(arguments.pairs, arguments.window_s, arguments.seed)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every part that was asked for, ``lanes`` and ``cpu`` in processes of their own."""
    result: dict[str, Any] = {"library": "fake" if arguments.fake else "real"}
    with tempfile.TemporaryDirectory(prefix="scalewise-cost-") as scratch:
        folder = Path(scratch)
        env = _environment(folder, arguments.fake)
        if "lanes" in arguments.parts:
            result["lanes"] = _part(env, "lanes", "--readings", arguments.readings)
        if "cpu" in arguments.parts:
            result["cpu"] = [
                _part(env, "cpu", "--hz", hz, "--seconds", arguments.seconds) for hz in _RATES_HZ
            ]
        if "windows" in arguments.parts:
            result["windows"] = measure_windows(
                arguments.overrides, folder / "trained", arguments.pairs, arguments.window_s,
                arguments.seed, with_source(env),
            )  # fmt: skip
    return result


def _environment(folder: Path, fake_gpus: int) -> dict[str, str]:
    env = {**os.environ, "SCALEWISE_RUNTIME_DIR": str(folder / "runtime")}
    if fake_gpus:
        from fakes.nvml.scenario import Scenario, environment

        scenario = Scenario().h200(fake_gpus)
        for index in range(fake_gpus):
            scenario.latency(index, "energy_mj", _ENERGY_COUNTER_US)
        env |= environment(scenario.write(folder / "scenario.txt"))
        env["SCALEWISE_RUNTIME_DIR"] = str(folder / "runtime")
    return env


def _part(env: dict[str, str], name: str, *arguments: object) -> Any:
    command = [sys.executable, __file__, "--only", name, *map(str, arguments)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"part {name} failed: without a GPU, give --fake 8")
    return json.loads(done.stdout)


# The sampler alone


def measure_lanes(readings: int) -> dict[str, Any]:
    """Milliseconds of each lane. The slow and the GPM lane are what they add to a core sample."""
    from scalewise.gpu import open_nvml

    with open_nvml() as nvml:
        gpus = nvml.devices()
        for gpu in gpus:
            nvml.sample(gpu, slow=True, gpm=True)  # what is not there is found out, caches fill

        def host(*, slow: bool = False, gpm: bool = False) -> Callable[[], object]:
            return lambda: [nvml.sample(gpu, slow=slow, gpm=gpm) for gpu in gpus]

        core = _times_ms(host(), readings)
        core_ms = float(np.median(core))
        slow = _times_ms(host(slow=True), max(5, readings // 50)) - core_ms
        # GPM wants its readings more than 100 ms apart.
        gpm = _times_ms(host(gpm=True), max(5, readings // 50), pause_s=0.12) - core_ms
        return {
            "gpus": len(gpus), "name": gpus[0].name, "driver": nvml.driver_version(),
            "unavailable": nvml.unavailable,
            **{
                f"{lane}_ms": {
                    "host_p50": float(np.median(times)),
                    "host_p99": float(np.percentile(times, 99)),
                    "per_gpu_p50": float(np.median(times)) / len(gpus), "readings": len(times),
                }
                for lane, times in (("core", core), ("slow", slow), ("gpm", gpm))
            },
        }  # fmt: skip


def _times_ms(read: Callable[[], object], count: int, pause_s: float = 0.0) -> Any:
    times = []
    for _ in range(count):
        time.sleep(pause_s)
        begun = time.perf_counter()
        read()
        times.append(1e3 * (time.perf_counter() - begun))
    return np.array(times)


def measure_cpu(hz: float, seconds: float) -> dict[str, Any]:
    """CPU and RSS of this process while it samples every GPU of the host and nothing else."""
    from scalewise.gpu import DeviceSampler, open_nvml
    from scalewise.records import CellFolder, read_device_series

    with open_nvml() as nvml:
        gpus: dict[str, int | None] = {gpu.uuid: gpu.index for gpu in nvml.devices()}
    this = psutil.Process()
    with tempfile.TemporaryDirectory(prefix="scalewise-cost-") as scratch:
        folder = CellFolder(Path(scratch) / "cell")
        with DeviceSampler(folder, gpus, dict, 1 / hz):
            time.sleep(2.0)  # started, and its first samples are taken
            # process_time counts nanoseconds; psutil's times are in ticks of 10 ms.
            before_s, begun, rss = time.process_time(), time.monotonic(), this.memory_info().rss
            time.sleep(seconds)
            used_s, lasted = time.process_time() - before_s, time.monotonic() - begun
            grown_mib = (this.memory_info().rss - rss) / 2**20
        (path,) = folder.device_series_paths()
        series = read_device_series(path)
    return {
        "hz": hz, "gpus": len(gpus), "seconds": lasted,
        "cpu_percent_per_gpu": 100 * used_s / lasted / len(gpus),
        "rss_growth_mib": grown_mib, "rss_growth_mib_per_h": grown_mib * 3600 / lasted,
        "samples": len(series.times), "problems": list(series.problems),
        "unavailable": dict(series.unavailable),
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    """The table that comes last."""
    lanes = result.get("lanes")
    print()
    if lanes:
        print(f"{lanes['gpus']} x {lanes['name']} ({result['library']} NVML, {lanes['driver']})")
        for lane in ("core", "slow", "gpm"):
            cost = lanes[f"{lane}_ms"]
            print(f"{lane:5} lane  {1e3 * cost['per_gpu_p50']:9.1f} us a GPU  "
                  f"{cost['host_p50']:8.3f} ms a host (p99 {cost['host_p99']:.3f})")  # fmt: skip
    for part in result.get("cpu", ()):
        problems = "".join(f"; {problem}" for problem in part["problems"])
        print(f"{part['hz']:4g} Hz     {part['cpu_percent_per_gpu']:9.3f} % of a core per GPU, "
              f"RSS {part['rss_growth_mib']:+.2f} MiB in {part['seconds']:.0f} s"
              f"{problems}")  # fmt: skip
    if "windows" in result:
        _show_beside(result["windows"])


def _show_beside(found: dict[str, Any]) -> None:
    mean, median = found["of_means"], found["of_medians"]
    span = mean["interval95"]
    print(f"windows: {' '.join(found['overrides'])}")
    print(f"  step time with 10 Hz over without: {mean['ratio']:.4f} "
          f"[{span[0]:.4f}, {span[1]:.4f}]; of medians {median['ratio']:.4f} "
          f"[{median['interval95'][0]:.4f}, "
          f"{median['interval95'][1]:.4f}]; {found['pairs']} pairs, {found['steps']} steps of "
          f"{found['step_time_ms']:.3f} ms on {found['world_size']}")  # fmt: skip
    beside = found["beside_readings"]
    if beside is not None:
        low, high = beside["interval95"]
        print(f"  a reading adds {1e3 * beside['excess_ms']:.0f} us to the steps beside it: "
              f"{beside['ratio']:.4f} [{low:.4f}, {high:.4f}] at 10 Hz "
              f"({beside['readings']} readings)")  # fmt: skip
    print(f"  a reading of {found['gpus']} GPUs took {found['reading_ms_p50']:.3f} ms (p99 "
          f"{found['reading_ms_p99']:.3f}), CPU {found['cpu_percent_per_gpu']:.3f} % of a core per "
          f"GPU, RSS {found['rss_growth_mib']:+.2f} MiB")  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())

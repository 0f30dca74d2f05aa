"""Does the diagnosis find what was planted, and only that?

    python benchmarks/self_test.py [--quick] [--healthy 60] [--out FOLDER]

Every fault is planted at three magnitudes into real two-device cells that run beside healthy
twins, in one sweep in random order. The diagnosis sees nothing but the records. Printed are the
confusion matrix (rows: what was planted; columns: what was named first), the detection limit of
each fault (the smallest magnitude that was named first in every run, as all larger ones were),
and what was named on healthy runs. Thresholds are made for a quiet host: on a crowded one
``host oversubscribed`` is no false alarm.

Exit status 1 if a fault at its largest magnitude was not named first, or one was named on a
healthy run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra import compose, initialize_config_dir

from scalewise.analysis.diagnose import diagnose_run
from scalewise.analysis.imported import ImportedResult, check_imported
from scalewise.analysis.load import Cell, load_sweep
from scalewise.analysis.runs import Configuration, Run, measure_run
from scalewise.analysis.summary import Analysis, analyse
from scalewise.config import config_id, resolve
from scalewise.paths import conf_dir
from scalewise.records import DeviceSample, DeviceSeries, SampledDevice
from scalewise.sweep.display import make_display
from scalewise.sweep.engine import Engine
from scalewise.sweep.plan import Request, plan, request

WORKLOAD = (
    "model=large", "batch_size=512", "max_steps=45", "warmup_steps=5", "validation=never",
    "tracking=none", "dataset.samples=8192", "allow_faults=true",
)  # fmt: skip
"""Compute enough that a healthy step is not communication; 40 timed steps."""
HEALTHY = "healthy"
NOTHING = "nothing"
TRUE_LIMITS = {NOTHING, "communication-bound", "launch-bound", "compute-bound", "memory-bound"}
"""What may limit a healthy run: no fault of anybody's."""


@dataclass(frozen=True)
class Fault:
    """One fault, weakest magnitude first."""

    name: str
    limit: str
    """What the diagnosis must say."""
    magnitudes: tuple[tuple[str, tuple[str, ...]], ...]
    """In words, and as overrides."""
    needs_twin: bool = False
    """Whether its single-device twin has to run too."""


FAULTS = (
    Fault("slow_rank", "straggler", tuple(
        (f"{ms} ms", (f"fault.ms={ms}",)) for ms in (2, 10, 40))),
    Fault("slow_loader", "input-bound", tuple(
        (f"{ms} ms", (f"fault.ms={ms}",)) for ms in (2, 10, 40))),
    Fault("skewed_shards", "uneven shards", tuple(
        (f"{share:.0%}", (f"fault.excess={share}",)) for share in (0.02, 0.1, 0.5))),
    Fault("no_sampler", "not sharded", tuple(
        (f"{n} samples", (f"dataset.samples={n}",)) for n in (16384, 8192, 4096))),
    Fault("stall", "stalls", tuple(
        (f"{ms} ms in one of 10", (f"fault.ms={ms}", "fault.every_n_steps=10"))
        for ms in (30, 300, 1000))),
    Fault("small_batch", "batch too small", tuple(
        (f"batch {n}", (f"batch_size={n}",)) for n in (128, 16, 2)), needs_twin=True),
    Fault("oversubscribe", "host oversubscribed", tuple(
        (f"{n} a core", (f"fault.processes={n}",)) for n in (1, 2, 4))),
)  # fmt: skip
THROTTLED_MHZ = (1950.0, 1780.0, 1200.0)
TOP_MHZ = 1980.0


@dataclass(frozen=True)
class Observation:
    """What was planted in one run, and what was named."""

    fault: str
    expected: str
    magnitude: str
    strength: int
    """0 is the weakest."""
    named: tuple[str, ...]

    @property
    def first(self) -> str:
        return self.named[0] if self.named else NOTHING

    @property
    def right(self) -> bool:
        if self.fault == HEALTHY:
            return set(self.named) <= TRUE_LIMITS
        return self.first == self.expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the largest magnitudes, 3 healthy")
    parser.add_argument("--healthy", type=int, default=60, help="healthy runs (default 60)")
    parser.add_argument("--only", nargs="*", help="names of the faults to plant (default all)")
    parser.add_argument("--out", type=Path, help="keep the sweep and self_test.json here")
    options = parser.parse_args()
    faults = [f for f in FAULTS if not options.only or f.name in options.only]
    strengths = (2,) if options.quick else (0, 1, 2)
    healthy = min(options.healthy, 3) if options.quick else options.healthy
    with tempfile.TemporaryDirectory(prefix="scalewise-self-test-") as temporary:
        folder = options.out or Path(temporary)
        observations = measure(folder / "sweep", faults, strengths, healthy)
        report(observations)
        if options.out is not None:
            save(options.out / "self_test.json", observations)
    strongest = [o for o in observations if o.fault == HEALTHY or o.strength == 2]
    return 0 if all(o.right for o in strongest) else 1


def measure(
    folder: Path, faults: Sequence[Fault], strengths: Sequence[int], healthy: int
) -> list[Observation]:
    """Run everything in one sweep and diagnose each run."""
    planted: dict[str, tuple[Fault, int]] = {}
    requests = [ask("strategy=ddp", f"repeats={max(1, healthy)}")]
    healthy_id = config_id(requests[0].plain)
    for fault in faults:
        for strength in strengths:
            overrides = (f"fault={fault.name}", *fault.magnitudes[strength][1])
            faulty = ask("strategy=ddp", *overrides)
            planted[config_id(faulty.plain)] = (fault, strength)
            requests.append(faulty)
            if fault.needs_twin:
                requests.append(ask("strategy=single", *overrides))
    Engine(folder, "exclusive", make_display()).run(plan(requests, order_seed=1))
    analysis = analyse(load_sweep(folder))
    found = []
    for config in analysis.measured:
        for run in config.runs:
            if config.config_id == healthy_id:
                found.append(observe(analysis, config, run, None, 0))
            elif config.config_id in planted:
                found.append(observe(analysis, config, run, *planted[config.config_id]))
    baseline = [r for c in analysis.measured if c.config_id == healthy_id for r in c.runs]
    return [*found, *replayed(baseline, strengths), *imported(strengths)]


def ask(*overrides: str) -> Request:
    """The workload with ``overrides``, as a user would ask for it."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed = compose(config_name="config", overrides=[*WORKLOAD, *overrides])
    return request((*WORKLOAD, *overrides), resolve(composed))


def observe(
    analysis: Analysis, config: Configuration, run: Run, fault: Fault | None, strength: int
) -> Observation:
    pair = analysis.pair(config)
    found = diagnose_run(run, pair.single if pair else None)
    found.sort(key=lambda d: (not d.invalidates, -d.ms))
    named = tuple(dict.fromkeys(d.limit for d in found))
    if fault is None:
        return Observation(HEALTHY, NOTHING, "", 0, named)
    return Observation(fault.name, fault.limit, fault.magnitudes[strength][0], strength, named)


def replayed(runs: Sequence[Run], strengths: Sequence[int]) -> Iterator[Observation]:
    """A healthy run beside a GPU series whose clocks are held down: no GPU is needed for it."""
    for strength in strengths if runs else ():
        mhz = THROTTLED_MHZ[strength]
        cell = with_throttled_gpus(runs[0].cell, mhz)
        found = diagnose_run(measure_run(cell))
        found.sort(key=lambda d: (not d.invalidates, -d.ms))
        named = tuple(dict.fromkeys(d.limit for d in found))
        text = f"{mhz:.0f} of {TOP_MHZ:.0f} MHz"
        yield Observation("replayed throttling", "throttled", text, strength, named)


def with_throttled_gpus(cell: Cell, mhz: float) -> Cell:
    """``cell`` with a series of GPUs that reached the top clock once and were then held back."""
    series = cell.steps[0]
    begin = (int(series.rows["start_ns"][0]) + series.epoch_offset_ns) / 1e9
    end = (int(series.rows["start_ns"][-1]) + series.epoch_offset_ns) / 1e9
    devices = tuple(SampledDevice(f"GPU-{r}", r, "replayed GPU", r) for r in range(2))
    times = tuple(begin + (end - begin) * i / 10 for i in range(1, 10))
    clocks = [TOP_MHZ, *[mhz] * len(times)]
    samples = tuple(
        {d.id: DeviceSample(d.id, sm_clock_mhz=clock, throttle_reasons=reasons) for d in devices}
        for clock in clocks
        for reasons in [() if clock == TOP_MHZ else ("software thermal slowdown",)]
    )
    replay = DeviceSeries(
        host="replay", source="nvml", interval_s=0.1, devices=devices, unavailable={},
        times=(begin - 1.0, *times), samples=samples,
        cost_ms=(None,) * len(samples), problems=(),
    )  # fmt: skip
    return replace(cell, devices=(replay,))


def imported(strengths: Sequence[int]) -> Iterator[Observation]:
    """Published lines whose throughput counts one replica's batch."""
    for strength in strengths:
        devices = (2, 4, 8)[strength]
        line = ImportedResult(devices, 512, 10.0, 512 / devices / 0.010)
        named = tuple(d.limit for d in check_imported(line))
        expected = "per-replica throughput"
        yield Observation("imported per replica", expected, f"{devices} devices", strength, named)


def report(observations: Sequence[Observation]) -> None:
    """The confusion matrix and the detection limits."""
    columns = sorted({o.first for o in observations})
    rows = list(dict.fromkeys((o.fault, o.magnitude) for o in sorted(
        observations, key=lambda o: (o.fault, o.strength))))  # fmt: skip
    print("| planted | magnitude | runs |", " | ".join(columns), "|")
    print("|---|---|---:|" + "---:|" * len(columns))
    for fault, magnitude in rows:
        mine = [o for o in observations if (o.fault, o.magnitude) == (fault, magnitude)]
        counts = Counter(o.first for o in mine)
        cells = " | ".join(str(counts[c] or "") for c in columns)
        print(f"| {fault} | {magnitude} | {len(mine)} | {cells} |")
    print()
    for fault in dict.fromkeys(o.fault for o in observations if o.fault != HEALTHY):
        print(f"{fault}: {detection_limit([o for o in observations if o.fault == fault])}")
    healthy = [o for o in observations if o.fault == HEALTHY]
    accused = Counter(n for o in healthy for n in o.named if n not in TRUE_LIMITS)
    print(f"healthy runs: {len(healthy)}, accused of a fault: {dict(accused) or 'none'}")
    load = os.getloadavg()[0]
    print(f"host: {os.cpu_count()} cores, load {load:.1f} at the end")


def detection_limit(mine: Sequence[Observation]) -> str:
    """The smallest magnitude from which on everything was named first."""
    limit = None
    for strength in sorted({o.strength for o in mine}, reverse=True):
        at = [o for o in mine if o.strength == strength]
        if not all(o.right for o in at):
            break
        limit = at[0].magnitude
    return f"named first from {limit} on" if limit else "NOT named first at its largest magnitude"


def save(path: Path, observations: Sequence[Observation]) -> None:
    plain = [
        {"fault": o.fault, "magnitude": o.magnitude, "expected": o.expected, "named": o.named}
        for o in observations
    ]
    path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    print(f"kept: {path}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())

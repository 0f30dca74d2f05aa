"""What measuring costs a training whose host is busy, and what helps such a training.

    python benchmarks/overhead.py [--workload gpt2] [--devices 2] [--out FILE]
    python benchmarks/overhead.py --workload gpt2 --execution 60 --out FILE
    python benchmarks/overhead.py --show FILE [FILE ...]

From one fresh process to the next a step that its host limits differs by 10 to 30 %, so nothing is
compared across processes here. One run of the cell takes turns: parts are switched on and off in
windows of 0.4 to 0.9 s, two windows a pair, in a random order (``paired_windows.py``). After each
switch some steps are left out. A window's step time is that of its slowest rank.

* ``everything``: all that a cell measures with (records of steps, metrics, heartbeat, recording
  thread, marks, hook, device sampler) over none of it. What *off* still contains: Lightning's loop
  as a cell trims it, four empty calls a step, threads that wake up for nothing.
* parts of measuring, one by one: ``recording_thread``, ``phase_marks``, ``gradient_hook`` (two
  replicas under DDP, with and without it), ``device_sampler``. Their step records stay on.
* ``lightning_loop``: the cell's loop over one by hand.
* what may help: ``gc_at_fixed_steps``, ``one_openmp_thread``, ``loader_workers`` (two, over the
  training thread).
* ``null``, a switch with nothing behind it, and ``other_replica``, a second one like the first.
* ``--execution ROUNDS``, a run of its own: replicas with ``execution=eager``, ``compile`` and
  ``cudagraph`` in turns.

``pinned_cores`` is no part any more: OpenMP's threads lacked the cores that it gave to training and
autograd, a mode of its own which no sum of parts describes. Windows of older records that have it
are left out.

Not in it: the supervisor and the trackers, which are processes of their own; the audit of shards,
which appends once a step in the first epoch. Every window of every rank is kept in ``--out``;
``--show`` computes table and plot from it again. ``--plant PART=MS`` lets rank 0 sleep in
each step while that part is on: the benchmark has to find it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overhead_ranks import MEASURING, NOTHING, REMEDIES, SAMPLER_SWITCH
from paired_windows import (
    Ratio,
    estimate_pairs,
    estimate_ratio,
    estimate_switches,
    find_interactions,
)
from team import answer, compose, run_team

WORKLOADS: dict[str, tuple[tuple[str, ...], int]] = {
    "gpt2": (
        ("model=gpt2", "dataset=stdlib", "optimizer=adamw", "precision=bf16-mixed",
         "batch_size=8"), 8,
    ),
    "gpt2_tiny": (("model=gpt2_tiny", "dataset=stdlib", "optimizer=adamw", "batch_size=8"), 8),
    "large": (("model=large", "dataset=tabular", "dataset.samples=200000", "batch_size=64"), 32),
    "medium": (("model=medium", "dataset=tabular", "dataset.samples=200000", "batch_size=128"), 32),
}  # fmt: skip
"""Overrides, with the samples of one device; and the steps of a batch that is replayed."""
GOAL = 1.01
"""Everything on over off."""
SPARE_S = 15.0
"""Of the budget, for the end of the ranks and the file."""
LEFT_OUT = "pinned_cores"
"""Was a part; see above."""
GROUPS = (
    ("everything", "measuring, and nothing", ("everything", *NOTHING)),
    ("parts", "measuring, part by part", MEASURING),
    ("parts", "the cell's own loop over one by hand", REMEDIES[:1]),
    ("parts", "what may help", REMEDIES[1:]),
    ("parts", "nothing", NOTHING),
    ("execution", "over execution=eager", ("compile", "cudagraph")),
)
"""Design, title and rows."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", default="large", choices=list(WORKLOADS))
    parser.add_argument("--devices", type=int, default=2, help="two or more")
    parser.add_argument("--everything", type=int, default=240, metavar="PAIRS")
    parser.add_argument("--parts", type=int, default=60, metavar="PAIRS")
    parser.add_argument("--execution", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--budget-s", type=float, default=1e6, help="begin no pair after this")
    parser.add_argument("--seed", type=int, default=0, help="of order and lengths of windows")
    parser.add_argument(
        "--plant", type=planted, action="append", default=[], metavar="PART=MS",
        help="sleep so long in each step while PART is on",
    )  # fmt: skip
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides")
    parser.add_argument("--out", type=Path, default=None, help="every window, as JSON")
    parser.add_argument(
        "--show", type=Path, nargs="+", metavar="FILE", help="tables and plot of kept runs"
    )
    parser.add_argument("--until", type=float, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.show:
        runs = [json.loads(path.read_text()) for path in arguments.show]
        for run in runs:
            show(run)
            print()
        print(f"plot: {plot(runs, arguments.show[0].with_name('windows.png'))}")
        return 0
    if arguments.devices < 2:
        parser.error(f"--devices: found {arguments.devices}; allowed: 2 or more, as DDP has them")
    if arguments.as_rank:
        return rank_main(arguments)
    kept = measure(arguments)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    show(kept)
    return 0


def planted(words: str) -> tuple[str, float]:
    """``PART=MS``."""
    part, _, ms = words.partition("=")
    allowed = ("everything", *MEASURING, *REMEDIES, *NOTHING)
    if part not in allowed or not ms:
        raise argparse.ArgumentTypeError(
            f"found {words}; allowed: PART=MS with one of {', '.join(allowed)}"
        )
    return part, float(ms)


def rank_main(arguments: argparse.Namespace) -> int:
    from overhead_ranks import main as train

    overrides, arguments.steps_per_batch = WORKLOADS[arguments.workload]
    answer(train(arguments, [*overrides, "scaling=weak", *arguments.set]))
    sys.stdout.flush()
    # Tearing down NCCL under captured graphs can hang, and there is nothing left to do.
    os._exit(0)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the ranks with a sampler beside them, as a sweep does; everything that they tell."""
    from scalewise.config import build_cell
    from scalewise.gpu import discover
    from scalewise.host import on_loopback

    began = time.monotonic()
    overrides = [*WORKLOADS[arguments.workload][0], "scaling=weak", *arguments.set]
    cell = build_cell(compose([*overrides, "strategy=ddp"]))
    slots = discover(cell.hardware).slots[: arguments.devices]
    if len(slots) < arguments.devices:
        raise SystemExit(f"--devices: found {arguments.devices}; allowed: 2 to {len(slots)} here")
    threads = str(max(1, len(slots[0].cores)))
    environment = {
        **on_loopback(slots[0].kind == "cuda"), "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }  # fmt: skip
    until = began + arguments.budget_s - SPARE_S
    options = [word for word in sys.argv[1:] if word != "--as-rank"]
    ranks = run_team(
        __file__, [*options, "--until", str(until)], arguments.devices, environment,
        timeout_s=arguments.budget_s + 120, beside=lambda f, pids: sampling(f, pids, cell, slots),
    )  # fmt: skip
    first = ranks[0]
    return {
        "workload": arguments.workload, "overrides": overrides, "seed": arguments.seed,
        "planted_ms": dict(arguments.plant), "begun": time.strftime("%Y-%m-%d %H:%M:%S UTC",
        time.gmtime(time.time() - time.monotonic() + began)),
        "asked": {name: getattr(arguments, name) for name in ("everything", "parts", "execution")},
        "sampler_interval_s": cell.monitor.interval_s,
        "devices": [slot.name for slot in slots],
        **{name: value for name, value in first.items() if name not in ("windows", "device")},
        "notes": [rank["notes"] for rank in ranks],
        "ranks": [rank["windows"] for rank in ranks],
    }  # fmt: skip


@contextlib.contextmanager
def sampling(folder: Path, pids: Sequence[int], cell: Any, slots: Sequence[Any]) -> Iterator[None]:
    """The sampler of a local sweep, in this process; it reads while the switch is on."""
    from scalewise.gpu import DeviceSampler
    from scalewise.records import CellFolder

    path = folder / SAMPLER_SWITCH
    path.write_bytes(b"\0")

    class SwitchedSampler(DeviceSampler):
        """Its beat goes on while it is off."""

        def _sample(self, add: Any) -> None:
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 1) as switch:
                super()._sample(lambda all_groups: add(all_groups) if switch[0] else None)

    gpus = {slot.uuid: rank for rank, slot in enumerate(slots) if slot.uuid}
    ranks = dict(enumerate(pids))
    with SwitchedSampler(CellFolder(folder), gpus, lambda: ranks, cell.monitor.interval_s):
        yield


# What the windows say


def merged(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Windows of the plan in their order, each with the step time in ms of its slowest rank."""
    return [
        {**ranks[0], "step_ms": max(1e3 * w["seconds"] / w["steps"] for w in ranks)}
        for ranks in zip(*kept["ranks"], strict=True)
        if ranks[0]["pair"] >= 0
    ]


@dataclass(frozen=True)
class Found:
    """What the windows of one design say."""

    samples: str
    """What each ratio was estimated from."""
    ratios: dict[str, Ratio]
    step_ms: float
    """Median window of those that were used."""
    interactions: dict[tuple[str, str], Ratio]


def estimate(kept: Mapping[str, Any]) -> dict[str, Found]:
    """What was found, by design, as far as there are windows."""
    designs: dict[str, list[dict[str, Any]]] = {}
    for window in merged(kept):
        designs.setdefault(window["design"], []).append(window)
    return {
        design: _ESTIMATES[design](windows, kept["seed"])
        for design, windows in designs.items()
        if len(windows) > 3
    }


def _of_pairs(windows: Sequence[dict[str, Any]], seed: int) -> Found:
    halves = [((w["on"], w["step_ms"]), (v["on"], v["step_ms"])) for w, v in _pairs(windows)]
    found = estimate_pairs(halves, _factors(windows), seed)
    return Found("pairs", found, _median_ms(windows), {})


def _pairs(windows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    return zip(windows[::2], windows[1::2], strict=True)


def _of_switches(windows: Sequence[dict[str, Any]], seed: int) -> Found:
    own = [window for window in windows if LEFT_OUT not in window["on"]]
    states = [(w["began_ns"] / 1e9, w["on"], w["step_ms"]) for w in own]
    factors = _factors(own)
    return Found(
        "windows", estimate_switches(states, factors, seed), _median_ms(own),
        find_interactions(states, factors, seed),
    )  # fmt: skip


def _of_rounds(windows: Sequence[dict[str, Any]], seed: int) -> Found:
    times: dict[str, list[float]] = {}
    for window in windows:
        times.setdefault(window["on"][0], []).append(window["step_ms"])
    rounds = min(map(len, times.values()))
    eager = times.pop("eager")[:rounds]
    found = {arm: estimate_ratio(ms[:rounds], eager, seed) for arm, ms in times.items()}
    return Found("rounds", found, statistics.median(eager), {})


_ESTIMATES = {"everything": _of_pairs, "parts": _of_switches, "execution": _of_rounds}


def _factors(windows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({factor for window in windows for factor in window["on"]})


def _median_ms(windows: Sequence[dict[str, Any]]) -> float:
    return statistics.median(window["step_ms"] for window in windows)


def show(kept: Mapping[str, Any]) -> None:
    """The table, in at most 80 columns."""
    found, steps_ms = estimate(kept), [w["step_ms"] for w in merged(kept)]
    print(
        f"{kept['workload']} on {len(kept['devices'])} x {kept['devices'][0]}: "
        f"{len(steps_ms)} windows, {kept['cores']} cores a rank"
    )
    if steps_ms:
        low, high = min(steps_ms), max(steps_ms)
        print(
            f"step time of a window: median {statistics.median(steps_ms):.4g} ms, "
            f"{low:.4g} to {high:.4g}"
        )
    print(f"\n{'':22} {'on / off':>9}  {'95 % interval':18} {'estimated from':14}  of a step")
    for design, title, names in GROUPS:
        if design not in found:
            continue
        print(f"{title}:")
        for name in names:
            if name in found[design].ratios:
                print(_row(name, found[design]))
            elif name in kept["missing"]:
                print(f"  {name:20} {'-':>9}  {kept['missing'][name]}"[:80])
    for each in found.values():
        for (one, other), ratio in each.interactions.items():
            print(
                f"{one} with {other}: {ratio.value:.4g} of both alone "
                f"({ratio.low:.4g} to {ratio.high:.4g})"
            )
    if "everything" in found:
        everything = found["everything"].ratios["everything"]
        if everything.high is not None and everything.low is not None:
            verdict = "met" if everything.high <= GOAL else "not resolved"
            verdict = "MISSED" if everything.low > GOAL else verdict
            print(f"goal: everything at most {GOAL:g}: {verdict}")
    for part, ms in kept["planted_ms"].items():
        took = kept["planted_took_ms"][part]
        print(f"planted: {ms:g} ms a step in {part}, which took {took:.3g} ms")


def _row(name: str, found: Found) -> str:
    ratio = found.ratios[name]
    span = "too few"
    if ratio.low is not None and ratio.high is not None:
        span = f"{ratio.low:.4f} to {ratio.high:.4f}"
    change = f"{found.step_ms * (ratio.value - 1):+.3g} ms"
    samples = f"{ratio.count} {found.samples}"
    return f"  {name:20} {ratio.value:9.4f}  {span:18} {samples:14}  {change}"


def plot(runs: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Step time of every window over wall time, by its state; one panel a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(runs), figsize=(11, 3 * len(runs)), squeeze=False, layout="constrained"
    )
    for kept, axes in zip(runs, panels[:, 0], strict=True):
        windows = merged(kept)
        begun_ns = min(w["began_ns"] for w in windows)
        points: dict[str, list[tuple[float, float]]] = {}
        for window in windows:
            at = (window["began_ns"] - begun_ns) / 1e9
            points.setdefault(_state(window), []).append((at, window["step_ms"]))
        for state in sorted(points):
            axes.plot(*zip(*points[state], strict=True), ".", label=state, markersize=4)
        axes.set_ylabel("step time of a window (ms)")
        axes.set_title(f"{kept['workload']} on {len(kept['devices'])} x {kept['devices'][0]}")
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    panels[-1, 0].set_xlabel("wall time (s)")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    return path


def _state(window: Mapping[str, Any]) -> str:
    """What a window is called in the plot."""
    if window["design"] == "execution":
        return str(window["on"][0])
    if window["design"] == "everything":
        return "everything on" if "everything" in window["on"] else "everything off"
    return "parts, pinned (left out)" if LEFT_OUT in window["on"] else "parts"


if __name__ == "__main__":
    raise SystemExit(main())

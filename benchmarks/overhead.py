"""What measuring costs a training whose host is busy.

    python benchmarks/overhead.py [--workload gpt2] [--devices 2] [--set batch_size=8] [--out FILE]

From one fresh process to the next a step that its host limits differs by 10 to 30 %, so nothing is
compared across processes. One cell takes turns inside: in windows of 0.4 to 0.9 s, two a pair, in a
random order. A part is on in one window of its pairs and off in the other, while all else is on.
After each switch some steps are left out. A window's step time is that of its slowest rank. A
part's ratio is that of its pairs, with Student's t interval of their logarithms.

* ``everything``: all that a cell measures with (records of steps, metrics, heartbeat, recording
  thread, marks, hook, device sampler) over none of it. What *off* still contains: Lightning's loop
  as a cell trims it, four empty calls a step, threads that wake up for nothing.
* parts one by one: ``recording_thread``, ``phase_marks``, ``gradient_hook`` (two replicas under
  DDP, with and without it), ``device_sampler``.
* ``loop``, on one device: the cell's loop with nothing measured, over a loop by hand on the same
  model, loader and optimizer.
* ``null``, a switch with nothing behind it.

Not in it: the supervisor and the trackers, which are processes of their own. ``--plant PART=MS``
lets rank 0 sleep in each step while that part is on: the benchmark has to find it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from team import TIMEOUT_S, WORKLOADS, compose, keep, make_parser, my_place, run_team, team_folder

GRADIENT_HOOK = "gradient_hook"
MEASURING = ("recording_thread", "phase_marks", GRADIENT_HOOK, "device_sampler")
"""The parts that are switched one by one."""
EVERYTHING = (*MEASURING, "step_records")
LOOP = "loop"
PARTS = ("everything", *MEASURING, LOOP, "null")
GOALS = {5.0: 1.01, 0.0: 1.03}
"""Everything on over off, for steps of so many ms and more."""
SPARE_S = 15.0
"""Of the budget, for the end of the ranks and the file."""
SAMPLE_EVERY_S = 1.0
"""As a cell does that is as long."""
SAMPLER_SWITCH = "sampler_on"
"""File of one byte in the team's folder: rank 0 writes it, the sampling process reads it."""


def main() -> int:
    parser = make_parser(__doc__, "large")
    parser.add_argument("--everything", type=int, default=240, metavar="PAIRS")
    parser.add_argument("--parts", type=int, default=60, metavar="PAIRS", help="of each part")
    parser.add_argument("--budget-s", type=float, default=1e6, help="begin no pair after this")
    parser.add_argument("--seed", type=int, default=0, help="of order and lengths of windows")
    parser.add_argument(
        "--plant", type=planted, action="append", default=[], metavar="PART=MS",
        help="sleep so long in each step while PART is on",
    )  # fmt: skip
    parser.add_argument("--until", type=float, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        rank_main(arguments)
        return 0
    kept = measure(arguments)
    keep(arguments.out, kept)
    show(kept)
    return 0


def planted(words: str) -> tuple[str, float]:
    """``PART=MS``."""
    part, _, ms = words.partition("=")
    if part not in PARTS[:-1] or not ms:
        raise argparse.ArgumentTypeError(
            f"found {words}; allowed: PART=MS with one of {', '.join(PARTS[:-1])}"
        )
    return part, float(ms)


def rank_main(arguments: argparse.Namespace) -> None:
    """Train a cell whose steps are taken by ``overhead_ranks.Turns``, which answers."""
    turns = {
        "_target_": "overhead_ranks.Turns", "seed": arguments.seed, "until": arguments.until,
        "pairs": dict.fromkeys(PARTS, arguments.parts) | {"everything": arguments.everything},
        "planted_ms": dict(arguments.plant),
    }  # fmt: skip
    workload = (*WORKLOADS[arguments.workload], *arguments.set)
    cell, rank = my_place((*workload, "max_steps=1000000000", "warmup_steps=0"), fault=turns)
    from scalewise.records import CellFolder
    from scalewise.train import experiment

    experiment.run(cell, CellFolder(team_folder()), rank)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the ranks with a sampler beside them, as a sweep does; every window of every rank."""
    from scalewise.config import build_cell
    from scalewise.gpu import discover

    workload = (*WORKLOADS[arguments.workload], *arguments.set)
    cell = build_cell(compose(workload))
    slots = discover(cell.hardware).slots[: arguments.devices]
    if len(slots) < arguments.devices:
        raise SystemExit(f"--devices: found {arguments.devices}; allowed: 1 to {len(slots)} here")
    until = time.monotonic() + arguments.budget_s - SPARE_S
    ranks = run_team(
        __file__, [*sys.argv[1:], "--until", str(until)], arguments.devices,
        timeout_s=arguments.budget_s + TIMEOUT_S,
        beside=lambda folder, pids: sampling(folder, pids, slots),
    )  # fmt: skip
    return {
        "workload": arguments.workload, "overrides": workload,
        "seed": arguments.seed, "planted_ms": dict(arguments.plant),
        "planted_took_ms": ranks[0]["planted_took_ms"],
        "devices": [slot.name for slot in slots], "cores": len(slots[0].cores),
        "ranks": [rank["windows"] for rank in ranks],
    }  # fmt: skip


@contextlib.contextmanager
def sampling(folder: Path, pids: Sequence[int], slots: Sequence[Any]) -> Iterator[None]:
    """The sampler of a local sweep, in this process; it reads while the switch is on."""
    from scalewise.gpu import DeviceSampler
    from scalewise.gpu.readers import Reading
    from scalewise.records import CellFolder

    switch = folder / SAMPLER_SWITCH
    switch.write_bytes(b"\0")

    class SwitchedSampler(DeviceSampler):
        """Its beat goes on while it is off."""

        def _open(self) -> Any:
            reader: Any = super()._open()
            read, nothing = reader.read, Reading(0.0, 0.0, {})

            def switched(**groups: bool) -> Reading:
                return read(**groups) if switch.read_bytes() == b"\1" else nothing

            reader.read = switched
            return reader

    gpus = {slot.uuid: rank for rank, slot in enumerate(slots) if slot.uuid}
    ranks = dict(enumerate(pids))
    with contextlib.closing(
        SwitchedSampler(CellFolder(folder), gpus, lambda: ranks, SAMPLE_EVERY_S)
    ):
        yield


def show(kept: Mapping[str, Any]) -> None:
    """The table, in at most 80 columns."""
    from scalewise.analysis.statistics import estimate_ratio

    steps_ms: dict[tuple[str, bool], dict[int, float]] = {}
    for ranks in zip(*kept["ranks"], strict=True):
        first = ranks[0]
        if first["pair"] >= 0:
            slowest_ms = max(window["step_ms"] for window in ranks)
            steps_ms.setdefault((first["part"], first["is_on"]), {})[first["pair"]] = slowest_ms
    devices = kept["devices"]
    print(f"{kept['workload']} on {len(devices)} x {devices[0]}, {kept['cores']} cores a rank")
    print(f"{'':18} {'on / off':>9}  {'95 % interval':18} {'pairs':>5}  of a step")
    goal, verdict = GOALS[0.0], "not resolved"
    for part in PARTS:
        on, off = (steps_ms.get((part, is_on), {}) for is_on in (True, False))
        if not on.keys() & off.keys():
            continue
        ratio = estimate_ratio(on, off)
        span = "too few"
        if ratio.interval is not None:
            span = f"{ratio.interval.low:.4f} to {ratio.interval.high:.4f}"
            if part == "everything":
                off_ms = statistics.median(off.values())
                goal = next(goal for least_ms, goal in GOALS.items() if off_ms >= least_ms)
                verdict = "met" if ratio.interval.high <= goal else verdict
                verdict = "MISSED" if ratio.interval.low > goal else verdict
        change_ms = statistics.median(off.values()) * (ratio.value - 1)
        print(f"{part:18} {ratio.value:9.4f}  {span:18} {ratio.n[0]:5}  {change_ms:+.3g} ms")
    print(f"goal: everything at most {goal:g}: {verdict}")
    for part, took_ms in kept["planted_took_ms"].items():
        print(f"planted: {kept['planted_ms'][part]:g} ms in {part}, which took {took_ms:.3g} ms")


if __name__ == "__main__":
    raise SystemExit(main())

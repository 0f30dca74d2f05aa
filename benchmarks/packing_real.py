"""The same question as ``packing.py`` on this host's own devices, with short cells that train.

Imported by ``packing.py --real``. Every configuration runs once, so that the engine knows what to
expect; then the rest of its repeats are packed, and their makespan is compared with
max(total work / devices, longest cell) of the durations that were measured, start of the processes
included. Nothing is simulated: it is the engine, its leases, its supervisors and real ranks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir

from scalewise.config import conf_dir, resolve
from scalewise.gpu import discover
from scalewise.records import SweepFolder
from scalewise.sweep import Cell, local_engine, make_display
from scalewise.sweep.plan import plan, request

TARGET = 1.10
FEWEST_STEPS, MOST_STEPS = 200, 6000
"""Steps of a cell, log-uniform over 30:1. Its start is on top, and alike for all."""


@dataclass(frozen=True)
class Ran:
    """One cell of the packed part, in seconds since the first of them started."""

    name: str
    width: int
    began_s: float
    ended_s: float


def cells(widths: list[int], repeats: int, hardware: list[str], rng: random.Random) -> list[Cell]:
    """``repeats`` of one configuration for each entry of ``widths``."""
    requests = []
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for width in widths:
            spread = MOST_STEPS / FEWEST_STEPS
            steps = round(FEWEST_STEPS * math.exp(rng.uniform(0, math.log(spread))))
            strategy = ["strategy=ddp", f"strategy.devices={width}"] if width > 1 else []
            overrides = [
                *hardware, *strategy, f"max_steps={steps}", f"repeats={repeats}",
                "tracking=none", "validation=never", "monitor.devices=false",
            ]  # fmt: skip
            plain = resolve(compose(config_name="config", overrides=overrides))
            requests.append(request(overrides, plain))
    return plan(requests, 0)


def lower_bound(ran: list[Ran], devices: int) -> float:
    """Seconds; no schedule of these cells ends earlier."""
    work = sum(r.width * (r.ended_s - r.began_s) for r in ran)
    return max(work / devices, *(r.ended_s - r.began_s for r in ran))


def measure(folder: Path, todo: list[Cell]) -> list[Ran]:
    """Run the first repeats to learn what cells take, then the others, packed."""
    known = [cell for cell in todo if cell.planned.repeat == 0]
    local_engine(folder, "packed", make_display()).run(known)
    report = local_engine(folder, "packed", make_display()).run(todo)
    failed = [o.message for o in report.outcomes.values() if o.state != "done"]
    if failed:
        raise SystemExit(f"a cell was not done: {failed[0]}")
    sweep = SweepFolder(folder)
    later = [cell.planned.name for cell in todo if cell.planned.repeat > 0]
    results = [sweep.cell(name).load_result() for name in later]
    zero = min(r.started_at for r in results)
    return sorted(
        (Ran(r.name, r.world_size, r.started_at - zero, r.finished_at - zero) for r in results),
        key=lambda ran: ran.began_s,
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit status 1 if the makespan is above 1.10 of the lower bound."""
    widths = [int(width) for width in arguments.widths.split(",")]
    rng = random.Random(arguments.seed)
    todo = cells(widths, arguments.repeats + 1, arguments.hardware.split(), rng)
    slots = discover(todo[0].request.cell.hardware).slots
    if max(widths) > len(slots):
        raise SystemExit(f"--widths: found {max(widths)}; this host has {len(slots)} devices")
    with tempfile.TemporaryDirectory(prefix="scalewise-packing-") as scratch:
        os.environ.setdefault("SCALEWISE_RUNTIME_DIR", f"{scratch}/runtime")
        ran = measure(Path(scratch) / "sweep", todo)
    makespan, bound = max(r.ended_s for r in ran), lower_bound(ran, len(slots))
    for one in ran:
        print(f"{one.began_s:7.1f} to {one.ended_s:6.1f} s  {one.width} x  {one.name}")
    print(f"{len(ran)} cells on {len(slots)} x {slots[0].name}:")
    print(f"  makespan    {makespan:.1f} s")
    print(f"  lower bound {bound:.1f} s")
    print(f"  ratio       {makespan / bound:.3f} (at most {TARGET:.2f})")
    if arguments.out is not None:
        told = {
            "devices": [slot.name for slot in slots],
            "widths_of_configurations": widths,
            "repeats_packed": arguments.repeats,
            "seed": arguments.seed,
            "makespan_s": makespan,
            "lower_bound_s": bound,
            "ratio": makespan / bound,
            "cells": [asdict(one) for one in ran],
        }
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if makespan / bound <= TARGET else 1

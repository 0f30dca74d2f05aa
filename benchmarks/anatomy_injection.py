"""A known delay in each phase of each rank in turn: it must show up there, and nowhere else.

    python benchmarks/anatomy_injection.py [--devices 2] [--workload gpt2_short] [--ms 0.2 1 10]

Every third step of one fit is delayed in one phase on one rank; the step after it rests, and the
one after that is what it is compared with, together with the one before the delayed step. On a GPU
the delay is a kernel that spins (``torch.cuda._sleep``) in the compute stream, read on the device
timeline; with ``--host`` it is a spinning host thread, read on the host timeline. A host that is
far ahead of its GPU hides delays of its own: so ``--host`` wants a launch-bound workload
(``large``), and the other one that keeps the GPU busy (``gpt2_short``): a launch-bound GPU catches
up in its next gap. ``step grew`` tells: it is less than the delay where a gap took some of it.

A spinning kernel counts cycles, and a GPU's clock falls under load: what each one really took is
measured by two events around it, and the phase is compared with that, never with what was asked
for. Figures are means over the turns, of the difference from the steps beside it, with a 95 %
interval: where that is wider than the tolerance, nothing is proved and the line says ``NOT
RESOLVED`` (more ``--each``).

What a delayed rank adds to a synchronous step, the others spend waiting for it: their
``exposed_comm`` of that step (of the next one, where the delay comes after the reduction) grows by
up to as much, and is printed. A collective that waits holds multiprocessors (on a CPU host, cores)
beside the others' backward, which may take longer for it: printed as ``slowed``. A rank that is
usually early pays that price in every step, and is spared it when it is the delayed one: its own
backward may be shorter (``relieved``), by no more than it is ever slowed when another rank is late.
Turns on all ranks at once change nobody's order of arrival: there nothing is allowed for. In no
other phase of any rank may anything appear. Exit status 0 if every phase is within 10 % of the
delay (at least 15 us).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from team import across_ranks, answer, devices, my_place, parts, run_team
from workloads import WORKLOADS

PHASES = ("data_wait", "h2d", "forward", "backward", "exposed_comm", "optimizer", "other")
NAMES = (*PHASES, "step")
ALL = -1
"""In place of a rank: every one."""
CYCLE = 3
"""Steps of a turn: delayed, resting, compared with."""
TOLERANCE, LEAST_MS = 0.10, 0.015
Delay = Callable[[], Callable[[], float]]
"""Delays, and hands back what tells afterwards how many ms that took."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", default="gpt2_short", choices=WORKLOADS)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--host", action="store_true", help="spin on the host")
    parser.add_argument("--ms", nargs="+", type=float, default=[0.2, 1.0, 10.0])
    parser.add_argument("--each", type=int, default=21, help="turns of a phase on a rank")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        answer(rank_main(arguments))
        return 0
    options = ["--workload", arguments.workload, "--each", str(arguments.each)]
    options += ["--ms", *map(str, arguments.ms), *(["--host"] if arguments.host else [])]
    ranks = run_team(__file__, options, arguments.devices)
    found = judge(ranks)
    if arguments.out:
        told = {
            "devices": devices()[: arguments.devices], "workload": arguments.workload,
            "timeline": ranks[0]["timeline"], "each": arguments.each, "found": found,
        }  # fmt: skip
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")
    show(found, ranks[0]["timeline"])
    return 0 if all(one["within"] and one["resolved"] for one in found) else 1


def turns(ranks: int, each: int) -> list[tuple[int, str]]:
    """Rank and phase of every turn, all alternating so that a drift meets them alike."""
    phases = PHASES if ranks > 1 else tuple(p for p in PHASES if p != "exposed_comm")
    targets = [*range(ranks), ALL] if ranks > 1 else [0]
    return list(itertools.product(targets, phases)) * each


def rank_main(arguments: argparse.Namespace) -> dict[str, Any]:
    """The phases of every step of this rank, for each delay."""
    overrides = [
        *WORKLOADS[arguments.workload], *across_ranks(), "validation=never", "tracking=none",
        "dataset.loader.num_workers=0",
    ]  # fmt: skip
    cell, rank = my_place(overrides)
    from scalewise.train.execution import apply_precision

    apply_precision(cell.precision)
    plan = turns(rank.world_size, arguments.each)
    on_gpu = rank.device.kind == "cuda"
    timeline: Literal["host", "device"] = "host" if arguments.host or not on_gpu else "device"
    spins = host_spin if timeline == "host" else device_spin(cycles_per_ms())
    runs, delays = {}, {}
    for ms in arguments.ms:
        steps, taken = one_fit(cell, rank, plan, functools.partial(spins, ms), timeline)
        runs[str(ms)], delays[str(ms)] = steps, taken
    return {"timeline": timeline, "plan": plan, "runs": runs, "delays": delays}


def host_spin(ms: float) -> Callable[[], float]:
    """Keep this thread busy, holding the interpreter."""
    begin = now = time.perf_counter()
    while now < begin + ms / 1e3:
        now = time.perf_counter()
    return lambda: (now - begin) * 1e3


def device_spin(cycles: float) -> Callable[[float], Callable[[], float]]:
    """Keep the current stream busy for so many ``cycles`` a millisecond, between two events."""
    import torch

    def spin(ms: float) -> Callable[[], float]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(int(ms * cycles))
        end.record()
        return lambda: float(begin.elapsed_time(end))

    return spin


def cycles_per_ms() -> float:
    """Of an idle GPU: a first guess, since the clock is another one under load."""
    import torch

    cycles = 20_000_000
    rates: list[float] = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        rates.append(cycles / float(begin.elapsed_time(end)))
    return statistics.median(rates[3:])


class Injector:
    """Delays the phase whose turn it is; each phase counts the steps for itself."""

    def __init__(self, plan: list[tuple[int, str]], rank: int, delay: Delay) -> None:
        self.plan = plan
        self.rank = rank
        self.delay = delay
        self.counts = {phase: itertools.count() for phase in PHASES}
        self._taken: dict[int, Callable[[], float]] = {}

    def __call__(self, phase: str) -> None:
        # What comes after a step's last mark opens the next step.
        step = next(self.counts[phase]) + (phase == "other")
        turn, place = divmod(step - CYCLE, CYCLE)
        if place == 0 and 0 <= turn < len(self.plan):
            target, delayed = self.plan[turn]
            if delayed == phase and target in (self.rank, ALL):
                self._taken[turn] = self.delay()

    def taken_ms(self) -> dict[int, float]:
        """What the delay of each turn took; the device has to be done."""
        return {turn: ms() for turn, ms in self._taken.items()}


def one_fit(
    cell: Any, rank: Any, plan: list[tuple[int, str]], delay: Delay, timeline: str
) -> tuple[list[dict[str, float]], dict[int, float]]:
    """Train with the delays: the phases of every step, and what the delay of each turn took, ms."""
    import pytorch_lightning as pl
    import torch
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    from scalewise.records import CellFolder, read_steps
    from scalewise.train.recording import CellRecorder

    torch.manual_seed(cell.seed)
    module, loader = parts(cell, rank)
    inject = Injector(plan, rank.rank, delay)
    delay_module(module, inject)
    delay_loader(loader, inject)

    class Late(pl.Callback):
        """Comes before the recorder: between the end of the reduction and its mark."""

        def on_after_backward(self, *args: Any) -> None:
            inject("exposed_comm")

    with tempfile.TemporaryDirectory() as folder:
        recorder = CellRecorder(CellFolder(folder), rank.device)
        trainer = pl.Trainer(
            accelerator="gpu" if rank.device.kind == "cuda" else "cpu", devices=rank.world_size,
            strategy="ddp" if rank.world_size > 1 else "auto",
            max_steps=CYCLE * (len(plan) + 1), max_epochs=-1,
            precision=cell.precision.lightning, callbacks=[Late(), recorder],
            logger=False, plugins=[LightningEnvironment()], enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        # As in our cells: Lightning's flag "was there a SIGTERM" waits for the device every batch,
        # and so for the delayed rank, outside of any phase of ours.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
        trainer.fit(module, loader)
        recorder.close(trainer, module)
        series = read_steps(CellFolder(folder).steps_path(rank.rank), rank.rank)
    columns = {name: series.column(name, timeline) for name in (*PHASES, "step")}
    steps = [{name: float(c[i]) for name, c in columns.items()} for i in range(len(series))]
    return steps, inject.taken_ms()


def delay_module(module: Any, inject: Injector) -> None:
    """Call ``inject`` inside every phase that belongs to the module."""
    kind = type(module)

    class Delayed(kind):  # type: ignore[misc, valid-type]
        def transfer_batch_to_device(self, *args: Any, **kwargs: Any) -> Any:
            inject("h2d")
            return super().transfer_batch_to_device(*args, **kwargs)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            inject("forward")
            loss = super().training_step(*args, **kwargs)
            loss.register_hook(lambda gradient: inject("backward"))
            return loss

        def on_train_batch_end(self, *args: Any) -> None:
            inject("other")

        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            # Lightning runs forward and backward inside step(): only after them it is its own.
            optimizer.register_step_post_hook(lambda *_: inject("optimizer"))
            return optimizer

    module.__class__ = Delayed


def delay_loader(loader: Any, inject: Injector) -> None:
    """Call ``inject`` whenever a batch is put together."""
    collate = loader.collate_fn

    def delayed(samples: Any) -> Any:
        inject("data_wait")
        return collate(samples)

    loader.collate_fn = delayed


class Excess:
    """How much longer something took in the delayed steps than in those beside them, ms."""

    def __init__(self, differences: Sequence[float]) -> None:
        from scalewise.analysis import estimate_mean

        known = [one for one in differences if not math.isnan(one)]
        # A stall that has nothing to do with the delay must not decide about the mean.
        trimmed = sorted(known)[len(known) // 10 : len(known) - len(known) // 10]
        found = estimate_mean(trimmed) if trimmed else None
        self.ms = found.value if found else 0.0
        interval = found.interval if found else None
        self.half_width_ms = (interval.high - interval.low) / 2 if interval else 0.0


@dataclass
class Put:
    """What one delay in one phase did: excess of every phase, of every rank a dictionary."""

    asked_ms: float
    target: int
    phase: str
    taken: dict[int, list[float]]
    """Ms of each delay, of each delayed rank."""
    error: dict[int, Excess]
    """What remains of the phase when the delays are subtracted, of each delayed rank."""
    excess: list[dict[str, Excess]]
    later: list[dict[str, Excess]]
    """In the step after."""

    def over_both(self, rank: int, phase: str) -> float:
        """Waiting for a delayed rank is real, and depends on who was ahead before: ms."""
        return self.excess[rank][phase].ms + self.later[rank][phase].ms


def judge(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Excess of every phase on every rank, for each delay, rank and phase it was put in."""
    plan = [tuple(turn) for turn in ranks[0]["plan"]]
    found = []
    for ms in ranks[0]["runs"]:
        put = [measure(ranks, plan, ms, *turn) for turn in dict.fromkeys(plan)]
        slowed = [
            max((p.over_both(r, "backward") for p in put if r not in p.taken), default=0.0)
            for r in range(len(ranks))
        ]
        found += [verdict(one, slowed) for one in put]
    return found


def measure(
    ranks: list[dict[str, Any]], plan: list[tuple[int, str]], ms: str, target: int, phase: str
) -> Put:
    turns_of = [i for i, turn in enumerate(plan) if turn == (target, phase)]
    delayed = range(len(ranks)) if target == ALL else [target]
    # What went through JSON has strings for keys.
    taken = {r: [ranks[r]["delays"][ms][str(i)] for i in turns_of] for r in delayed}
    excess, later = (
        [{name: excess_of(rank["runs"][ms], turns_of, name, after) for name in NAMES}
         for rank in ranks]
        for after in (0, 1)
    )  # fmt: skip
    error = {r: excess_of(ranks[r]["runs"][ms], turns_of, phase, 0, taken[r]) for r in delayed}
    return Put(float(ms), target, phase, taken, error, excess, later)


def excess_of(
    steps: list[dict[str, float]],
    turns_of: Sequence[int],
    name: str,
    after: int,
    taken: Sequence[float] | None = None,
) -> Excess:
    """Of the step ``after`` steps after the delay, over the mean of the resting ones around it.

    With ``taken``, what remains when each delay is subtracted.
    """
    differences = []
    for number, turn in enumerate(turns_of):
        start = CYCLE * (turn + 1)
        rest = (steps[start - 1][name] + steps[start + 2][name]) / 2
        known = 0.0 if taken is None else taken[number]
        differences.append(steps[start + after][name] - rest - known)
    return Excess(differences)


def verdict(put: Put, slowed_ms: Sequence[float]) -> dict[str, Any]:
    """What was found where, against what must be.

    ``slowed_ms``: how much longer the backward of each rank takes at most while it waits.
    """
    taken_ms = statistics.fmean(itertools.chain(*put.taken.values()))
    tolerance = max(TOLERANCE * taken_ms, LEAST_MS)
    alone = put.target != ALL and len(put.excess) > 1
    worst, place, widest = 0.0, "", 0.0
    relieved = 0.0
    for rank, phases in enumerate(put.excess):
        delayed = rank in put.taken
        for name in PHASES:
            here = delayed and name == put.phase
            if not delayed and name in ("backward", "exposed_comm"):
                continue
            if alone and name == "exposed_comm" and not here:
                continue  # the delayed rank itself has less to wait for
            one = put.error[rank] if here else phases[name]
            off = one.ms
            if alone and name == "backward" and off < 0:
                relieved = min(-off, max(slowed_ms[rank], 0.0))
                off += relieved
            widest = max(widest, one.half_width_ms)
            if abs(off) > worst:
                worst, place = abs(off), f"rank {rank} {name}"
    first = min(put.taken)
    others = [rank for rank in range(len(put.excess)) if rank not in put.taken]
    return {
        "asked_ms": put.asked_ms, "taken_ms": taken_ms, "rank": put.target, "phase": put.phase,
        "found_ms": put.excess[first][put.phase].ms,
        "step_grew_ms": put.excess[first]["step"].ms,
        "others_waited_ms": [put.over_both(rank, "exposed_comm") for rank in others],
        "others_slowed_ms": [put.over_both(rank, "backward") for rank in others],
        "relieved_ms": relieved, "largest_error_ms": worst,
        "where": place, "interval_half_width_ms": widest, "tolerance_ms": tolerance,
        "within": worst <= tolerance, "resolved": widest <= tolerance,
        "excess": [{name: one.ms for name, one in phases.items()} for phases in put.excess],
        "next_step": [{name: one.ms for name, one in phases.items()} for phases in put.later],
    }  # fmt: skip


def show(found: list[dict[str, Any]], timeline: str) -> None:
    print(
        f"{'asked':>6} {'took':>8} rank phase         found ms  step grew  others waited  slowed  "
        f"relieved  largest error ({timeline} timeline, ms)"
    )
    for one in found:
        waited, slowed = (
            ", ".join(f"{ms:.3f}" for ms in one[key]) or "-"
            for key in ("others_waited_ms", "others_slowed_ms")
        )
        told = "  NOT RESOLVED" if not one["resolved"] else ""
        told = told if one["within"] else told + "  NOT WITHIN 10 %"
        rank = "all" if one["rank"] == ALL else one["rank"]
        print(
            f"{one['asked_ms']:6g} {one['taken_ms']:8.3f} {rank:>4} {one['phase']:12} "
            f"{one['found_ms']:9.3f}  {one['step_grew_ms']:9.3f}  {waited:>13}  {slowed:>6}  "
            f"{one['relieved_ms']:8.3f}  "
            f"{one['largest_error_ms']:.3f} +- {one['interval_half_width_ms']:.3f} at "
            f"{one['where']}{told}"
        )
    good = sum(one["within"] for one in found)
    clear = sum(one["resolved"] for one in found)
    print(
        f"{good} of {len(found)} within 10 % (at least {1e3 * LEAST_MS:g} us); intervals narrow "
        f"enough to tell: {clear}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""A known delay in each phase of each rank in turn: it must show up there, and nowhere else.

    python benchmarks/anatomy_injection.py [--devices 2] [--workload gpt2_short] [--ms 0.2 1 10]

Every third step of one fit is delayed in one phase on one rank; the step after it rests, and the
one after that is what it is compared with. On a GPU the delay is a kernel that spins
(``torch.cuda._sleep``, calibrated) in the compute stream, read on the device timeline; with
``--host`` it is a spinning host thread, read on the host timeline. A host that is far ahead of its
GPU hides delays of its own: so ``--host`` wants a launch-bound workload (``large``), and the other
one that keeps the GPU busy (``gpt2_short``): a launch-bound GPU catches up in its next gap.

What a delayed rank adds to a synchronous step, the others spend waiting for it: their
``exposed_comm`` of that step (of the next one, where the delay comes after the reduction) grows by
up to as much, and is printed. In no other phase of any rank may anything appear. Figures are
medians over the turns of the difference from the resting step. Exit status 0 if every phase is
within 10 % of the delay (at least 15 us).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from team import across_ranks, answer, devices, my_place, parts, run_team

WORKLOADS = {
    "gpt2": (
        "model=gpt2", "dataset=stdlib", "optimizer=adamw", "precision=bf16-mixed", "batch_size=16",
        "scaling=weak",
    ),
    "gpt2_short": (
        "model=gpt2", "model.layers=2", "dataset=stdlib", "optimizer=adamw",
        "precision=bf16-mixed", "batch_size=16", "scaling=weak",
    ),
    "large": ("model=large", "dataset=tabular", "batch_size=64", "scaling=weak"),
}  # fmt: skip
PHASES = ("data_wait", "h2d", "forward", "backward", "exposed_comm", "optimizer", "other")
CYCLE = 3
"""Steps of a turn: delayed, resting, compared with."""
TOLERANCE, LEAST_MS = 0.10, 0.015


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", default="gpt2_short", choices=WORKLOADS)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--host", action="store_true", help="spin on the host")
    parser.add_argument("--ms", nargs="+", type=float, default=[0.2, 1.0, 10.0])
    parser.add_argument("--each", type=int, default=9, help="turns of a phase on a rank")
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
    return 0 if all(one["within"] for one in found) else 1


def turns(ranks: int, each: int) -> list[tuple[int, str]]:
    """Rank and phase of every turn, all alternating so that a drift meets them alike."""
    phases = PHASES if ranks > 1 else tuple(p for p in PHASES if p != "exposed_comm")
    return list(itertools.product(range(ranks), phases)) * each


def rank_main(arguments: argparse.Namespace) -> dict[str, Any]:
    """The phases of every step of this rank, for each delay."""
    overrides = [
        *WORKLOADS[arguments.workload], *across_ranks(), "validation=never", "tracking=none",
        "dataset.loader.num_workers=0",
    ]  # fmt: skip
    cell, rank = my_place(overrides)
    from scalewise.train.precision import apply_precision

    apply_precision(cell.precision)
    plan = turns(rank.world_size, arguments.each)
    on_gpu = rank.device.kind == "cuda"
    timeline: Literal["host", "device"] = "host" if arguments.host or not on_gpu else "device"
    delay = spin if timeline == "host" else device_sleep()
    runs = {}
    for ms in arguments.ms:
        steps = one_fit(cell, rank, plan, lambda ms=ms: delay(ms), timeline)
        runs[str(ms)] = steps
    return {"timeline": timeline, "plan": plan, "runs": runs}


def spin(ms: float) -> None:
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        pass


def device_sleep() -> Callable[[float], None]:
    """Spins in the current stream; cycles a millisecond are measured first, at full clocks."""
    import torch

    cycles = 20_000_000
    rates = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        rates.append(cycles / begin.elapsed_time(end))
    per_ms = statistics.median(rates[3:])
    return lambda ms: torch.cuda._sleep(int(ms * per_ms))


class Injector:
    """Delays the phase whose turn it is; each phase counts the steps for itself."""

    def __init__(self, plan: list[tuple[int, str]], rank: int, delay: Callable[[], None]) -> None:
        self.plan = plan
        self.rank = rank
        self.delay = delay
        self.counts = {phase: itertools.count() for phase in PHASES}

    def __call__(self, phase: str) -> None:
        # What comes after a step's last mark opens the next step.
        step = next(self.counts[phase]) + (phase == "other")
        turn, place = divmod(step - CYCLE, CYCLE)
        if place == 0 and 0 <= turn < len(self.plan) and self.plan[turn] == (self.rank, phase):
            self.delay()


def one_fit(
    cell: Any, rank: Any, plan: list[tuple[int, str]], delay: Callable[[], None], timeline: str
) -> list[dict[str, float]]:
    """Train with the delays and return the phases of every step in ms."""
    import pytorch_lightning as pl
    import torch
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    from scalewise.records import CellFolder, read_steps
    from scalewise.train.callbacks.steps import StepTimer

    torch.manual_seed(cell.seed)
    module, loader = parts(cell, rank)
    inject = Injector(plan, rank.rank, delay)
    delay_module(module, inject)
    delay_loader(loader, inject)

    class Late(pl.Callback):
        """Comes before the step timer: between the end of the reduction and its mark."""

        def on_after_backward(self, *args: Any) -> None:
            inject("exposed_comm")

    with tempfile.TemporaryDirectory() as folder:
        timer = StepTimer(CellFolder(folder))
        trainer = pl.Trainer(
            accelerator="gpu" if rank.device.kind == "cuda" else "cpu", devices=rank.world_size,
            strategy="ddp" if rank.world_size > 1 else "auto",
            max_steps=CYCLE * (len(plan) + 1), max_epochs=-1,
            precision=cell.precision.lightning, callbacks=[Late(), timer],
            logger=False, plugins=[LightningEnvironment()], enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        # As in our cells: Lightning's flag "was there a SIGTERM" waits for the device every batch,
        # and so for the delayed rank, outside of any phase of ours.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
        trainer.fit(module, loader)
        timer.drain(wait=True)
        timer.close()
        series = read_steps(CellFolder(folder).steps_path(rank.rank), rank.rank)
    columns = {phase: series.column(phase, timeline) for phase in PHASES}
    return [{p: float(c[i]) for p, c in columns.items()} for i in range(len(series))]


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


def judge(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Excess of every phase on every rank, for each delay, rank and phase it was put in."""
    plan = [tuple(turn) for turn in ranks[0]["plan"]]
    found = []
    for ms in ranks[0]["runs"]:
        for target, phase in dict.fromkeys(plan):
            starts = [CYCLE * (i + 1) for i, turn in enumerate(plan) if turn == (target, phase)]
            excess = [
                {p: excess_ms(rank["runs"][ms], starts, p, 0) for p in PHASES} for rank in ranks
            ]
            later = [
                {p: excess_ms(rank["runs"][ms], starts, p, 1) for p in PHASES} for rank in ranks
            ]
            found.append(verdict(float(ms), target, phase, excess, later))
    return found


def excess_ms(steps: list[dict[str, float]], starts: list[int], phase: str, after: int) -> float:
    """Median difference of the step ``after`` steps after the delay from the one that rests."""
    pairs = [(steps[s + after][phase], steps[s + 2][phase]) for s in starts]
    differences = [delayed - rest for delayed, rest in pairs if delayed == delayed]
    return statistics.median(differences) if differences else 0.0


def verdict(
    ms: float,
    target: int,
    phase: str,
    excess: list[dict[str, float]],
    later: list[dict[str, float]],
) -> dict[str, Any]:
    """What was found where, against what must be."""
    worst, place = 0.0, ""
    waited = []
    for rank, phases in enumerate(excess):
        for p, value in phases.items():
            if p == "exposed_comm" and (rank, p) != (target, phase):
                # Waiting for a delayed rank is real, and depends on who was ahead before.
                if rank != target:
                    waited.append(value + later[rank][p])
                continue
            off = abs(value - (ms if (rank, p) == (target, phase) else 0.0))
            if off > worst:
                worst, place = off, f"rank {rank} {p}"
    return {
        "ms": ms, "rank": target, "phase": phase, "found_ms": excess[target][phase],
        "others_waited_ms": waited, "largest_error_ms": worst, "where": place,
        "within": worst <= max(TOLERANCE * ms, LEAST_MS), "excess": excess, "next_step": later,
    }  # fmt: skip


def show(found: list[dict[str, Any]], timeline: str) -> None:
    print(f"{'delay':>6} rank phase         found ms  others waited  largest error ({timeline})")
    for one in found:
        waited = ", ".join(f"{ms:.3f}" for ms in one["others_waited_ms"]) or "-"
        print(
            f"{one['ms']:6g} {one['rank']:4} {one['phase']:12} {one['found_ms']:9.3f}  "
            f"{waited:>13}  {one['largest_error_ms']:.3f} at {one['where']}"
            f"{'' if one['within'] else '  NOT WITHIN 10 %'}"
        )
    good = sum(one["within"] for one in found)
    print(f"{good} of {len(found)} within 10 % (at least {1e3 * LEAST_MS:g} us)", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

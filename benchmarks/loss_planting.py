"""Does a planted delay land in its loss of the budget? On two devices, at 1, 5 and 20 ms a step.

    python benchmarks/loss_planting.py [--device cpu|cuda] [--devices 2] [--delays NAME ...]
                                       [--ms 1 5 20] [--records FOLDER] [--judge]

Pairs without any delay run beside pairs with one, in one sweep in random order. Each delay strikes
the loader, the host, the device, one rank or both in turns; a stall strikes one step in forty. For
each run one line: what it cost against the undelayed pairs, and how much of that its loss gained.

On GPUs two networks are delayed: GPT-2 124M, whose device sets the pace, and the medium MLP, whose
host does. ``--records`` keeps the sweep and finishes it when run again; ``--judge`` runs nothing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from faults.plant import make_pause
from hydra import compose, initialize_config_dir

from scalewise.analysis import Budget, Configuration, configurations, load_sweep, make_budget
from scalewise.config import conf_dir, resolve
from scalewise.sweep import make_display
from scalewise.sweep.local_executor import local_engine
from scalewise.sweep.plan import plan, request

MAGNITUDES_MS = (1.0, 5.0, 20.0)
STALL_EVERY = 40
"""One step in so many takes as many times the delay."""

COMMON = ("strategy=ddp", "validation=never", "tracking=none", "monitor.interval_s=0.25")


@dataclass(frozen=True)
class Delay:
    """Where a delay strikes, and the loss that it is to land in."""

    name: str
    loss: str
    where: str
    """``loader``, ``host`` or ``device``."""
    who: str = "all"
    """``all`` ranks, rank ``1`` alone, or both in ``turns``."""
    is_stall: bool = False


CPU = (
    Delay("device work", "device_work", "host"),
    Delay("loader", "loader", "loader"),
    Delay("one rank", "waiting", "host", "1"),
    Delay("ranks in turns", "waiting", "host", "turns"),
    Delay("stall", "long_steps", "host", is_stall=True),
)
DEVICE_BOUND = (
    Delay("device work", "device_work", "device"),
    Delay("one rank", "waiting", "device", "1"),
    Delay("ranks in turns", "waiting", "device", "turns"),
    Delay("stall", "long_steps", "device", is_stall=True),
)
HOST_BOUND = (
    Delay("host", "host_late", "host"),
    Delay("loader", "loader", "loader"),
    Delay("loader of one rank", "waiting", "loader", "1"),
)


@dataclass(frozen=True)
class Workload:
    """A network on several devices, and the delays that are planted into it."""

    name: str
    overrides: tuple[str, ...]
    step_ms: float
    """About; a window is as many steps as take :data:`WINDOW_S` with the delay."""
    delays: tuple[Delay, ...]

    def steps(self, ms: float) -> tuple[str, ...]:
        count = max(60, round(1e3 * WINDOW_S / (self.step_ms + ms)))
        return (f"max_steps={count + 20}", "warmup_steps=20")


WINDOW_S = 2.5
WORKLOADS = {
    "cpu": (
        Workload("mlp_large", ("hardware=cpu", "hardware.cores_per_device=1", "model=large",
                               "dataset=tabular", "batch_size=512"), 45.0, CPU),
    ),
    "cuda": (
        Workload("gpt2", ("hardware=auto", "hardware.kind=cuda", "model=gpt2",
                          "dataset=synthetic_tokens", "dataset.train_samples=8192",
                          "optimizer=adamw", "precision=bf16-mixed", "batch_size=32"),
                 45.0, DEVICE_BOUND),
        Workload("mlp_medium", ("hardware=auto", "hardware.kind=cuda", "model=medium",
                                "dataset=tabular", "dataset.samples=65536", "batch_size=128"),
                 2.6, HOST_BOUND),
    ),
}  # fmt: skip


class PlantedDelay(pl.Callback):
    """Delays every step of some ranks in one place.

    Args:
        delay: its name, for the plan alone.
        ms: a step, mean over steps.
        where: ``loader``, ``host`` (at the begin of forward) or ``device`` (its stream, there).
        who: ``all``, ``1`` or ``turns``.
        every: strike one step in so many, for as many times ``ms``.
    """

    def __init__(self, delay: str, ms: float, where: str, who: str, every: int = 1) -> None:
        self.ms, self.where, self.who, self.every = ms * every, where, str(who), every
        self._steps = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        rank, ranks = trainer.global_rank, trainer.world_size
        if self.who == "1" and rank != 1:
            return
        if self.where == "loader":
            loader: Any = trainer.fit_loop._data_source.instance
            loader.collate_fn = _after(lambda: time.sleep(self.ms / 1e3), loader.collate_fn)
            return
        kind = trainer.strategy.root_device.type if self.where == "device" else "cpu"
        pause = make_pause(kind, self.ms)

        def strike() -> None:
            self._steps += 1
            if self.who == "turns" and self._steps % ranks != rank:
                return
            if self._steps % self.every == 0:
                pause()

        pl_module.training_step = _after(strike, pl_module.training_step)  # type: ignore[method-assign]


def _after(strike: Callable[[], None], inner: Callable[..., Any]) -> Callable[..., Any]:
    def delayed(*args: Any, **kwargs: Any) -> Any:
        strike()
        return inner(*args, **kwargs)

    return delayed


def cells(
    workload: Workload,
    devices: int,
    healthy: int,
    names: Sequence[str],
    magnitudes: Sequence[float],
) -> Iterator[tuple[str, ...]]:
    """The overrides of every configuration, the undelayed one first."""
    common = (*workload.overrides, *COMMON, f"strategy.devices={devices}")
    yield (*common, *workload.steps(0.0), f"repeats={healthy}")
    for delay in workload.delays:
        for ms in magnitudes if not names or delay.name in names else ():
            planted = {
                "_target_": "loss_planting.PlantedDelay", "delay": f"'{delay.name}'", "ms": ms,
                "where": delay.where, "who": f"'{delay.who}'",
                "every": STALL_EVERY if delay.is_stall else 1,
            }  # fmt: skip
            each = tuple(f"+fault.{key}={value}" for key, value in planted.items())
            yield (*common, *workload.steps(ms), "repeats=1", *each)


def run(options: argparse.Namespace, folder: Path) -> None:
    """Run what is not done yet."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # ranks import the delays
    requests = []
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for workload in WORKLOADS[options.device]:
            wanted = (options.devices, options.healthy, options.delays, options.ms)
            for overrides in cells(workload, *wanted):
                composed = compose(config_name="config", overrides=list(overrides))
                requests.append(request(overrides, resolve(composed)))
    local_engine(folder, "exclusive", make_display()).run(plan(requests, order_seed=1))


def _fault(config: Configuration) -> dict[str, Any]:
    found = (config.cells[0].config or {}).get("fault")
    return dict(found) if found else {}


def judge(device: str, magnitudes: Sequence[float], folder: Path) -> None:
    """Print one line for each delayed run."""
    found = configurations(load_sweep(folder))
    print(f"torch {torch.__version__}; ms a step")
    print("| network | delay | planted | cost | lands in | landed | of what was planted |")
    print("|---|---|---:|---:|---|---:|---:|")
    for workload in WORKLOADS[device]:
        own = [c for c in found if set(workload.overrides) <= set(c.cells[0].planned.overrides)]
        budgets = [(c, b) for c in own if c.runs and (b := make_budget(c)) is not None]
        healthy = [(c, b) for c, b in budgets if not _fault(c)]
        if not healthy:
            print(f"| {workload.name} | no undelayed pair is done | | | | | |")
            continue
        undelayed = parts(*healthy[0])
        for delay in workload.delays:
            for ms in magnitudes:
                for config, budget in budgets:
                    fault = _fault(config)
                    if (fault.get("delay"), fault.get("ms")) == (delay.name, ms):
                        told = parts(config, budget)
                        cost = sum(told.values()) - sum(undelayed.values())
                        landed = told.get(delay.loss, 0.0) - undelayed.get(delay.loss, 0.0)
                        print(
                            f"| {workload.name} | {delay.name} | {ms:g} | {cost:.2f} | "
                            f"{delay.loss} | {landed:.2f} | {landed / ms:.0%} |"
                        )


def parts(config: Configuration, budget: Budget) -> dict[str, float]:
    """Ms of every part of a step, the device's work among them."""
    told = {loss.cause: loss.ms for loss in budget.losses}
    return {"device_work": budget.work_ms, **told}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", choices=tuple(WORKLOADS), default="cpu")
    parser.add_argument("--healthy", type=int, default=3, help="undelayed pairs (default 3)")
    parser.add_argument("--devices", type=int, default=2, help="two or more (default 2)")
    names = sorted({d.name for each in WORKLOADS.values() for w in each for d in w.delays})
    parser.add_argument("--delays", nargs="*", default=[], choices=names, metavar="NAME",
                        help="these alone: " + ", ".join(names))  # fmt: skip
    parser.add_argument("--ms", nargs="+", type=float, default=MAGNITUDES_MS, help="each a step")
    parser.add_argument("--records", type=Path, help="keep the sweep here, or finish the one there")
    parser.add_argument("--judge", action="store_true", help="run nothing: judge --records")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scalewise-delays-") as temporary:
        folder = options.records or Path(temporary)
        if not options.judge:
            run(options, folder)
        judge(options.device, options.ms, folder)


if __name__ == "__main__":
    main()

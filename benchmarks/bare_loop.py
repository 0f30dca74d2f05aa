"""Step time of a cell with everything on, and of plain Lightning, over a bare PyTorch loop.

    python benchmarks/bare_loop.py [--workloads medium large gpt2_tiny] [--repeats 5] [--out FILE]

Three arms train the same model on the same data with the same optimizer and precision, each run
in a fresh process on the same cores or GPU, interleaved in a random order with a fixed seed:

* ``bare``: a for loop over the same loader;
* ``lightning``: a plain ``Trainer`` without logger, progress bar and checkpoints, and the loss
  logged in ``training_step`` as Lightning's own examples do;
* ``scalewise``: ``train.py`` with step clocks, metrics, shard audit, device sampling.

A run's step time is the time of its timed steps over their number: on a GPU between two CUDA
events in the bare and plain arms and on the recorded device time line in ours, else by
``perf_counter``. The ratio's interval is a 95 % one over runs.

Fresh processes differ by 10 to 30 % where the host limits the step. What measuring itself costs
there, ``overhead.py`` finds inside one run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from team import compose

ROOT = Path(__file__).resolve().parents[1]

WORKLOADS: dict[str, tuple[str, ...]] = {
    "medium": ("model=medium", "dataset=tabular", "batch_size=128"),
    "large": ("model=large", "dataset=tabular", "batch_size=64"),
    "gpt2_tiny": ("model=gpt2_tiny", "dataset=stdlib", "optimizer=adamw", "batch_size=32"),
    "gpt2": (
        "model=gpt2", "dataset=stdlib", "optimizer=adamw", "precision=bf16-mixed", "batch_size=32",
    ),
}  # fmt: skip
ARMS = ("bare", "lightning", "scalewise")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--workloads", nargs="+", default=["medium", "large", "gpt2_tiny"], choices=list(WORKLOADS)
    )
    parser.add_argument(
        "--steps", type=int, default=None, help="timed steps (default: by workload)"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the order of runs")
    parser.add_argument("--out", type=Path, default=None, help="where every run is kept, as JSON")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        print(json.dumps({"step_time_ms": run_arm(arguments.arm, arguments.config)}))
        return 0
    runs = measure(arguments.workloads, arguments.steps, arguments.repeats, arguments.seed)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(runs, indent=1) + "\n")
    show(runs)
    return 0


def measure(
    workloads: list[str], steps: int | None, repeats: int, seed: int
) -> list[dict[str, Any]]:
    """Every run of every arm, interleaved."""
    order = [(w, arm, r) for r in range(repeats) for w in workloads for arm in ARMS]
    # Shuffled within each repeat: a drift of the host meets all arms alike.
    shuffler = random.Random(seed)
    order.sort(key=lambda entry: (entry[2], shuffler.random()))
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, (workload, arm, repeat) in enumerate(order):
            timed = steps or (60 if workload.startswith("gpt2") else 600)
            folder = Path(scratch) / str(number)
            ms = one_run(workload, arm, timed, folder)
            runs.append({"workload": workload, "arm": arm, "repeat": repeat, "step_time_ms": ms})
            print(f"[{number + 1}/{len(order)}] {workload:10} {arm:10} {ms:8.4f} ms", flush=True)
    return runs


def one_run(workload: str, arm: str, timed: int, folder: Path) -> float:
    """Mean step time in ms of one fresh process."""
    warmup = max(20, timed // 10)
    overrides = [
        *WORKLOADS[workload], f"max_steps={timed + warmup}", f"warmup_steps={warmup}",
        "validation=never", "tracking=none", "hardware=auto",
    ]  # fmt: skip
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if arm == "scalewise":
        command = [sys.executable, str(ROOT / "train.py"), *overrides, f"hydra.run.dir={folder}"]
        subprocess.run(command, check=True, env=environment, capture_output=True)
        return recorded_ms(folder)
    folder.mkdir(parents=True)
    config = folder / "config.json"
    config.write_text(json.dumps(compose(overrides)))
    command = [sys.executable, __file__, "--arm", arm, "--config", str(config)]
    output = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return float(json.loads(output.stdout.splitlines()[-1])["step_time_ms"])


def recorded_ms(folder: Path) -> float:
    from scalewise.analysis import common_steps, measure_throughput
    from scalewise.records import SweepFolder, read_steps

    _, cell = next(SweepFolder(folder).cells())
    series = read_steps(cell.steps_path(0), 0)
    return measure_throughput(common_steps([series], 1)).step_time_ms.mean


def run_arm(arm: str, config: Path) -> float:
    """Train bare or with plain Lightning in this process; mean step time in ms."""
    from scalewise.config import build_cell
    from scalewise.gpu import discover

    cell = build_cell(json.loads(config.read_text()))
    slot = discover(cell.hardware).slots[0]
    os.sched_setaffinity(0, slot.cores)
    os.environ["OMP_NUM_THREADS"] = str(len(slot.cores))
    import torch

    from scalewise.train import RankContext
    from scalewise.train.build import build_data, build_module, data_share
    from scalewise.train.execution import apply_precision

    if slot.kind == "cpu":
        torch.set_num_threads(len(slot.cores))
    torch.manual_seed(cell.seed)
    apply_precision(cell.precision)
    rank = RankContext(0, 0, 1, slot)
    module = build_module(cell, rank)
    loader = build_data(cell, rank, module, data_share(cell, rank))["train_dataloaders"]
    train = bare_loop if arm == "bare" else plain_lightning
    return train(cell, module, loader, slot.kind)


class Stopwatch:
    """Time between two moments: CUDA events on a GPU, else ``perf_counter``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.marks: list[Any] = []

    def mark(self) -> None:
        import torch

        if self.kind == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def ms(self) -> float:
        first, last = self.marks
        if self.kind == "cuda":
            last.synchronize()
            return float(first.elapsed_time(last))
        return float(last - first) * 1e3


def bare_loop(cell: Any, module: Any, loader: Any, kind: str) -> float:
    """The loop a careful person writes by hand."""
    import torch

    device = torch.device(kind)
    network = module.network.to(device)
    optimizer = module.configure_optimizers()
    loss_of = network.loss
    autocast = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(
        cell.precision.lightning
    )
    assert autocast is not torch.float16, "this loop has no gradient scaler"
    watch, step, epoch = Stopwatch(kind), 0, 0
    network.train()
    while True:
        loader.batch_sampler.set_epoch(epoch)
        for batch in loader:
            if step == cell.warmup_steps:
                watch.mark()
            x, target = (part.to(device, non_blocking=True) for part in batch)
            with torch.autocast(kind, dtype=autocast, enabled=autocast is not None):
                loss = loss_of(network(x), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step == cell.max_steps:
                watch.mark()
                return watch.ms() / (step - cell.warmup_steps)
        epoch += 1


def plain_lightning(cell: Any, module: Any, loader: Any, kind: str) -> float:
    """The Trainer as its documentation shows it, less logger, progress bar and checkpoints."""
    import pytorch_lightning as pl

    class Logging(type(module)):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss", loss)
            return loss

    class Timing(pl.Callback):
        def __init__(self) -> None:
            self.watch = Stopwatch(kind)

        def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
            if trainer.global_step in (cell.warmup_steps, cell.max_steps):
                self.watch.mark()

    module.__class__ = Logging
    timing = Timing()
    trainer = pl.Trainer(
        accelerator="gpu" if kind == "cuda" else "cpu", devices=1, max_steps=cell.max_steps,
        precision=cell.precision.lightning, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[timing],
    )  # fmt: skip
    trainer.fit(module, loader)
    return timing.watch.ms() / (cell.max_steps - cell.warmup_steps)


def show(runs: list[dict[str, Any]]) -> None:
    """Step time of each arm, and its ratio to the bare loop with its interval."""
    from scalewise.analysis import estimate_mean
    from scalewise.analysis.statistics import estimate_ratio

    print(f"\n{'workload':11} {'arm':10} {'step ms':>10} {'over bare':>10}   95 % interval")
    for workload in dict.fromkeys(run["workload"] for run in runs):
        times = {
            arm: [r["step_time_ms"] for r in runs if (r["workload"], r["arm"]) == (workload, arm)]
            for arm in ARMS
        }
        for arm in ARMS:
            mean = estimate_mean(times[arm]).value
            ratio = estimate_ratio(times[arm], times["bare"])
            interval = ratio.interval
            span = f"{interval.low:.3f} to {interval.high:.3f}" if interval else "one run"
            print(f"{workload:11} {arm:10} {mean:10.4f} {ratio.value:10.3f}   {span}")


if __name__ == "__main__":
    raise SystemExit(main())

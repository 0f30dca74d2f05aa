"""Step time of a cell with everything on, and of plain Lightning, over a bare PyTorch loop.

    python benchmarks/bare_loop.py [--workloads medium large gpt2_tiny] [--repeats 5] [--out FILE]
        [--arms bare scalewise by_hand cudagraph] [--devices 2]

Arms train the same model on the same data with the same optimizer and precision, each run
in a fresh process on the same cores or GPU, interleaved in a random order with a fixed seed:

* ``bare``: a for loop over the same loader;
* ``lightning``: a plain ``Trainer`` without logger, progress bar and checkpoints, and the loss
  logged in ``training_step`` as Lightning's own examples do;
* ``scalewise``: ``train.py`` with step clocks, metrics, shard audit, device sampling;
* ``by_hand``, on a GPU: a step captured by hand as one CUDA graph and replayed. Its loader hands
  over the samples of 32 steps at once, as that of ``cudagraph`` does;
* ``cudagraph``: ``train.py`` with ``execution=cudagraph``.

A run's step time is the time of its timed steps over their number: on a GPU between two CUDA
events in the bare and plain arms and on the recorded device time line in ours, else by
``perf_counter``. The ratio's interval is a 95 % one over runs.

Fresh processes differ by 10 to 30 % where the host limits the step. What measuring itself costs
there, ``overhead.py`` finds inside one run. On several devices every arm trains under DDP, and a
run's step time is that of its slowest rank.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from team import (
    ROOT,
    WORKLOADS,
    across_ranks,
    answer,
    between,
    endless,
    keep,
    mark,
    my_place,
    parts,
    python_path,
    run_team,
    step_by_hand,
)

ARMS = ("bare", "lightning", "scalewise", "by_hand", "cudagraph")
OVER = {"lightning": "bare", "scalewise": "bare", "cudagraph": "by_hand"}
"""With which arm one is compared."""
REPLAYED = ("by_hand", "cudagraph")
STEPS_PER_BATCH = 32
"""Of an arm that replays a graph: the default of ``execution.steps_per_batch``."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--workloads", nargs="+", default=["medium", "large", "gpt2_tiny"], choices=WORKLOADS
    )
    parser.add_argument("--arms", nargs="+", default=ARMS[:3], choices=ARMS)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--steps", type=int, help="timed steps (default: by workload)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the order of runs")
    parser.add_argument("--out", type=Path, default=None, help="where every run is kept, as JSON")
    parser.add_argument("--as-rank", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        arm, *overrides = arguments.as_rank
        answer(run_arm(arm, overrides))
        return 0
    runs = measure(arguments)
    show(runs, arguments.arms)
    return 0


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every run of every arm, interleaved."""
    each = [(w, arm) for w in arguments.workloads for arm in arguments.arms]
    # Shuffled within each repeat: a drift of the host meets all arms alike.
    rng, runs = random.Random(arguments.seed), []
    for repeat in range(arguments.repeats):
        for workload, arm in rng.sample(each, len(each)):
            steps = arguments.steps or (60 if workload.startswith("gpt2") else 1200)
            steps *= 15 if arm in REPLAYED else 1
            ms = one_run(workload, arm, steps, arguments.devices)
            runs.append({"workload": workload, "arm": arm, "repeat": repeat, "step_time_ms": ms})
            print(f"[{repeat + 1}] {workload:10} {arm:10} {ms:8.4f} ms", flush=True)
            keep(arguments.out, runs)  # a call that is cut off keeps what it had
    return runs


def one_run(workload: str, arm: str, timed: int, devices: int) -> float:
    """Mean step time in ms of one fresh process."""
    warmup = max(20, timed // 10)
    overrides = [
        *WORKLOADS[workload], f"max_steps={timed + warmup}", f"warmup_steps={warmup}",
        "hardware=auto",
    ]  # fmt: skip
    if arm not in ("scalewise", "cudagraph"):
        return float(max(run_team(__file__, [arm, *overrides], devices)))
    with tempfile.TemporaryDirectory() as folder:
        if arm == "cudagraph":
            overrides.append("execution=cudagraph")
        overrides += [*across_ranks(devices), f"hydra.run.dir={folder}"]
        command = [sys.executable, str(ROOT / "train.py"), *overrides]
        environment = {**os.environ, "PYTHONPATH": python_path()}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        return recorded_ms(Path(folder), devices)


def recorded_ms(folder: Path, devices: int) -> float:
    from scalewise.analysis.steps import find_long_steps, measure_throughput, timed_steps, without
    from scalewise.records import SweepFolder, read_steps

    _, cell = next(SweepFolder(folder).cells())
    ranks = timed_steps([read_steps(cell.steps_path(r), r) for r in range(devices)], devices)
    return measure_throughput(without(ranks, find_long_steps(ranks))).step_time_ms.mean


def run_arm(arm: str, overrides: list[str]) -> float:
    """Train bare or with plain Lightning in this process; mean step time in ms."""
    cell, rank = my_place(overrides)
    import torch

    from scalewise.train.execution import apply_precision

    torch.manual_seed(cell.seed)
    apply_precision(cell.precision)
    module, loader = parts(cell, rank, STEPS_PER_BATCH if arm == "by_hand" else 1)
    train = {"bare": bare_loop, "lightning": plain_lightning, "by_hand": graph_by_hand}[arm]
    return train(cell, module, loader, rank.device.kind)


def bare_loop(cell: Any, module: Any, loader: Any, kind: str) -> float:
    """The loop a careful person writes by hand."""
    import torch

    device = torch.device(kind)
    network, optimizer = across(module.network.to(device), kind), module.configure_optimizers()
    autocast = {"bf16-mixed": torch.bfloat16}.get(cell.precision.lightning)
    began = None
    network.train()
    for step, batch in enumerate(itertools.islice(endless(loader), cell.max_steps)):
        if step == cell.warmup_steps:
            began = mark(kind == "cuda")
        x, target = (part.to(device, non_blocking=True) for part in batch)
        context = torch.autocast(kind, dtype=autocast, enabled=autocast is not None)
        step_by_hand(network, optimizer, x, target, context)
    return between(began, mark(kind == "cuda")) / (cell.max_steps - cell.warmup_steps)


def across(network: Any, kind: str) -> Any:
    """The network, its gradients averaged over all ranks where there are several."""
    import torch

    if os.environ["WORLD_SIZE"] == "1":
        return network
    torch.distributed.init_process_group("nccl" if kind == "cuda" else "gloo")
    return torch.nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)


def graph_by_hand(cell: Any, module: Any, loader: Any, kind: str) -> float:
    """The bare loop's step as one CUDA graph, with samples copied into its inputs."""
    import torch

    from scalewise.train.execution.cudagraph import make_capturable

    optimizer = module.to(kind).configure_optimizers()
    make_capturable(optimizer)
    samples = loader.batch_sampler.samples_per_step

    def step() -> None:
        step_by_hand(network, optimizer, *inputs, nullcontext())

    done, began, graph = 0, None, torch.cuda.CUDAGraph()
    inputs = [part[:samples].to(kind) for part in next(iter(loader))]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        network = across(module.network, kind).train()
        for _ in range(11):  # DDP builds its buckets anew in the first, and times ten
            step()
        # Other threads, NCCL's among them, may call CUDA while this one captures.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
        for batch in endless(loader):
            moved = [part.to(kind, non_blocking=True) for part in batch]
            for parts_of_step in zip(*(part.split(samples) for part in moved), strict=True):
                if done == cell.warmup_steps:
                    began = mark(on_gpu=True)
                for own, given in zip(inputs, parts_of_step, strict=True):
                    own.copy_(given, non_blocking=True)
                graph.replay()
                done += 1
                if done == cell.max_steps:
                    return between(began, mark(on_gpu=True)) / (done - cell.warmup_steps)
    raise AssertionError("an endless loader ended")


def plain_lightning(cell: Any, module: Any, loader: Any, kind: str) -> float:
    """The Trainer as its documentation shows it, less logger, progress bar and checkpoints."""
    import pytorch_lightning as pl

    class Logging(type(module)):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss", loss)
            return loss

    class Timing(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
            if trainer.global_step in (cell.warmup_steps, cell.max_steps):
                moments.append(mark(kind == "cuda"))

    moments: list[Any] = []
    module.__class__ = Logging
    trainer = pl.Trainer(
        accelerator="gpu" if kind == "cuda" else "cpu", max_steps=cell.max_steps,
        devices=(ranks := int(os.environ["WORLD_SIZE"])), strategy="ddp" if ranks > 1 else "auto",
        precision=cell.precision.lightning, logger=False, enable_checkpointing=False,
        use_distributed_sampler=False,  # the loader shares the samples out
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Timing()],
    )  # fmt: skip
    trainer.fit(module, loader)
    return between(*moments) / (cell.max_steps - cell.warmup_steps)


def show(runs: list[dict[str, Any]], arms: Sequence[str]) -> None:
    """Step time of each arm, and its ratio to the arm it is compared with, with its interval."""
    from scalewise.analysis.statistics import estimate_mean, estimate_ratio

    print(f"\n{'workload':10} {'arm':10} {'step ms':>9} {'ratio':>7}  {'over':8} 95 % interval")
    for workload in dict.fromkeys(run["workload"] for run in runs):
        times = {
            arm: [r["step_time_ms"] for r in runs if (r["workload"], r["arm"]) == (workload, arm)]
            for arm in arms
        }
        for arm in arms:
            line = f"{workload:10} {arm:10} {estimate_mean(times[arm]).value:9.4f}"
            over = OVER.get(arm)
            if over in times:
                ratio = estimate_ratio(times[arm], times[over])
                interval = ratio.interval
                span = f"{interval.low:.3f} to {interval.high:.3f}" if interval else "one run"
                line += f" {ratio.value:7.3f}  {over:8} {span}"
            print(line)


if __name__ == "__main__":
    raise SystemExit(main())

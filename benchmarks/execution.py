"""Ways of executing the same step, beside a loop and a CUDA graph written by hand.

    python benchmarks/execution.py [--workloads medium large agnews_base] [--data device loader]
                                   [--devices 1] [--rounds 5] [--out FILE]
    python benchmarks/execution.py --workloads gpt2 --arms bare eager compile

Arms, interleaved in a random order with a fixed seed, all in one process a GPU:

* ``bare``: a for loop; under several devices with DistributedDataParallel;
* ``hand``: the same step captured by hand as one CUDA graph, all-reduce and optimizer included;
* ``lightning``: a plain ``Trainer`` without logger, progress bar and checkpoints;
* ``eager``, ``compile``, ``cudagraph``, ``cudagraph_compiled``: a cell of scalewise with that
  ``execution``, everything that a cell records included.

``--data device``: every batch is on the GPU before it is asked for. ``--data loader``: batches
come from host memory through the cell's own loader. A run's step time is the device time of its
timed steps over their number, between two CUDA events; ours from the records of each step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

WORKLOADS: dict[str, tuple[str, ...]] = {
    "medium": ("model=medium", "dataset=tabular", "batch_size=128", "precision=tf32"),
    "large": ("model=large", "dataset=tabular", "batch_size=64", "precision=tf32"),
    "agnews_base": (
        "model=text_base", "dataset=synthetic_text", "batch_size=32", "precision=tf32",
    ),
    "gpt2": (
        "model=gpt2", "dataset=synthetic_tokens", "dataset.train_samples=2048",
        "optimizer=adamw", "precision=bf16-mixed", "batch_size=32",
    ),
}  # fmt: skip
STEPS = {"medium": 1000, "large": 1000, "agnews_base": 300, "gpt2": 20}
"""Timed steps a run; of the replayed arms several times as many."""
ARMS = ("bare", "hand", "lightning", "eager", "compile", "cudagraph", "cudagraph_compiled")
GOALS = (
    ("cudagraph", "hand", 1, "at most", 1.10, ("medium", "large", "agnews_base")),
    ("cudagraph", "hand", 2, "at most", 1.25, ("medium", "large", "agnews_base")),
    ("bare", "cudagraph", 1, "at least", 8.0, ("medium", "large")),
    ("bare", "cudagraph", 1, "at least", 4.0, ("agnews_base",)),
    ("bare", "cudagraph_compiled", 1, "at least", 4.0, ("agnews_base",)),
    ("eager", "compile", 1, "at least", 1.15, ("gpt2",)),
)
"""Time of the first arm over that of the second, on one GPU or on several (2)."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--workloads", nargs="+", default=list(WORKLOADS)[:3], choices=list(WORKLOADS)
    )
    default = [arm for arm in ARMS if arm != "compile"]
    parser.add_argument("--arms", nargs="+", default=default, choices=ARMS)
    parser.add_argument("--data", nargs="+", default=["device", "loader"], dest="sources")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=None, help="timed steps a run")
    parser.add_argument("--steps-per-batch", type=int, default=32, help="of the arm cudagraph")
    parser.add_argument("--seed", type=int, default=0, help="of the order of runs")
    parser.add_argument("--limit-s", type=float, default=1e9, help="begin no round after this")
    parser.add_argument("--out", type=Path, default=None, help="where every run is kept, as JSON")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    if arguments.devices > 1 and "RANK" not in os.environ:
        return start_ranks(arguments.devices)
    import execution_arms

    runs = measure(arguments, execution_arms.Bench(arguments.devices))
    if int(os.environ.get("RANK", "0")) == 0:
        kept = {"command": sys.argv[1:], **execution_arms.provenance(), "runs": runs}
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(kept, indent=1) + "\n")
        show(runs)
    sys.stdout.flush()
    # Tearing down NCCL under captured graphs can hang, and there is nothing left to do.
    os._exit(0)


def start_ranks(devices: int) -> int:
    """This same command once a GPU."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={
                **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(devices),
                "NODE_RANK": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            },
        )
        for rank in range(devices)
    ]  # fmt: skip
    while all(rank.poll() is None for rank in ranks):
        time.sleep(0.2)
    if any(rank.poll() for rank in ranks):
        for rank in ranks:
            rank.kill()
    return max(abs(rank.wait()) for rank in ranks)


def measure(arguments: argparse.Namespace, bench: Any) -> list[dict[str, Any]]:
    """Every run of every arm, interleaved."""
    shuffler = random.Random(arguments.seed)
    began, runs = time.monotonic(), []
    for round_number in range(arguments.rounds):
        if bench.any_rank(time.monotonic() - began > arguments.limit_s):
            break
        order = [
            (workload, source, arm)
            for workload in arguments.workloads
            for source in arguments.sources
            for arm in arguments.arms
        ]
        shuffler.shuffle(order)
        for workload, source, arm in order:
            steps = arguments.steps or STEPS[workload]
            run = bench.run(WORKLOADS[workload], source, arm, steps, arguments.steps_per_batch)
            run = {"workload": workload, "data": source, "arm": arm, "round": round_number, **run}
            runs.append({"devices": arguments.devices, **run})
            if bench.rank.is_first:
                print(json.dumps(run), flush=True)
    return runs


def show(runs: list[dict[str, Any]]) -> None:
    """Step time of each arm over the rounds, its ratios, and the goals."""
    from scalewise.analysis import estimate_mean
    from scalewise.analysis.statistics import estimate_ratio

    groups = dict.fromkeys((r["workload"], r["data"], r["devices"]) for r in runs)
    print(f"\n{'workload':12} {'data':7} {'arm':18} {'step ms':>9} {'x bare':>7} {'/ hand':>7}")
    for workload, source, devices in groups:
        times: dict[str, list[float]] = {}
        for run in runs:
            if (run["workload"], run["data"]) == (workload, source) and run["step_time_ms"]:
                times.setdefault(run["arm"], []).append(run["step_time_ms"])

        def over(first: str, second: str, times: dict[str, list[float]] = times) -> float | None:
            if first not in times or second not in times:
                return None
            return estimate_ratio(times[first], times[second]).value

        for arm in (a for a in ARMS if a in times):
            ratios = [over("bare", arm), over(arm, "hand")]
            shown = " ".join(f"{r:7.3f}" if r is not None else f"{'-':>7}" for r in ratios)
            mean = estimate_mean(times[arm]).value
            print(f"{workload:12} {source:7} {arm:18} {mean:9.4f} {shown}")
        for first, second, places, sense, goal, wanted in GOALS:
            ratio = over(first, second)
            if workload in wanted and ratio is not None and min(devices, 2) == places:
                met = ratio <= goal if sense == "at most" else ratio >= goal
                verdict = "met" if met else "MISSED"
                print(f"  {first}/{second} {ratio:.3f}: {sense} {goal:g}: {verdict}")


if __name__ == "__main__":
    raise SystemExit(main())

"""What the reduction costs a cell's step, against a bare PyTorch DDP loop with it on and off.

    python benchmarks/exposed_comm.py [--workload gpt2] [--devices 2] [--p2p-off] [--out FILE]

Both run in the same processes, one after the other, on the same model, data and optimizer:

* a timed cell gives ``exposed_comm`` of its step records (device timeline on GPUs): from the last
  gradient ready to the end of backward, per step the mean over ranks, then the median over steps;
* a cell with ``profile.window`` gives what its report calls *on against off*: the median step with
  reduction less the median step without, in blocks in turn;
* the loop is written by hand: blocks of steps with gradients reduced, and blocks inside
  ``no_sync``, in turn. Its figure is the difference of the mean step times (median over blocks).
  Replicas diverge inside ``no_sync``: they are thrown away.

Collectives also slow down the computation they run beside: that is in both differences and not in
the exposed time, and is what is left between them. Exit status 0 if the cell's difference agrees
with the loop's within 10 % or 0.3 ms, and if the exposed time does not exceed it by more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from team import across_ranks, answer, compose, devices, my_place, parts, run_team

WORKLOADS = {
    "gpt2": (
        "model=gpt2", "dataset=stdlib", "optimizer=adamw", "precision=bf16-mixed", "batch_size=32",
    ),
    "gpt2_tiny": ("model=gpt2_tiny", "dataset=stdlib", "optimizer=adamw", "batch_size=32"),
    "large": ("model=large", "dataset=tabular", "batch_size=64"),
}  # fmt: skip
P2P_OFF = {"NCCL_P2P_DISABLE": "1"}
AGREE_SHARE, AGREE_MS = 0.10, 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", default="gpt2", choices=WORKLOADS)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--p2p-off", action="store_true", help="NCCL_P2P_DISABLE=1")
    parser.add_argument("--steps", type=int, default=40, help="timed steps of the cell")
    parser.add_argument("--block", type=int, default=8, help="steps of a block of the loop")
    parser.add_argument("--blocks", type=int, default=6, help="of each kind")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        answer(rank_main(arguments))
        return 0
    options = ["--workload", arguments.workload]
    for name in ("steps", "block", "blocks"):
        options += [f"--{name}", str(getattr(arguments, name))]
    ranks = run_team(
        __file__, options, arguments.devices, P2P_OFF if arguments.p2p_off else None
    )  # fmt: skip
    found = summarise(arguments, ranks)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    return 0 if found["agrees"] else 1


def rank_main(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both figures of this rank."""
    warmup = 10
    overrides = [
        *WORKLOADS[arguments.workload], *across_ranks(), "validation=never", "tracking=none",
        f"max_steps={arguments.steps + warmup}", f"warmup_steps={warmup}",
        "dataset.loader.num_workers=0",
    ]  # fmt: skip
    cell, rank = my_place(overrides)
    import torch

    from scalewise.config import build_cell

    profiled = build_cell(compose([*overrides, "profile.window=true", "max_steps=400"]))
    cell_ms, _ = cell_phases(cell, rank)
    torch.cuda.empty_cache()
    window_ms, profile = cell_phases(profiled, rank)
    torch.cuda.empty_cache()
    return {
        "cell_ms": cell_ms,
        "on_ms": [window_ms[i]["step"] for i in profile.reduced_steps],
        "off_ms": [window_ms[i]["step"] for i in profile.unreduced_steps],
        "total_ms": profile.communication_ms,
        "overlapped_ms": profile.overlapped_ms,
        "loop": hand_written(cell, rank, arguments),
    }


def cell_phases(cell: Any, rank: Any) -> tuple[list[dict[str, float]], Any]:
    """Phases of every timed step of a cell on this rank, in ms; of all steps of a profiled one.

    With the latter comes the record of its window, else None.
    """
    from scalewise.records import PHASES, CellFolder, read_steps
    from scalewise.records.profile import load_profiles
    from scalewise.train import experiment

    with tempfile.TemporaryDirectory() as folder:
        experiment.run(cell, CellFolder(folder), rank)
        series = read_steps(CellFolder(folder).steps_path(rank.rank), rank.rank)
        profiles = {one.rank: one for one in load_profiles(CellFolder(folder))}
    profile = profiles.get(rank.rank)
    chosen = series if profile else series.timed()
    columns = {name: chosen.column(name) for name in (*PHASES, "step")}
    rows = [{name: float(c[i]) for name, c in columns.items()} for i in range(len(chosen))]
    return rows, profile


def hand_written(cell: Any, rank: Any, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Blocks of a bare loop, reduced and not in turn: mean ms of a step and of its parts."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    on_gpu = rank.device.kind == "cuda"
    device = torch.device("cuda", rank.local_rank) if on_gpu else torch.device("cpu")
    torch.manual_seed(cell.seed)
    module, loader = parts(cell, rank)
    network = module.network.to(device)
    optimizer = module.configure_optimizers()
    replica = DistributedDataParallel(
        network, device_ids=[rank.local_rank] if on_gpu else None,
        gradient_as_bucket_view=True, bucket_cap_mb=cell.strategy.bucket_cap_mb,
    )  # fmt: skip
    autocast = cell.precision.lightning == "bf16-mixed"
    batches = endless(loader)
    blocks = []
    for number in range(2 * arguments.blocks + 1):
        reduced = number % 2 == 0
        marks = []
        for _ in range(arguments.block + 2):
            x, target = (part.to(device, non_blocking=True) for part in next(batches))
            marks.append(mark(on_gpu))
            with no_sync_unless(reduced, replica):
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
                    loss = network.loss(replica(x), target)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
            marks.append(mark(on_gpu))
            optimizer.step()
        marks.append(mark(on_gpu))
        if on_gpu:
            torch.cuda.synchronize()
        if number:  # the first pays for connections and caches
            blocks.append(
                {
                    "reduced": reduced,
                    "step_ms": between(marks[4], marks[-1]) / arguments.block,
                    "forward_backward_ms": statistics.fmean(
                        between(marks[i], marks[i + 1]) for i in range(4, len(marks) - 1, 2)
                    ),
                }
            )
    return blocks


def endless(loader: Any) -> Any:
    epoch = 0
    while True:
        loader.batch_sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def no_sync_unless(reduced: bool, replica: Any) -> Any:
    import contextlib

    return contextlib.nullcontext() if reduced else replica.no_sync()


def mark(on_gpu: bool) -> Any:
    """A moment: an event in the stream, or the host's clock."""
    import torch

    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(first: Any, last: Any) -> float:
    """Milliseconds."""
    if isinstance(first, float):
        return float(last - first) * 1e3
    return float(first.elapsed_time(last))


def summarise(arguments: argparse.Namespace, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over ranks; the cell's exposed time is split as the report does it."""
    exposed = [[step["exposed_comm"] for step in rank["cell_ms"]] for rank in ranks]
    per_step = list(zip(*exposed, strict=True))
    exposed_ms = statistics.median(map(statistics.fmean, per_step))
    cell_ms = {
        side: statistics.median(map(max, zip(*(rank[side] for rank in ranks), strict=True)))
        for side in ("on_ms", "off_ms")
    }
    cell_cost = cell_ms["on_ms"] - cell_ms["off_ms"]
    differences = {}
    for part in ("step_ms", "forward_backward_ms"):
        sides = {
            reduced: statistics.median(
                block[part] for rank in ranks for block in rank["loop"]
                if block["reduced"] is reduced
            )
            for reduced in (True, False)
        }  # fmt: skip
        differences[part] = {"on": sides[True], "off": sides[False]}
    loop = differences["step_ms"]["on"] - differences["step_ms"]["off"]
    tolerance = max(AGREE_MS, AGREE_SHARE * abs(loop))
    return {
        "workload": arguments.workload,
        "devices": devices()[: arguments.devices],
        "p2p": "off" if arguments.p2p_off else "as found",
        "cell_step_ms": statistics.median(s["step"] for rank in ranks for s in rank["cell_ms"]),
        "cell_exposed_ms": exposed_ms,
        "cell_exposed_mean_ms": statistics.fmean(map(statistics.fmean, per_step)),
        "cell_transfer_ms": statistics.median(map(min, per_step)),
        "cell_on_off_ms": cell_cost,
        "cell_on_ms": cell_ms["on_ms"],
        "cell_off_ms": cell_ms["off_ms"],
        "loop": differences,
        "loop_on_off_ms": loop,
        "agrees": abs(cell_cost - loop) <= tolerance and exposed_ms <= loop + tolerance,
        "ranks": ranks,
    }


def show(found: dict[str, Any]) -> None:
    loop = found["loop"]
    print(
        f"{found['workload']} on {len(found['devices'])} x {found['devices'][0]}, peer-to-peer "
        f"{found['p2p']}\n"
        f"  cell: step {found['cell_step_ms']:.3f} ms, exposed communication "
        f"{found['cell_exposed_ms']:.3f} ms (mean {found['cell_exposed_mean_ms']:.3f}, transfer "
        f"{found['cell_transfer_ms']:.3f})\n"
        f"  cell: {found['cell_on_ms']:.3f} ms reduced, {found['cell_off_ms']:.3f} ms not: "
        f"{found['cell_on_off_ms']:.3f} ms\n"
        f"  loop: step {loop['step_ms']['on']:.3f} ms reduced, {loop['step_ms']['off']:.3f} ms "
        f"not: {found['loop_on_off_ms']:.3f} ms; forward and backward "
        f"{loop['forward_backward_ms']['on']:.3f} and {loop['forward_backward_ms']['off']:.3f} ms\n"
        f"  {'agree' if found['agrees'] else 'DIFFER'} (within 10 % or 0.3 ms): "
        f"{found['cell_on_off_ms'] - found['loop_on_off_ms']:+.3f} ms; not exposed, but slower "
        f"beside it: {found['cell_on_off_ms'] - found['cell_exposed_ms']:.3f} ms"
    )


if __name__ == "__main__":
    raise SystemExit(main())

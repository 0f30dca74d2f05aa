"""What reducing gradients costs a step and where: a cell's figures against a bare DDP loop's.

    python benchmarks/exposed_comm.py [--workload gpt2] [--devices 2] [--p2p-off] [--out FILE]

Two figures, which are not the same thing, are taken by both, in the same processes, one after the
other, on the same model, data and optimizer:

* *exposed*: what is waited for after the last gradient, until backward has ended;
* *cost*: the step with gradients reduced less the step without (``no_sync``), in blocks in turn.
  It is the exposed time, and what comes before the last gradient: computation that runs slower
  because collectives hold multiprocessors and memory bandwidth, and DDP's scaling and copying of
  each gradient into its bucket, which ``no_sync`` leaves out.

The cells are a timed one (every step reduced) and one with ``profile.window``, whose steps after
the window take turns. The loop is written by hand: events (on a CPU host: clock readings) around
its own forward, backward and optimizer, and a hook on the parameter whose gradient came last in its
first block. Replicas diverge inside ``no_sync``: they are thrown away. Figures are of each step the
mean over ranks, of those the median. Exit status 0 if both figures of the cell agree with the
loop's within 10 % or 0.3 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from dataclasses import replace
from typing import Any

from team import (
    WORKLOADS,
    answer,
    between,
    device_names,
    endless,
    keep,
    make_parser,
    mark,
    my_place,
    parts,
    run_team,
)

P2P_OFF = {"NCCL_P2P_DISABLE": "1"}
AGREE_SHARE, AGREE_MS = 0.10, 0.3
FIGURES = ("step", "arrival", "exposed_comm")
"""Of a step: all of it, until its last gradient, and from there to the end of backward."""
SOURCES = ("timed cell", "profiled cell", "bare loop")
ROWS = {
    "on_ms": "step, gradients reduced (on)",
    "off_ms": "step, gradients not reduced (off)",
    "cost_ms": "cost of reducing: on less off",
    "exposed_ms": "  exposed: waited after the last gradient",
    "slower_ms": "  slower until the last gradient",
    "rest_ms": "  the rest of the step",
}
"""Figures in their order, and what they are called."""


def main() -> int:
    parser = make_parser(__doc__, "gpt2")
    parser.add_argument("--p2p-off", action="store_true", help="NCCL_P2P_DISABLE=1")
    parser.add_argument("--steps", type=int, default=40, help="timed steps of the cell")
    parser.add_argument("--block", type=int, default=8, help="steps of a block of the loop")
    parser.add_argument("--blocks", type=int, default=6, help="of each kind")
    arguments = parser.parse_args()
    if arguments.as_rank:
        answer(rank_main(arguments))
        return 0
    environment = P2P_OFF if arguments.p2p_off else None
    found = summarise(
        arguments, run_team(__file__, sys.argv[1:], arguments.devices, environment)
    )  # fmt: skip
    keep(arguments.out, found)
    show(found)
    return 0 if found["agrees"] else 1


def rank_main(arguments: argparse.Namespace) -> dict[str, Any]:
    """Step rows of this rank: of both cells and of the loop."""
    warmup = 10
    cell, rank = my_place(
        (*WORKLOADS[arguments.workload], *arguments.set,
         f"max_steps={arguments.steps + warmup}", f"warmup_steps={warmup}")
    )  # fmt: skip
    import torch

    # One group for both cells and the loop: a cell makes its own only where there is none.
    torch.distributed.init_process_group("nccl" if rank.device.kind == "cuda" else "gloo")
    profiled = replace(cell, max_steps=400, profile=replace(cell.profile, window=True))
    timed_rows, _ = cell_rows(cell, rank)
    torch.cuda.empty_cache()
    turn_rows, profile = cell_rows(profiled, rank)
    torch.cuda.empty_cache()
    return {
        "timed cell": [{**row, "reduced": True} for row in timed_rows],
        "profiled cell": [
            {**turn_rows[i], "reduced": reduced}
            for reduced, steps in ((True, profile.reduced_steps), (False, profile.unreduced_steps))
            for i in steps
        ],
        "bare loop": bare_loop(cell, rank, arguments),
        "total_ms": profile.communication_ms,
        "overlapped_ms": profile.overlapped_ms,
    }


def cell_rows(cell: Any, rank: Any) -> tuple[list[dict[str, Any]], Any]:
    """Every timed step of a cell on this rank, in ms; all steps of a profiled one.

    With the latter comes the record of its window, else None.
    """
    from scalewise.records import CellFolder, load_profiles, read_steps
    from scalewise.train import experiment

    with tempfile.TemporaryDirectory() as folder:
        experiment.run(cell, CellFolder(folder), rank)
        series = read_steps(CellFolder(folder).steps_path(rank.rank), rank.rank)
        profiles = {one.rank: one for one in load_profiles(CellFolder(folder))}
    profile = profiles.get(rank.rank)
    chosen = series if profile else series.timed()
    columns = {name: chosen.column(name) for name in FIGURES}
    rows = [{name: float(c[i]) for name, c in columns.items()} for i in range(len(chosen))]
    return rows, profile


class LastGradient:
    """The moment at which the last gradient of a backward pass is there.

    Every parameter is listened to until :meth:`settle`, then the one that came last.
    """

    def __init__(self, network: Any, on_gpu: bool) -> None:
        self.moment: Any = None
        self._on_gpu = on_gpu
        self._last: Any = None
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._ready)
            for parameter in network.parameters()
        ]

    def settle(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = [self._last.register_post_accumulate_grad_hook(self._ready)]

    def _ready(self, parameter: Any) -> None:
        self._last = parameter
        self.moment = mark(self._on_gpu)


def bare_loop(cell: Any, rank: Any, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Steps of blocks that reduce and do not, in turn; the first two of each are left out."""
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
    gradients = LastGradient(network, on_gpu)
    autocast = cell.precision.lightning == "bf16-mixed"
    batches = endless(loader)
    rows: list[dict[str, Any]] = []
    for number in range(2 * arguments.blocks + 1):
        reduced = number % 2 == 0
        steps = []
        for _ in range(arguments.block + 2):
            begin = mark(on_gpu)
            x, target = (part.to(device, non_blocking=True) for part in next(batches))
            with contextlib.nullcontext() if reduced else replica.no_sync():
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
                    loss = network.loss(replica(x), target)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
            done = mark(on_gpu)
            # Without reduction nothing is waited for: backward's end is all there is.
            steps.append((begin, gradients.moment if reduced else done, done))
            optimizer.step()
        ends = [step[0] for step in steps[1:]] + [mark(on_gpu)]
        if on_gpu:
            torch.cuda.synchronize()
        if number == 0:  # it pays for connections and caches
            gradients.settle()
            continue
        rows += [
            {
                "reduced": reduced,
                "step": between(begin, end),
                "arrival": between(begin, ready),
                "exposed_comm": between(ready, done),
            }
            for (begin, ready, done), end in list(zip(steps, ends, strict=True))[2:]
        ]
    return rows


def summarise(arguments: argparse.Namespace, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Every source's figures, and whether the cells' agree with the loop's."""
    found = {name: figures([rank[name] for rank in ranks]) for name in SOURCES}
    loop, profiled = found["bare loop"], found["profiled cell"]
    compared = {
        "cost_ms": (profiled["cost_ms"], loop["cost_ms"]),
        "exposed_ms": (found["timed cell"]["exposed_ms"], loop["exposed_ms"]),
    }
    agree = {
        name: abs(ours - theirs) <= max(AGREE_MS, AGREE_SHARE * abs(theirs))
        for name, (ours, theirs) in compared.items()
    }
    # Inside a collective the others wait for the last one to come: it alone shows the transfer.
    last = min(ranks, key=lambda rank: float(rank["total_ms"]))
    return {
        "workload": arguments.workload,
        "devices": device_names(arguments.devices),
        "p2p": "off" if arguments.p2p_off else "as found",
        "sources": found,
        "compared": compared,
        "agree": agree,
        "agrees": all(agree.values()),
        "total_ms": last["total_ms"],
        "overlapped_ms": last["overlapped_ms"],
        "ranks": ranks,
    }


def figures(ranks: list[list[dict[str, Any]]]) -> dict[str, float]:
    """Ms of a step from one list of step rows a rank: ``on`` reduced, ``off`` not.

    ``cost`` is ``exposed``, what is ``slower`` until the last gradient, and what is ``rest``.
    """

    def middle(name: str, reduced: bool) -> float:
        steps = zip(*ranks, strict=True)
        means = [
            statistics.fmean(row[name] for row in rows)
            for rows in steps
            if rows[0]["reduced"] is reduced
        ]
        return statistics.median(means)

    found = {"on_ms": middle("step", True), "exposed_ms": middle("exposed_comm", True)}
    if all(row["reduced"] for row in ranks[0]):
        return found
    off = middle("step", False)
    cost = found["on_ms"] - off
    slower = middle("arrival", True) - middle("arrival", False)
    rest = cost - slower - found["exposed_ms"]
    return {**found, "off_ms": off, "cost_ms": cost, "slower_ms": slower, "rest_ms": rest}


def show(found: dict[str, Any]) -> None:
    print(
        f"{found['workload']} on {len(found['devices'])} x {found['devices'][0]}, peer-to-peer "
        f"{found['p2p']}; ms of a step, median over steps of the mean over ranks\n"
        f"{'':44}{''.join(f'{name:>15}' for name in SOURCES)}"
    )
    for name, words in ROWS.items():
        values = [found["sources"][source].get(name) for source in SOURCES]
        cells = "".join(f"{'-':>15}" if v is None else f"{v:15.3f}" for v in values)
        print(f"{words:44}{cells}")
    print(
        f"collectives in the profiler's window, of the rank that waits least in them: "
        f"{found['total_ms']:.3f} ms, "
        f"{found['overlapped_ms']:.3f} of them beside computation"
    )
    for name, (ours, theirs) in found["compared"].items():
        print(
            f"{ROWS[name].strip()}: cell {ours - theirs:+.3f} ms from the loop: "
            f"{'agrees' if found['agree'][name] else 'DIFFERS'} (within 10 % or {AGREE_MS} ms)"
        )


if __name__ == "__main__":
    raise SystemExit(main())

"""What the hooks of ``scalewise run`` cost a script, switched on and off inside one run.

    scalewise run --devices 1 --repeats 1 --time 30m -- \
        python benchmarks/script_overhead.py --out FILE [--step-ms 0 1 5] [--pairs 200]
    python benchmarks/script_overhead.py --out FILE --monitor FOLDER [...]

The second is of ``scalewise.monitor``: its loader and one number logged a step come with the hooks.

A loop over a DataLoader with a model of one layer, which then waits for the rest of the length that
was asked for, the same with hooks and without, runs in blocks of some 60 ms: one with hooks and one
without, in turn, each first as often as the other. Of every length the file has the median over
pairs of what a step took longer with hooks, on the clock and in CPU time of the thread that trains,
with quartiles. The recording thread goes on in both blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset, dataloader

import scalewise

_BLOCK_MS = 60.0
_LEAST_MS = 0.2
"""A step that waits for nothing, about."""


class Hooks:
    """Everything that was hung into torch and the model, to be taken off and put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        iterator: Any = dataloader._BaseDataLoaderIter
        self._functions = [
            (torch.autograd, "backward", torch.autograd.backward),
            (iterator, "__next__", iterator.__next__),
        ]
        tables: list[Any] = [
            optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
        ]  # fmt: skip
        # The hook on the model stands in its class.
        self._kind: Any = type(model)
        self._on = True
        self._place = vars(self._kind).get("_compiled_call_impl")
        self._tables = [(table, dict(table)) for table in tables]
        if self._place is None or not all(hooks for _, hooks in self._tables):
            raise SystemExit("nothing records this script: start it with scalewise run")

    def put(self, on: bool) -> None:
        if self._on and not on:  # of backward the recorder takes its own off by itself
            self._functions[0] = torch.autograd, "backward", torch.autograd.backward
        self._on = on
        for owner, name, hooked in self._functions:
            setattr(owner, name, hooked if on else getattr(hooked, "__wrapped__", hooked))
        self._kind._compiled_call_impl = self._place if on else None
        for table, hooks in self._tables:
            table.clear()
            table.update(hooks if on else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0.0, 1.0, 5.0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--monitor", type=Path, help="folder of the monitor's records")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)

    def step(batch: torch.Tensor, wait_ns: int = 0, monitor: Any = None) -> None:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor.log("sum", loss)
        until_ns = time.perf_counter_ns() + wait_ns  # nothing that went before hides in it
        while time.perf_counter_ns() < until_ns:
            pass

    with contextlib.ExitStack() as stack:
        monitor = None
        if asked.monitor is not None:
            monitor = stack.enter_context(scalewise.monitor(model, optimizer, folder=asked.monitor))
        step(torch.ones(2, 4))  # from here on it is recorded
        hooks = Hooks(model)
        found = {
            f"{ms:g} ms": _compare(hooks, step, ms, asked.pairs, monitor) for ms in asked.step_ms
        }
    asked.out.write_text(json.dumps(found, indent=1))


def _compare(
    hooks: Hooks, step: Callable[..., None], step_ms: float, pairs: int, monitor: Any
) -> dict[str, Any]:
    steps = int(_BLOCK_MS / max(step_ms, _LEAST_MS))
    wait_ns = round(1e6 * max(0.0, step_ms - _LEAST_MS))
    data = TensorDataset(torch.ones(2 * steps + 2, 4))

    def block(on: bool) -> tuple[float, float]:
        hooks.put(on)
        loader = iter(DataLoader(data, 2))
        step(next(loader)[0])
        own = monitor if on else None
        batches = loader if own is None else own(loader)
        clock_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        for (batch,) in batches:
            step(batch, wait_ns, own)
        spent_ns = time.perf_counter_ns() - clock_ns, time.thread_time_ns() - cpu_ns
        return spent_ns[0] / steps / 1e3, spent_ns[1] / steps / 1e3

    with_us: list[tuple[float, float]] = []
    without_us: list[tuple[float, float]] = []
    for pair in range(pairs):
        for on in (True, False) if pair % 2 else (False, True):
            (with_us if on else without_us).append(block(on))
    hooks.put(True)
    named = {}
    for at, name in enumerate(("clock_us", "cpu_us")):
        more = [a[at] - b[at] for a, b in zip(with_us, without_us, strict=True)]
        plain = statistics.median(one[at] for one in without_us)
        named[name] = {
            "without": plain,
            "more": statistics.median(more),
            "quartiles": statistics.quantiles(more, n=4),
            "ratio": 1 + statistics.median(more) / plain,
        }
    return named


if __name__ == "__main__":
    main()

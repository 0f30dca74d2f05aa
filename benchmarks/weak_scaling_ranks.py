"""What each rank of ``benchmarks/weak_scaling.py`` does: train its arms, and wait off its GPU."""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from bare_loop import Stopwatch
from exposed_comm import endless
from team import TIMEOUT_S, compose, my_place, parts
from weak_scaling import Arm, arms, overrides_of

POLL_S = 0.01
REHEARSAL_STEPS = 4
"""Of each arm before the first round: connections, kernels' code and caches are paid for. The
fewest that every way of executing takes."""


class Meeting:
    """Where the ranks wait for each other: on files, which keep neither GPU nor network busy."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self._folder, self._rank, self._ranks = folder, rank, ranks
        self._number = 0

    def wait(self, word: str = "") -> list[str]:
        """Every rank's word, in their order, once all are here. Raises TimeoutError."""
        self._number += 1
        deadline = time.monotonic() + TIMEOUT_S
        own = self._path(self._rank)
        # Whole or not at all, under a name of this rank's own until then.
        unfinished = own.with_name(f"{own.name}.unfinished")
        unfinished.write_text(word)
        unfinished.replace(own)
        for other in range(self._ranks):
            while not self._path(other).exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"rank {other} did not come to meeting {self._number}")
                time.sleep(POLL_S)
        return [self._path(other).read_text() for other in range(self._ranks)]

    def _path(self, rank: int) -> Path:
        return self._folder / f"meeting{self._number}.rank{rank}"


def train_rounds(arguments: argparse.Namespace, answer: Callable[[Any], None]) -> int:
    """Train every arm of every round, and answer what this rank has timed.

    A rank that fails ends at once: tearing down a process group whose peers wait can hang.
    """
    try:
        trainee = Trainee(arguments)
        rows = trainee.rounds()
        answer({"rows": rows, "versions": versions()})
        trainee.close()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    return 0


class Trainee:
    """One rank, with its device and the process group that all arms on several devices use."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._arms = arms(arguments.settings, arguments.devices)
        everywhere = next(arm for arm in self._arms if arm.devices > 1)
        cell, self._place = my_place(overrides_of(everywhere, arguments))
        import torch

        from scalewise.config import build_cell

        self._on_gpu = self._place.device.kind == "cuda"
        rank, ranks = self._place.rank, self._place.world_size
        self._device = torch.device("cuda", rank) if self._on_gpu else torch.device("cpu")
        # Made as Lightning would, which finds it and leaves it: it outlives every fit.
        torch.distributed.init_process_group(
            "nccl" if self._on_gpu else "gloo",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=cell.sweep.collective_timeout_s),
            device_id=self._device if self._on_gpu else None,
        )
        self._meeting = Meeting(Path(os.environ["SCALEWISE_BENCHMARK_FOLDER"]), rank, ranks)
        self._cells = {
            arm: build_cell(compose(overrides_of(arm, arguments))) for arm in self._arms
        }  # fmt: skip

    def close(self) -> None:
        import torch

        self._meeting.wait()
        torch.distributed.destroy_process_group()

    def rounds(self) -> list[dict[str, Any]]:
        """One row a run, the same rows on every rank; ``step_ms`` is None where it only waited."""
        began, order = time.monotonic(), random.Random(self._arguments.seed)
        for arm in self._arms:
            cell = replace(self._cells[arm], max_steps=REHEARSAL_STEPS, warmup_steps=1)
            self._run(arm, cell)
        rows: list[dict[str, Any]] = []
        took_s = 0.0
        for number in range(self._arguments.rounds):
            now = time.monotonic()
            late = now + took_s - began > self._arguments.limit_s
            # The first rank's clock decides for all.
            if number and self._meeting.wait("end" if late else "go on")[0] == "end":
                break
            turns = list(self._arms)
            order.shuffle(turns)
            for arm in turns:
                row = self._run(arm, self._cells[arm])
                rows.append({"round": number, "arm": arm.name, "devices": arm.devices, **row})
                print(f"round {number}: {arm.label}: {row['step_ms']} ms", flush=True)
            took_s = time.monotonic() - now
        return rows

    def _run(self, arm: Arm, cell: Any) -> dict[str, Any]:
        """One run of an arm, or none of this rank's business."""
        takes_part = self._place.rank < arm.devices
        place = self._place
        if arm.devices == 1:
            place = replace(place, rank=0, local_rank=0, world_size=1)
        with self._fresh() as held_mib:
            self._meeting.wait()
            train = self._train_bare if arm.name == "bare" else _train_cell
            step_ms = train(cell, place) if takes_part else None
        return {"step_ms": step_ms, "held_before_mib": held_mib}

    @contextmanager
    def _fresh(self) -> Iterator[float | None]:
        """MiB of device memory that earlier arms still hold; no arm collects what they left."""
        import torch

        gc.collect()
        gc.freeze()
        held_mib = None
        if self._on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            held_mib = torch.cuda.memory_allocated() / 2**20
        try:
            yield held_mib
        finally:
            gc.unfreeze()
            gc.collect()
            if self._on_gpu:
                torch.cuda.empty_cache()

    def _train_bare(self, cell: Any, place: Any) -> float:
        """The loop a careful person writes by hand: mean ms of a timed step on this rank."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from scalewise.train.execution import apply_precision

        torch.manual_seed(cell.seed)
        apply_precision(cell.precision)
        module, loader = parts(cell, place)
        network = module.network.to(self._device).train()
        optimizer = module.configure_optimizers()
        replica: Any = network
        if place.world_size > 1:
            replica = DistributedDataParallel(
                network,
                device_ids=[self._device.index] if self._on_gpu else None,
                gradient_as_bucket_view=True,
            )
        autocast = cell.precision.lightning == "bf16-mixed"
        watch, batches = Stopwatch(self._device.type), endless(loader)
        for step in range(cell.max_steps):
            if step == cell.warmup_steps:
                watch.mark()
            x, target = (part.to(self._device, non_blocking=True) for part in next(batches))
            with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=autocast):
                loss = network.loss(replica(x), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        watch.mark()
        return watch.ms() / int(cell.max_steps - cell.warmup_steps)


def _train_cell(cell: Any, place: Any) -> float:
    """A cell as it is trained in a sweep: mean ms of a timed step on this rank.

    A step lasts from the end of the optimizer step before it to the end of its own, so their mean
    is what the loop's two moments give.
    """
    from scalewise.records import CellFolder, read_steps
    from scalewise.train import experiment

    with tempfile.TemporaryDirectory() as folder:
        experiment.run(cell, CellFolder(folder), place)
        timed = read_steps(CellFolder(folder).steps_path(place.rank), place.rank).timed()
    return float(timed.column("step").mean())


def versions() -> dict[str, Any]:
    """What the figures depend on beside the options."""
    import torch

    from scalewise.host.identity import code_version
    from scalewise.train.provenance import package_versions

    on_gpu = torch.cuda.is_available()
    return {
        "packages": package_versions(),
        "code": code_version(Path(__file__).parent),
        "cuda": torch.version.cuda if on_gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
        "nccl_settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith("NCCL_")},
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }

"""What benchmarks share: workloads, options, and ranks that train together without a sweep.

A benchmark script calls :func:`run_team` with its own path; each rank runs that script again with
``--as-rank`` and its options, finds its place by :func:`my_place`, and hands back one value by
:func:`answer`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 400.0
_FOLDER = "SCALEWISE_BENCHMARK_FOLDER"
_GPT2 = ("model=gpt2", "dataset=stdlib", "optimizer=adamw", "precision=bf16-mixed")
_TABULAR = ("dataset=tabular", "dataset.samples=200000")
_NETWORKS: dict[str, tuple[tuple[str, ...], int]] = {
    "gpt2": (_GPT2, 16),
    "gpt2_tiny": (("model=gpt2_tiny", "dataset=stdlib", "optimizer=adamw"), 32),
    "large": (("model=large", *_TABULAR), 64),
    "medium": (("model=medium", *_TABULAR), 128),
}
"""Overrides, and the samples of one device."""
WORKLOADS: dict[str, tuple[str, ...]] = {
    name: (
        *overrides, f"batch_size={samples}", "scaling=weak",
        "validation=never", "tracking=none", "dataset.loader.num_workers=0",
    )
    for name, (overrides, samples) in _NETWORKS.items()
}  # fmt: skip


def make_parser(description: str | None, workload: str) -> argparse.ArgumentParser:
    """The options of a benchmark whose ranks train one workload."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", default=workload, choices=WORKLOADS)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides")
    parser.add_argument("--out", type=Path, default=None, help="all that was found, as JSON")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    return parser


def keep(path: Path | None, found: Any) -> None:
    """Write ``found`` as JSON, where ``--out`` was given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The plain configuration of a cell with these overrides."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    from scalewise.config import conf_dir, resolve
    from scalewise.sweep import sweep_folder

    OmegaConf.register_new_resolver("scalewise_folder", sweep_folder, replace=True)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return resolve(hydra_compose("config", overrides=list(overrides)))


def run_team(
    script: str,
    options: Sequence[str],
    ranks: int,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    beside: Callable[[Path, Sequence[int]], AbstractContextManager[None]] | None = None,
) -> list[Any]:
    """Run ``script --as-rank`` once a rank and return what each answered, in the order of ranks.

    ``beside`` is entered with the team's folder and the ranks' process ids, and left with them.
    Raises RuntimeError with the last lines of a rank that failed, and ends the others.
    """
    with tempfile.TemporaryDirectory(prefix="scalewise-benchmark-") as name:
        folder = Path(name)
        processes = list(_start_ranks(script, options, ranks, folder, environment or {}))
        pids = [process.pid for process in processes]
        try:
            with nullcontext() if beside is None else beside(folder, pids):
                _wait(processes, folder, timeout_s)
            return [json.loads((folder / f"rank{r}.json").read_text()) for r in range(ranks)]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _start_ranks(
    script: str, options: Sequence[str], ranks: int, folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """What rank N prints is in ``rankN.log`` of the folder."""
    from scalewise.host import free_port, rendezvous, scrubbed

    port = free_port()
    for rank in range(ranks):
        env = {
            **scrubbed(os.environ),
            **environment,
            **rendezvous(rank, rank, ranks, port),
            "PYTHONPATH": python_path(),
            _FOLDER: str(folder),
        }
        command = [sys.executable, script, "--as-rank", *options]
        with (folder / f"rank{rank}.log").open("wb") as log:
            yield subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)


def python_path() -> str:
    """With which a process finds the package and the benchmarks, wherever it starts."""
    paths = [str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if any(process.poll() for process in processes):
            break
        time.sleep(0.1)
    # One that failed counts, before those that it left waiting.
    for rank, process in sorted(enumerate(processes), key=lambda one: one[1].poll() is None):
        if process.poll() != 0:
            how = "timed out" if process.poll() is None else f"ended with {process.returncode}"
            log = (folder / f"rank{rank}.log").read_text(errors="replace").splitlines()
            raise RuntimeError(f"rank {rank} {how}:\n" + "\n".join(log[-30:]))


def my_place(overrides: Sequence[str], fault: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
    """This rank's cell configuration and its :class:`RankContext`, bound to its cores.

    ``fault`` is a callback of the cell, as a node with a ``_target_``.
    """
    from scalewise.config import build_cell
    from scalewise.gpu import discover
    from scalewise.train import RankContext

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    plain = compose((*overrides, *across_ranks(world)))
    if fault is not None:
        plain["fault"] = dict(fault)
    cell = build_cell(plain)
    slot = discover(cell.hardware).slots[rank]
    os.sched_setaffinity(0, slot.cores)
    os.environ["OMP_NUM_THREADS"] = str(len(slot.cores))
    import torch

    torch.set_num_threads(len(slot.cores))  # composing may have imported it before
    if slot.kind != "cpu":
        torch.cuda.set_device(rank)
    return cell, RankContext(rank, rank, world, slot)


def across_ranks(world: int) -> tuple[str, ...]:
    """The strategy of a cell of so many ranks, as overrides."""
    return ("strategy=ddp", f"strategy.devices={world}") if world > 1 else ("strategy=single",)


def parts(cell: Any, rank: Any, steps_per_batch: int = 1) -> tuple[Any, Any]:
    """The module and the training loader of this rank's cell."""
    from scalewise.train.build import build_data, build_module

    module = build_module(cell)
    data = build_data(cell, rank, module, steps_per_batch)
    return module, data["train_dataloaders"]


def endless(loader: Any) -> Iterator[Any]:
    """Batches, epoch after epoch."""
    epoch = 0
    while True:
        loader.batch_sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def step_by_hand(
    network: Any, optimizer: Any, x: Any, target: Any, context: AbstractContextManager[Any]
) -> None:
    """A step of the loop that a careful person writes; its forward pass runs in ``context``."""
    with context:
        loss = getattr(network, "module", network).loss(network(x), target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def mark(on_gpu: bool) -> Any:
    """A moment: an event in the stream, so that nothing waits, or the host's clock."""
    import torch

    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(first: Any, last: Any) -> float:
    """Milliseconds; waits for the GPU."""
    if isinstance(first, float):
        return float(last - first) * 1e3
    last.synchronize()
    return float(first.elapsed_time(last))


def team_folder() -> Path:
    """The folder that :func:`run_team` made for this rank and its siblings."""
    return Path(os.environ[_FOLDER])


def answer(value: Any) -> None:
    """Hand this rank's value to :func:`run_team`."""
    (team_folder() / f"rank{os.environ['RANK']}.json").write_text(json.dumps(value))


def device_names(count: int) -> list[str]:
    """Of the first so many devices of this host."""
    from scalewise.config import HardwareConfig
    from scalewise.gpu import discover

    return [slot.name for slot in discover(HardwareConfig("auto")).slots][:count]

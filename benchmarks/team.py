"""Processes of a benchmark that train together, started without a sweep around them.

A benchmark script calls :func:`run_team` with its own path; each rank runs that script again with
``--as-rank`` and its options, finds its place by :func:`my_place`, and hands back one value by
:func:`answer`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 400.0


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
    with tempfile.TemporaryDirectory(prefix="scalewise-benchmark-") as folder:
        processes = start_ranks(script, options, ranks, Path(folder), environment)
        pids = [process.pid for process in processes]
        try:
            with nullcontext() if beside is None else beside(Path(folder), pids):
                _wait(processes, Path(folder), timeout_s)
            return [json.loads((Path(folder) / f"rank{r}.json").read_text()) for r in range(ranks)]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def start_ranks(
    script: str,
    options: Sequence[str],
    ranks: int,
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> list[subprocess.Popen[bytes]]:
    """Start ``script --as-rank`` once a rank; what rank N prints is in ``rankN.log`` of the folder.

    Who starts them ends them.
    """
    from scalewise.host import free_port, rendezvous, scrubbed

    port = free_port()
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    processes = []
    for rank in range(ranks):
        env = {
            **scrubbed(os.environ),
            **(environment or {}),
            **rendezvous(rank, rank, ranks, port),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "SCALEWISE_BENCHMARK_FOLDER": str(folder),
        }
        with (folder / f"rank{rank}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, script, "--as-rank", *options],
                    env=env, stdout=log, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
    return processes


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, timeout_s: float) -> None:
    import time

    deadline = time.monotonic() + timeout_s
    while any(process.poll() is None for process in processes):
        failed = [r for r, process in enumerate(processes) if process.poll() not in (None, 0)]
        if failed or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for rank, process in enumerate(processes):
        if process.poll() != 0:
            log = (folder / f"rank{rank}.log").read_text(errors="replace").splitlines()
            if process.poll() is None and any(p.poll() not in (None, 0) for p in processes):
                continue  # another one failed: that one's words count
            how = "timed out" if process.poll() is None else f"ended with {process.returncode}"
            raise RuntimeError(f"rank {rank} {how}:\n" + "\n".join(log[-30:]))


def my_place(overrides: Sequence[str]) -> tuple[Any, Any]:
    """This rank's cell configuration and its :class:`RankContext`, bound to its cores.

    Called before torch is imported, because threads are counted on import.
    """
    from scalewise.config import build_cell
    from scalewise.gpu import discover
    from scalewise.train import RankContext

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cell = build_cell(compose(overrides))
    slot = discover(cell.hardware).slots[rank]
    os.sched_setaffinity(0, slot.cores)
    os.environ["OMP_NUM_THREADS"] = str(len(slot.cores))
    import torch

    if slot.kind == "cpu":
        torch.set_num_threads(len(slot.cores))
    else:
        torch.cuda.set_device(rank)
    return cell, RankContext(rank, rank, world, slot)


def across_ranks() -> list[str]:
    """The strategy of this rank's cell, as overrides."""
    world = int(os.environ["WORLD_SIZE"])
    return ["strategy=ddp", f"strategy.devices={world}"] if world > 1 else ["strategy=single"]


def parts(cell: Any, rank: Any) -> tuple[Any, Any]:
    """The module and the training loader of this rank's cell."""
    from scalewise.train.build import build_data, build_module, data_share

    module = build_module(cell, rank)
    return module, build_data(cell, rank, module, data_share(cell, rank))["train_dataloaders"]


def answer(value: Any) -> None:
    """Hand this rank's value to :func:`run_team`."""
    folder = Path(os.environ["SCALEWISE_BENCHMARK_FOLDER"])
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(value))


def devices() -> list[str]:
    """Names of this host's devices."""
    from scalewise.config import HardwareConfig
    from scalewise.gpu import discover

    return [slot.name for slot in discover(HardwareConfig("auto")).slots]

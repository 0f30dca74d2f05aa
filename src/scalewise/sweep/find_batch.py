"""``scalewise find-batch``: the largest batch that fits on every device of this host."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalewise.config import EXIT_CONFIG_ERROR, CellConfig, ConfigError, build_cell
from scalewise.records import DeviceInfo
from scalewise.records.batch_search import BatchSearchRecord, BatchTrial
from scalewise.records.files import load_json
from scalewise.sweep.compose import compose_cell
from scalewise.sweep.lease import (
    HostMismatch,
    Lease,
    Leases,
    check_execution,
    check_precision,
    discover,
    width,
)
from scalewise.sweep.ports import free_port
from scalewise.train.rank import rendezvous, scrubbed
from scalewise.typed import to_plain


def main(argv: Sequence[str]) -> int:
    """Run the command; 2 for wrong use, 1 where the search fails."""
    options = _parse(argv)
    try:
        plain = compose_cell(options.overrides)
        found = find(plain, options.first, options.most, options.margin, options.timeout_s)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_CONFIG_ERROR
    except SearchFailed as error:
        sys.stderr.write(f"scalewise find-batch: {error}\n")
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(to_plain(found), indent=1) + "\n")
    sys.stdout.write(as_text(found, plain["scaling"]) + f"evidence: {options.out}\n")
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scalewise find-batch",
        description="Find the largest batch_size with which a cell trains without running out of "
        "memory, the same on every device. Takes the overrides that train.py takes.",
    )
    parser.add_argument("overrides", nargs="*", help="e.g. model=gpt2 dataset=stdlib strategy=ddp")
    parser.add_argument("--first", type=int, default=1, help="samples a device to begin with")
    parser.add_argument("--most", type=int, default=65536, help="samples a device at most")
    parser.add_argument(
        "--margin", type=float, default=0.05, help="share of the batch that is kept free"
    )
    parser.add_argument("--timeout-s", type=float, default=900.0)
    parser.add_argument("--out", type=Path, default=Path("find_batch.json"))
    options = parser.parse_args(argv)
    for name, value, low, high in (
        ("--first", options.first, 1, options.most),
        ("--margin", options.margin, 0.0, 0.5),
    ):
        if not low <= value <= high:
            parser.error(f"{name}: found {value}; allowed: {low} to {high}")
    return options


class SearchFailed(RuntimeError):  # noqa: N818 - says what happened
    """The ranks could not finish: one line."""


def find(
    plain: dict[str, Any], first: int, most: int, margin: float, timeout_s: float = 900.0
) -> BatchSearchRecord:
    """Search on devices of this host that nobody else holds.

    Raises ConfigError for a cell that cannot run here, SearchFailed where a rank dies or the time
    is up.
    """
    # Whatever batch was typed is not what is asked for: one sample a device fits every strategy.
    cell = build_cell({**plain, "batch_size": 1, "scaling": "weak"})
    if cell.strategy.kind not in ("single", "ddp"):
        raise ConfigError(
            f"strategy: found {cell.strategy.name}; allowed: single or ddp, whose replicas are "
            "whole models"
        )
    host = discover(cell.hardware)
    try:
        check_precision(cell, host)
        check_execution(cell, host)
        devices = width(cell, len(host.slots))
    except HostMismatch as mismatch:
        raise ConfigError(str(mismatch)) from None
    lease = Leases().try_lease(host.slots, devices)
    if lease is None:
        raise SearchFailed(f"{devices} devices are needed, and other jobs hold some of them")
    try:
        return _search(plain, cell, lease, (first, most, margin), timeout_s)
    finally:
        lease.release()


def _search(
    plain: dict[str, Any],
    cell: CellConfig,
    lease: Lease,
    limits: tuple[int, int, float],
    timeout_s: float,
) -> BatchSearchRecord:
    with tempfile.TemporaryDirectory(prefix="scalewise-find-batch-") as scratch:
        job, result = Path(scratch) / "job.json", Path(scratch) / "result.json"
        first, most, margin = limits
        job.write_text(
            json.dumps(
                {
                    "config": {**plain, "batch_size": 1, "scaling": "weak"},
                    "devices": to_plain(lease.slots),
                    "first": first, "most": most, "margin": margin, "result": str(result),
                }
            )
        )  # fmt: skip
        port, ranks = free_port(), []
        for rank, slot in enumerate(lease.slots):
            with (Path(scratch) / f"rank{rank}.err").open("wb") as log:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", "scalewise.train.batch_worker", str(job)],
                        env=_environment(cell, lease.slots, rank, port, slot),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
        _wait(ranks, Path(scratch), timeout_s)
        return load_json(result, BatchSearchRecord)


def _environment(
    cell: CellConfig, slots: Sequence[DeviceInfo], rank: int, port: int, slot: DeviceInfo
) -> dict[str, str]:
    uuids = [s.uuid for s in slots if s.uuid is not None]
    threads = str(max(1, len(slot.cores)))
    return {
        **scrubbed(os.environ),
        **cell.hardware.nccl_environment(),
        **rendezvous(rank, rank, len(slots), port),
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        "OMP_NUM_THREADS": threads,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _wait(ranks: Sequence[subprocess.Popen[bytes]], folder: Path, timeout_s: float) -> None:
    """Wait for all; where one fails, end the others and say what it said last."""
    deadline = time.monotonic() + timeout_s
    try:
        while any(rank.poll() is None for rank in ranks):
            failed = [n for n, rank in enumerate(ranks) if rank.poll() not in (None, 0)]
            if failed:
                break
            if time.monotonic() > deadline:
                raise SearchFailed(f"no answer within {timeout_s:g} s (--timeout-s)")
            time.sleep(0.05)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
    # The first to go is to blame: the others die of its absence, or of being ended here.
    for number in failed_first(ranks):
        lines = (folder / f"rank{number}.err").read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit status {ranks[number].returncode}"
        if ranks[number].returncode == EXIT_CONFIG_ERROR:
            raise ConfigError(last.removeprefix("error: "))
        raise SearchFailed(f"rank {number}: {last}")


def failed_first(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Ranks that failed, those that failed by themselves before those that were ended."""
    failed = [n for n, rank in enumerate(ranks) if rank.returncode != 0]
    return sorted(failed, key=lambda n: ranks[n].returncode < 0)


def as_text(found: BatchSearchRecord, scaling: str) -> str:
    """The trials, and what to type."""
    lines = [f"{'a device':>9} {'outcome':12} {'peak MiB':>9} {'ms a step':>10}"]
    lines += [_trial(trial) for trial in found.trials]
    limit = {
        "memory": f"{found.largest_that_fits} still fit; {found.margin:.0%} of that is kept free",
        "max_batch": "more was not tried (--most)",
        "data": "the data set has no more",
    }[found.limited_by]
    typed = found.per_device_batch_size if scaling == "weak" else found.global_batch_size
    lines.append(
        f"{found.per_device_batch_size} samples on each of {found.world_size} x {found.device} "
        f"({limit}): use batch_size={typed} with scaling={scaling}"
    )
    return "\n".join(lines) + "\n"


def _trial(trial: BatchTrial) -> str:
    outcome: str = trial.outcome
    if trial.ranks_out_of_memory:
        outcome += f" rank {','.join(map(str, trial.ranks_out_of_memory))}"
    shown = [
        "-" if value is None else f"{value:.4g}"
        for value in (trial.peak_allocated_mib, trial.step_time_ms)
    ]
    return f"{trial.per_device_batch_size:9d} {outcome:12} {shown[0]:>9} {shown[1]:>10}"

"""Samples/s of the training loaders of all ranks without a model, page cache cold and warm apart.

The ranks of such a cell have the cores and the environment that they train with, and iterate over
the loaders that training would build, all at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import Sampler

from scalewise.config import CellConfig, ConfigError, LoaderConfig
from scalewise.records import (
    CellFolder,
    DroppedFiles,
    HeartbeatWriter,
    LoaderPass,
    LoaderRate,
    LoaderRecord,
    RankSummary,
    save_record,
)
from scalewise.train.build import build_data, data_share
from scalewise.train.data import make_loader
from scalewise.train.page_cache import drop_from_page_cache, named_files, resident_share
from scalewise.train.rank import RankContext, Team, gathered, settle_device
from scalewise.train.recording import count_samples, untrained_summary

PASS_S = 3.0
"""Steady time of a pass."""
MOST_PASS_S = 60.0
"""A pass of slow batches takes longer, for as many rounds as a rate needs, but no longer."""
FEWEST_S = 0.2
"""A shorter pass, as of an epoch that is over at once, tells no rate."""
FEWEST_ROUNDS = 10
"""Rounds of a batch from each worker. Workers out of step with one another by a whole batch then
move the rate by less than a tenth."""
COLD_SHARE = 0.05
"""Share of the files up to which they count as dropped."""


def measure_loader(
    cell: CellConfig, folder: CellFolder, rank: RankContext, seconds: float = PASS_S
) -> RankSummary:
    """This rank's part of the measurement; the first rank leaves ``loader.json`` in ``folder``.

    Raises ConfigError for data whose loaders scalewise does not build.
    """
    pl.seed_everything(cell.seed, workers=True, verbose=False)
    settle_device(rank, cell.hardware.memory_cap_gib, cell.execution.device_check)
    team = Team(rank.rank, rank.world_size, cell.sweep.collective_timeout_s)
    share = data_share(cell, rank)
    assert share.sizes is not None and share.shard is not None
    replayed = cell.execution.kind == "cudagraph" and rank.device.kind == "cuda"
    together = cell.execution.steps_per_batch if replayed else 1
    data = build_data(replace(cell, validation="never"), rank, None, share, together)
    if "train_dataloaders" not in data:
        raise ConfigError(
            f"workload: found loader with dataset={cell.dataset.name}, a LightningDataModule, "
            "whose loaders are its own; allowed: a dataset whose batches scalewise shares out"
        )
    loader = data.pop("train_dataloaders")
    dataset, sampler = loader.dataset, loader.batch_sampler
    pulse = HeartbeatWriter(folder.heartbeat_path(rank.rank))  # now all is read and built
    pulse.begin(None)
    team.barrier()  # whatever is read before the first batch has been read
    files: list[Path] = []
    drops = _drop(cell.dataset.arguments, files) if rank.local_rank == 0 else None
    team.barrier()
    cold, taken = run_pass(loader, cell.loader, seconds, pulse.beat)
    team.barrier()
    if drops is not None and drops.obstacle is None:
        drops = replace(drops, resident_share_after=resident_share(files))
    del loader  # and its workers with it
    again = RepeatedBatches(islice(sampler, taken))
    loader = make_loader(dataset, again, cell.loader, rank.device.kind)
    team.barrier()
    warm, _ = run_pass(loader, cell.loader, seconds, pulse.beat)
    all_ranks = gathered((share.sizes[share.shard], cold, warm, drops), rank.world_size)
    sizes, colds, warms, dropped = zip(*all_ranks, strict=True)
    hosts = tuple(one for one in dropped if one is not None)
    why = next((reason for one in hosts if (reason := _not_cold(one))), None)
    missing = {} if why is None else {"cold": why}
    for state, passes in (("cold", colds), ("warm", warms)):
        least = min(passes, key=lambda one: one.batches)
        fewest = FEWEST_ROUNDS * max(1, cell.loader.num_workers)
        if least.batches < fewest or least.seconds < FEWEST_S:
            few = f"only {least.batches} batches came to a rank after its start"
            need = f"a rate needs {fewest}, in {FEWEST_S:g} s or more"
            missing.setdefault(state, f"{few}, in {least.seconds:.2g} s; {need}")
    rates = {
        state: None if state in missing else _rate(passes, sizes, share.sizes.total)
        for state, passes in (("warm", warms), ("cold", colds))
    }
    if rank.is_first:
        record = LoaderRecord(sizes, together, rates["warm"], rates["cold"], hosts, missing)
        save_record(folder.path, record)
    figures = {
        name: None if (rate := rates[state]) is None else rate.global_samples_per_s
        for name, state in (("loader_samples_per_s", "warm"), ("loader_cold_samples_per_s", "cold"))
    }
    summary = untrained_summary(rank, figures, "workload=loader: loaders ran, nothing was trained")
    folder.save_rank(summary)
    pulse.close()
    return summary


class RepeatedBatches(Sampler[list[int]]):
    """The same batches again and again, without an end."""

    def __init__(self, batches: Iterable[list[int]]) -> None:
        self.batches = tuple(batches)

    def __iter__(self) -> Iterator[list[int]]:
        while self.batches:
            yield from self.batches


def run_pass(
    loader: Iterable[Any],
    config: LoaderConfig,
    seconds: float,
    beat: Callable[[int, int], None] = lambda batches, samples: None,
) -> tuple[LoaderPass, int]:
    """Iterate for ``seconds`` or to the end, and say how many batches came in all.

    The clock starts when all has come that workers fetch at once, and stops after whole rounds of
    them: else what some have ready ahead of others would count as speed.
    """
    workers = max(1, config.num_workers)
    ahead = workers * config.prefetch_factor if config.num_workers else 1
    began = ready = ended = time.perf_counter()
    taken = fed = batches = samples = 0
    for taken, batch in enumerate(loader, start=1):
        now = time.perf_counter()
        if taken <= ahead:
            ready = ended = now
            continue
        fed += count_samples(batch)
        beat(taken, fed)
        rounds, unfinished = divmod(taken - ahead, workers)
        if unfinished:
            continue
        ended, batches, samples = now, taken - ahead, fed
        if now - ready >= (seconds if rounds >= FEWEST_ROUNDS else MOST_PASS_S):
            if torch.cuda.is_initialized():  # batches on a GPU are only queued until then
                torch.cuda.synchronize()
                ended = time.perf_counter()
            break
    return LoaderPass(ready - began, ended - ready, batches, samples), taken


def _rate(passes: Sequence[LoaderPass], sizes: Sequence[int], total: int) -> LoaderRate:
    """``sizes``: each rank's share of a batch of ``total`` samples."""
    pace = min(p.samples / p.seconds / n for p, n in zip(passes, sizes, strict=True))
    return LoaderRate(pace * total, tuple(passes))


def _drop(arguments: Mapping[str, Any], files: list[Path]) -> DroppedFiles:
    """Drop the files that arguments of the data set name; ``files`` takes them."""
    try:
        files += named_files(arguments)
        drop_from_page_cache(files)
        share, size = resident_share(files), sum(file.stat().st_size for file in files)
    except ValueError as error:
        return DroppedFiles(obstacle=str(error))
    except OSError as error:  # by its words alone: records name no folder of the machine
        return DroppedFiles(len(files), obstacle=f"could not be made cold: {error.strerror}")
    obstacle = None
    if share is None:
        obstacle = "no argument of the data set names a file that could be dropped from memory"
    elif share > COLD_SHARE:
        obstacle = (
            f"could not be made cold: {share:.0%} of the files stayed in memory when they were "
            "dropped (a file system in memory, or another process has them mapped)"
        )
    return DroppedFiles(len(files), size, share, None, obstacle)


def _not_cold(host: DroppedFiles) -> str | None:
    """Why the pass after ``host`` dropped its files was not a cold one; None where it was."""
    if host.obstacle is None and (host.resident_share_after or 0) <= (host.resident_share or 0):
        return "the loaders read nothing of the files: all is in memory before the first batch"
    return host.obstacle

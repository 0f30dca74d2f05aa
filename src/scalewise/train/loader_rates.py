"""Samples/s of the training loaders of all ranks without a model, page cache cold and warm apart.

The ranks of such a cell have the cores and the environment that they train with, and iterate over
the loaders that training would build, all at the same time.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import Sampler

from scalewise.config import CellConfig, ConfigError, LoaderConfig
from scalewise.host import drop_from_page_cache, named_files, resident_share, storage_bytes_read
from scalewise.records import (
    CellFolder,
    HeartbeatWriter,
    LoaderPass,
    LoaderRate,
    LoaderRecord,
    RankSummary,
    save_loader,
)
from scalewise.train.build import build_data, data_share
from scalewise.train.data import make_loader
from scalewise.train.rank import RankContext, Team, gathered, settle_device
from scalewise.train.recording import untrained_summary
from scalewise.train.recording.step_timer import count_samples

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
    try:
        settle_device(rank, cell.hardware.memory_cap_gib, cell.execution.device_check)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    team = Team(rank.rank, rank.world_size, cell.sweep.collective_timeout_s)
    share = data_share(cell, rank)
    assert share.sizes is not None and share.shard is not None
    replayed = cell.execution.kind == "cudagraph" and rank.device.kind == "cuda"
    together = cell.execution.steps_per_batch if replayed else 1
    data = build_data(dataclasses.replace(cell, validation="never"), rank, None, share, together)
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
    dropped = _drop(cell.dataset.arguments, files) if rank.local_rank == 0 else None
    team.barrier()
    first, taken = run_pass(loader, cell.loader, seconds, pulse.beat)
    team.barrier()
    if dropped is not None and dropped.resident_share is not None:
        dropped = dataclasses.replace(dropped, resident_share_after=resident_share(files))
    del loader  # and its workers with it
    again = RepeatedBatches(islice(sampler, taken))
    loader = make_loader(dataset, again, cell.loader, rank.device.kind)
    team.barrier()
    second, _ = run_pass(loader, cell.loader, seconds, pulse.beat)
    own = (share.sizes[share.shard], first, second, dropped)
    sizes, cold, warm, drops = zip(*gathered(own, rank.world_size), strict=True)
    record = _record(sizes, share.sizes.total, together, cell.loader, cold, warm, drops)
    if rank.is_first:
        save_loader(folder.path, record)
    rates = {
        name: None if rate is None else rate.global_samples_per_s
        for name, rate in (
            ("loader_samples_per_s", record.warm),
            ("loader_cold_samples_per_s", record.cold),
        )
    }
    summary = untrained_summary(rank, rates, "workload=loader: loaders ran, nothing was trained")
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
    read_before = storage_bytes_read()
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
    read = storage_bytes_read()  # the workers live until the loader goes
    storage = None if read is None or read_before is None else max(0, read - read_before)
    return LoaderPass(ready - began, ended - ready, batches, samples, storage), taken


@dataclass(frozen=True)
class Dropped:
    """The files of the data set on one host, and what of them lay in its page cache."""

    files: int = 0
    file_bytes: int = 0
    resident_share: float | None = None
    """After they were dropped."""
    resident_share_after: float | None = None
    """After the pass that followed."""
    obstacle: str | None = None
    """Why that pass cannot be called cold."""


def _drop(arguments: Mapping[str, Any], files: list[Path]) -> Dropped:
    """Drop the files that arguments of the data set name; ``files`` takes them."""
    try:
        files += named_files(arguments)
        drop_from_page_cache(files)
        share, size = resident_share(files), sum(file.stat().st_size for file in files)
    except ValueError as error:
        return Dropped(obstacle=str(error))
    except OSError as error:
        return Dropped(obstacle=f"a file of the data set could not be dropped: {error.strerror}")
    obstacle = None
    if not size:
        obstacle = "no argument of the data set names a file that could be dropped from memory"
    elif share is not None and share > COLD_SHARE:
        obstacle = (
            f"could not be made cold: {share:.0%} of the files stayed in memory when they were "
            "dropped (a file system in memory, or another process has them mapped)"
        )
    return Dropped(len(files), size, share, None, obstacle)


def _record(
    sizes: Sequence[int],
    total: int,
    together: int,
    config: LoaderConfig,
    cold: Sequence[LoaderPass],
    warm: Sequence[LoaderPass],
    drops: Sequence[Dropped | None],
) -> LoaderRecord:
    """Every rank's passes in one record, with the reasons for what is missing."""
    fewest = FEWEST_ROUNDS * max(1, config.num_workers)
    hosts = [one for one in drops if one is not None]
    obstacles = [one.obstacle for one in hosts if one.obstacle is not None]
    missing: dict[str, str] = {}
    if obstacles:
        missing["cold"] = obstacles[0]
    elif not _was_read(hosts, cold):
        missing["cold"] = (
            "the loaders read nothing of the files: the data are in memory before the first batch"
        )
    rates: dict[str, LoaderRate | None] = {}
    for state, passes in (("cold", cold), ("warm", warm)):
        least = min(passes, key=lambda one: one.batches)
        if least.batches < fewest or least.seconds < FEWEST_S:
            missing.setdefault(
                state,
                f"only {least.batches} batches came to a rank after its start, in "
                f"{least.seconds:.2g} s; a rate needs {fewest}, in {FEWEST_S:g} s or more",
            )
        pace = [p.samples / p.seconds / n for p, n in zip(passes, sizes, strict=True) if p.seconds]
        rates[state] = None if state in missing else LoaderRate(total * min(pace), tuple(passes))
    return LoaderRecord(
        tuple(sizes), together, rates["warm"], rates["cold"], hosts[0].files, hosts[0].file_bytes,
        hosts[0].resident_share, hosts[0].resident_share_after, missing,
    )  # fmt: skip


def _was_read(hosts: Sequence[Dropped], passes: Sequence[LoaderPass]) -> bool:
    """Whether files of the data set were read in these passes.

    The page cache tells. Where it does not, what the ranks read from storage stands for it, which
    may have been other files.
    """
    after = hosts[0].resident_share_after
    if after is not None:
        return after > (hosts[0].resident_share or 0.0)
    return any(one.storage_bytes for one in passes)

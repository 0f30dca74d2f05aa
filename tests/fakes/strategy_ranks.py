"""Many cells in one pair of processes: starting ranks takes longer than training a small model.

    trained = train_variants(folder, {"ddp": (*BASE, "strategy=ddp", "strategy.devices=2")})

Each variant is a list of Hydra overrides. Variants for one device run in the first rank alone,
all others in both ranks (gloo); each is a real cell with real records below ``folder``. Names that
begin with ``TWO_HOSTS`` take the two ranks for two hosts of one device each; in those that begin
with ``JITTERED`` the second rank sleeps up to ``MOST_JITTER_S`` in each forward pass, and the first
``REST_S``: it would else be thousands of steps ahead of a rank that it never meets.
"""

import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from fakes.rank_team import run_ranks
from scalewise.records import CellFolder, DeviceInfo, RankSummary, read_metrics, read_shard

RANKS = 2
TWO_HOSTS = "two_hosts_"
JITTERED = "jittered_"
MOST_JITTER_S = 0.02
REST_S = 0.005

BASE = (
    "model=medium", "model.dropout=0", "dataset=tabular", "dataset.samples=2000", "hardware=cpu",
    "tracking=none", "batch_size=16", "max_steps=50", "warmup_steps=5", "validation=never",
    "log_every_n_steps=1",
)  # fmt: skip
"""50 steps in fp32 of a model without dropout or batch statistics."""


@dataclass(frozen=True)
class Trained:
    """Variants by their names."""

    folder: Path
    losses: dict[str, list[float]]
    """Global training loss in each step: the mean over all samples of the global batch."""

    def cell(self, name: str) -> CellFolder:
        return CellFolder(self.folder / name)

    def rank(self, name: str, rank: int = 0) -> RankSummary:
        return self.cell(name).load_rank(rank)

    def ranks(self, name: str) -> list[RankSummary]:
        return [self.rank(name, rank) for rank in self.cell(name).ranks_with_steps()]

    def differences(self, name: str, baseline: str) -> list[float]:
        """Relative difference from the loss of the baseline in every step."""
        pairs = zip(self.losses[name], self.losses[baseline], strict=True)
        return [abs(a - b) / abs(b) for a, b in pairs]


def train_variants(folder: Path, variants: Mapping[str, Sequence[str]]) -> Trained:
    """Train every variant. Raises AssertionError with the ranks' errors where one of them fails."""
    from fakes.requests import composer

    plain = {name: composer().plain(words, 0) for name, words in variants.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "variants.json").write_text(json.dumps(plain))
    run_ranks("fakes.strategy_ranks", folder, RANKS)
    return Trained(folder, {name: global_losses(folder / name) for name in variants})


def global_losses(cell: Path) -> list[float]:
    """Mean loss over the samples of each global batch, from the records of all ranks."""
    folder = CellFolder(cell)
    parts: dict[int, tuple[int, dict[int, float]]] = {}
    for path in sorted((cell / "metrics").glob("rank*.jsonl")):
        rank = int(path.stem.removeprefix("rank"))
        summary = folder.load_rank(rank)
        shard = read_shard(folder.shard_path(rank), rank).data_shard
        losses = {
            row.step: row.values["train_loss"]
            for row in read_metrics(path)
            if row.values.get("train_loss") is not None
        }
        parts[rank if shard is None else shard] = (summary.samples_fed, losses)  # type: ignore[assignment]
    fed = sum(samples for samples, _ in parts.values())
    steps = sorted(next(iter(parts.values()))[1])
    return [sum(samples * losses[s] for samples, losses in parts.values()) / fed for s in steps]


def main(folder: Path, rank: int) -> None:
    """Train all variants as one rank."""
    import torch

    from scalewise.config import build_cell, without_absent_groups
    from scalewise.train import RankContext, experiment
    from scalewise.train.execution import ExperimentModule
    from scalewise.train.rank import join

    torch.set_num_threads(1)
    variants = json.loads((folder / "variants.json").read_text())
    cells = {name: build_cell(without_absent_groups(plain)) for name, plain in variants.items()}
    device = DeviceInfo("cpu", "a CPU")
    # Alone first: a process group, once it is there, stays.
    for name, cell in sorted(cells.items(), key=lambda item: item[1].strategy.kind != "single"):
        if cell.strategy.kind == "single":
            if rank == 0:
                experiment.run(cell, CellFolder(folder / name), RankContext(0, 0, 1, device))
        else:
            if not torch.distributed.is_initialized():
                join(rank, RANKS, "gloo", timedelta(minutes=2))
            hosts = 2 if name.startswith(TWO_HOSTS) else 1
            local_rank = 0 if hosts == 2 else rank
            os.environ |= {"NODE_RANK": str(rank - local_rank), "LOCAL_RANK": str(local_rank)}
            place = RankContext(rank, local_rank, RANKS, device, hosts)
            step = ExperimentModule.training_step
            if name.startswith(JITTERED):
                span_s = (0, MOST_JITTER_S) if rank == 1 else (REST_S, REST_S)
                ExperimentModule.training_step = _late(step, *span_s)  # type: ignore[method-assign]
            experiment.run(cell, CellFolder(folder / name), place)
            ExperimentModule.training_step = step  # type: ignore[method-assign]


def _late(step: Callable[..., Any], least_s: float, most_s: float) -> Callable[..., Any]:
    sleeps = random.Random(1)

    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(sleeps.uniform(least_s, most_s))
        return step(*args, **kwargs)

    return late

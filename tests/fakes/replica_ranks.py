"""One of four ranks: two replicas of two ranks each, with gradients that are easy to add up.

    python -m fakes.replica_ranks <folder>

Rank r is at place ``r % 2`` of replica ``r // 2`` and holds a parameter of its own place and a copy
of one that both places share. It writes what became of their gradients to ``rank<r>.json``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn

from scalewise.train.strategies.model_parallel import Replicas
from scalewise.train.strategies.pipeline import Ties

MAX_NORM = 3.0


class Part(nn.Module):
    """A stage with one parameter of its own and one that it shares."""

    def __init__(self, shared: nn.Parameter) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(2))
        self.shared = shared


def main() -> None:
    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo")
    replicas = Replicas.of_size(2)
    shared = nn.Parameter(torch.zeros(1))
    stages = [Part(shared), Part(shared)]
    ties = Ties(stages, replicas)
    stage = stages[replicas.place]
    stage.own.grad = torch.tensor([float(rank), 2.0])
    stage.shared.grad = torch.tensor([10.0 * (rank + 1)])
    ties.sum_gradients()
    summed = stage.shared.grad.tolist()
    replicas.average_gradients(stage.parameters())
    averaged = {"own": stage.own.grad.tolist(), "shared": stage.shared.grad.tolist()}
    replicas.clip(
        MAX_NORM,
        own=[p for p in stage.parameters() if ties.is_counted_here(p)],
        elsewhere=[p for p in stage.parameters() if not ties.is_counted_here(p)],
    )
    found = {
        "place": replicas.place,
        "ranks": replicas.ranks,
        "summed": summed,
        "averaged": averaged,
        "clipped": {"own": stage.own.grad.tolist(), "shared": stage.shared.grad.tolist()},
    }
    (Path(sys.argv[1]) / f"rank{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

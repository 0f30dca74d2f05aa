"""One of four ranks, each with one stage of a model, whose gradients are easy to add up.

A rank holds a parameter of its own and one more, of which the first and the last hold a copy each.
It writes what became of their gradients to ``rank<r>.json``, and which operations joined their
results as one rank with all samples would have found them.
"""

import json
from pathlib import Path
from typing import Any, get_args

import torch
from pytorch_lightning.plugins import Precision
from torch import distributed, nn

from scalewise.datasets.synthetic import PointClouds, SensorStreams
from scalewise.operations.sensors import Fusion, Mode, Voxelize
from scalewise.train.execution import ExperimentModule
from scalewise.train.strategies.pipeline import PipelineStrategy, Ties

MAX_NORM = 3.0


class Part(nn.Module):
    """A stage with one parameter of its own and one that it may share."""

    def __init__(self, shared: nn.Parameter) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(2))
        self.shared = shared


def main(folder: Path, rank: int) -> None:
    distributed.init_process_group("gloo")
    tied, second, third = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    stages = [Part(shared) for shared in (tied, second, third, tied)]
    ties = Ties(stages)
    stage = stages[rank]
    stage.own.grad = torch.tensor([float(rank), 2.0])
    stage.shared.grad = torch.tensor([10.0 * (rank + 1)])
    ties.sum_gradients()
    summed = {"own": stage.own.grad.tolist(), "shared": stage.shared.grad.tolist()}
    ties.clip(stage, MAX_NORM)
    found = {
        "summed": summed, "joined": joined(rank, distributed.get_world_size()),
        "validated": validated(rank, distributed.get_world_size()),
        "clipped": {"own": stage.own.grad.tolist(), "shared": stage.shared.grad.tolist()},
        "max_norm": MAX_NORM,
    }  # fmt: skip
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def validated(rank: int, world: int) -> list[Any]:
    """The scores of a batch to which each stage adds a digit, and the mean of losses 1 and 3."""
    strategy, scored = PipelineStrategy.__new__(PipelineStrategy), list[Any]()
    module = ExperimentModule.__new__(ExperimentModule)
    module.score = lambda output, target: scored.append([output.tolist(), target])  # type: ignore[method-assign]
    strategy.__dict__.update(
        place=rank, _stages=world, stage=lambda hidden, x: 10 * hidden + x + rank,
        _lightning_module=module, _precision_plugin=Precision(), cluster_environment=None,
        _parallel_devices=[torch.device("cpu")],
    )  # fmt: skip
    strategy.validation_step((torch.ones(1, 1), "target"), 0)
    losses = [torch.tensor(loss) for loss in (1.0, 3.0) if rank == world - 1]
    return [*scored, strategy.share_loss(losses).item()]


def joined(rank: int, world: int) -> list[str]:
    """The operations whose results over all ranks are right."""
    grid: Any = {"grid_minimum": (-1, -1, -1), "voxel_size": 0.5, "grid_shape": (4, 4, 4)}
    clouds = PointClouds(points=60, features=3, spread=1.0, samples=world)
    points, features = clouds.train.__getitems__(range(world))
    for mode in get_args(Mode):
        together = Voxelize(mode, **grid)((points[rank : rank + 1], features[rank : rank + 1]))
        everything = points.view(1, -1, 3), features.view(1, -1, 3)
        expected = Voxelize(mode, **grid, combine_ranks=False)(everything)
        torch.testing.assert_close(together, expected)
    data = SensorStreams([5, 9], [3, 2], targets=4, samples=world, dtype="fp32").train
    alone = [Fusion(combine_ranks=False)(data.__getitems__([row])) for row in range(world)]
    torch.testing.assert_close(Fusion()(data.__getitems__([rank])), torch.stack(alone).mean(0))
    return [*get_args(Mode), "fusion"]

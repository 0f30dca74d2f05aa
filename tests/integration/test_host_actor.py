"""A Ray actor and a SLURM task on their node, without Ray and SLURM: a supervisor trains."""

import pickle
import sys
from pathlib import Path

import pytest

from fakes.requests import asked
from fakes.train_command import LEAN, ROOT
from scalewise.cluster.hosts import ClusterDemand, Order
from scalewise.cluster.ray_cluster import HostActor
from scalewise.cluster.slurm_job import CellJob
from scalewise.records import CellFolder, Ending, read_steps
from scalewise.supervisor import Origin
from scalewise.sweep.plan import make_cell

SMALL = (*LEAN, "hardware=cpu", "hardware.cores_per_device=1", "batch_size=16", "validation=never")


@pytest.mark.parametrize("cluster", ["ray", "slurm"])
def test_an_order_becomes_a_cell_with_its_result(tmp_path: Path, cluster: str) -> None:
    cell = make_cell(asked(*SMALL), 0)
    folder = CellFolder(tmp_path / "sweep" / cell.planned.name)
    folder.save_config(cell.request.plain)
    earlier = Ending("failed", "host", "node1 was lost", None, None, None, (), 1, 1.0, 2.0)
    folder.save_attempt(earlier)
    origin = Origin(str(tmp_path), (str(ROOT / "src"), *sys.path), ("train.py",))
    order = Order(str(folder.path), cell.planned, ClusterDemand(1, 1, 0, 1), origin, "key")
    if cluster == "ray":
        ending = HostActor().run(order)
        assert ending.outcome == "done", ending.message
    else:
        pickle.loads(pickle.dumps(CellJob(order, time_min=5, signal_delay_s=60)))()
    result = folder.load_result()
    assert (result.cell_id, result.attempt) == (cell.planned.cell_id, 2)
    assert len(read_steps(folder.steps_path(0), 0).rows) == 12
    assert list(folder.attempts()) == [earlier]
    assert folder.last_beat() is None, "nothing says that it still runs"

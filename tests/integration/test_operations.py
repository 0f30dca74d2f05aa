"""Operations over two ranks: the joined result is that of one who had everything."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = """
import sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from scalewise.datasets.synthetic import PointClouds, SensorStreams
from scalewise.operations.sensors import Fusion
from scalewise.operations.sensors import Voxelize

GRID = {"grid_minimum": (-1, -1, -1), "voxel_size": 0.5, "grid_shape": (4, 4, 4)}

def rank(number, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", world_size=2, rank=number)
    torch.set_num_threads(1)
    clouds = PointClouds(points=60, features=3, spread=1.0, samples=2)
    points, features = clouds.train.__getitems__([0, 1])
    for mode in ("count", "occupancy", "mean", "max"):
        mine = points[number : number + 1], features[number : number + 1]
        joined = Voxelize(mode, **GRID)(mine)
        # Both clouds as one: what a single rank with all points would have found.
        everything = points.view(1, -1, 3), features.view(1, -1, 3)
        torch.testing.assert_close(joined, Voxelize(mode, **GRID, combine_ranks=False)(everything))
    data = SensorStreams([5, 9], [3, 2], targets=4, samples=2, dtype="fp32").train
    alone = [Fusion(combine_ranks=False)(data.__getitems__([row])) for row in (0, 1)]
    torch.testing.assert_close(Fusion()(data.__getitems__([number])), (alone[0] + alone[1]) / 2)
    dist.destroy_process_group()

if __name__ == "__main__":
    # Forked, so that one import is enough.
    mp.start_processes(rank, (int(sys.argv[1]),), nprocs=2, start_method="fork")
"""


def test_two_ranks_join_their_results(tmp_path: Path, free_port: int) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    run = subprocess.run(
        [sys.executable, str(script), str(free_port)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

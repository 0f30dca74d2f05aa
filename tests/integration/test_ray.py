"""The same sweep on a real Ray cluster: two nodes of this host, one of which is lost."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fakes.train_command import LEAN, ROOT, Train, end, make_train, makes_steps, wait_for
from scalewise.host import usable_cores
from scalewise.records import CellFolder

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="ray is not installed; pip install 'scalewise[ray]'",
    ),
    pytest.mark.skipif(len(usable_cores()) < 2, reason="a cell of two devices needs two cores"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """A runner that knows the address of a cluster; whatever a test leaves running fails it."""
    runner = make_train(tmp_path_factory.mktemp("ray"))
    local = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    runner.environment |= local
    nodes = subprocess.Popen(
        [sys.executable, "-m", "fakes.ray_nodes"],
        # Not the runner's own environment: its mark tells a sweep's processes from Ray's.
        env={**os.environ, **local, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        lines = iter(nodes.stdout.readline, "")
        address = next(line for line in lines if line.startswith("address ")).split()[1]
        runner.environment["RAY_ADDRESS"] = address
        yield runner
        assert end(runner) == {}
    finally:
        nodes.stdin.close()
        nodes.wait(30)
        nodes.stdout.close()


ON_RAY = (
    *(*LEAN, "-m", "batch_size=16", "hydra/launcher=ray", "hydra.launcher.gpus_per_device=1"),
    *("hardware=cpu", "hardware.cores_per_device=1"),
    *("model._target_=mine.Faulty", "dataset._target_=mine.Data"),
)
"""Each device takes a pretended GPU and a core."""


def runtime(runner: Train) -> str:
    return f"hydra.launcher.env.SCALEWISE_RUNTIME_DIR={runner.environment['SCALEWISE_RUNTIME_DIR']}"


def test_a_cell_of_two_devices_and_one_with_a_fault_end_as_on_this_host(
    cluster: Train, elsewhere: Path
) -> None:
    run = cluster(
        *(*ON_RAY, f"+{runtime(cluster)}", "strategy=ddp", "strategy.devices=2"),
        *("+model.fault=none,exception", "+model.rank=1"),
        cwd=elsewhere,
    )
    assert run.status == 1, run.err
    folders = [folder for _, folder in run.cells().values()]
    (done,) = [folder for folder in folders if folder.is_done()]
    (failed,) = [folder for folder in folders if not folder.is_done()]
    assert [rank.rank for rank in done.load_result().ranks] == [0, 1]
    assert [rank.steps_completed for rank in done.load_result().ranks] == [12, 12]
    (attempt,) = failed.attempts()
    assert (attempt.outcome, attempt.cause, attempt.rank) == ("failed", "exception", 1)
    assert attempt.last_lines
    assert not list(run.sweep.path.glob(".shared-*"))


def second_try(folder: CellFolder) -> bool:
    running = folder.find_running_attempt()
    return running is not None and running.number == 2


def test_a_cell_goes_to_another_node_when_its_own_is_lost_and_ctrl_c_ends_it(
    cluster: Train, elsewhere: Path
) -> None:
    known = cluster.sweeps(elsewhere)
    head = cluster.start(
        *(*ON_RAY, f"+{runtime(cluster)}", "strategy=single", "max_steps=100000"),
        "+model.step_ms=20",
        cwd=elsewhere,
    )
    folder = cluster.training(known, elsewhere)
    parents = psutil.Process(cluster.ranks()[0]).parents()
    next(p for p in parents if p.name() == "raylet").kill()  # the node on which the rank runs

    wait_for(lambda: second_try(folder) and makes_steps(folder), "steps on the other node", 120)
    os.kill(head.pid, signal.SIGINT)
    _, err = head.communicate(timeout=60)
    assert head.returncode == 130, err
    first, second = folder.attempts()
    assert (first.outcome, first.cause) == ("failed", "host")
    assert "Ray lost node" in first.message
    assert (second.outcome, second.cause) == ("interrupted", "interrupted")
    wait_for(lambda: not cluster.processes(), "the end of all processes", 30)

"""Cells on other hosts: what hosts are told and what they answer."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from scalewise.cluster.engine import Lost, RemoteCell, record_loss
from scalewise.cluster.hosts import (
    MARK,
    Demand,
    Order,
    answer_in,
    forwarded,
    from_line,
    granted,
    leased,
    run,
    to_line,
)
from scalewise.cluster.ray_cluster import Node, require_ray
from scalewise.cluster.ray_engine import RayEngine, ray_config
from scalewise.config import ConfigError, HardwareConfig, conf_dir, resolve
from scalewise.gpu import HostMismatch
from scalewise.host import interface_towards
from scalewise.records import Attempt, CellFolder, PlannedCell
from scalewise.supervisor import Origin, Outcome
from scalewise.supervisor.failures import mendable
from scalewise.sweep import Cell, make_display
from scalewise.sweep.plan import plan, request

PLANNED = PlannedCell("0" * 12, "1" * 12, "net-data-single-r0", ("a=1",), 0, 1)
ON_CPU = HardwareConfig("cpu", kind="cpu", cores_per_device=1)


def asked(*overrides: str) -> Cell:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose(config_name="config", overrides=list(overrides)))
    return plan([request(overrides, plain)], 0)[0]


def test_an_order_survives_its_way_to_a_host() -> None:
    origin = Origin("/home/me", ("/home/me/src",), ("train.py", "-m"))
    order = Order("/sweep/cell", PLANNED, Demand(4, 2, 2, 8), origin, "key", index=1)
    assert from_line(Order, to_line(order)) == order


def test_an_answer_is_found_among_what_else_is_printed() -> None:
    outcome = Outcome("failed", "rank 1: of a fault")
    output = b"Welcome to node1\n" + b"\n" + MARK + to_line(outcome)
    told = answer_in(output)
    assert told is not None
    assert from_line(Outcome, told) == outcome
    assert answer_in(b"Welcome to node1\n") is None
    assert answer_in(output[:-5]) is None, "half an answer is none"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"address": "ray://head:10001"}, "address: found 'ray://head:10001'"),
        ({"gpus_per_device": 2}, "gpus_per_device: found 2"),
        ({"policy": "greedy"}, "hydra.launcher.policy"),
    ],
)
def test_a_wrong_key_of_the_ray_launcher_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ray_config(options)
    assert words in str(caught.value)


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'scalewise\[ray\]'"):
        require_ray()


@pytest.mark.parametrize("module", ["sweep.launcher", "cluster.ray_engine", "cluster.hosts"])
def test_nothing_loads_ray_before_a_cluster_is_asked_for(module: str) -> None:
    code = f"import sys, scalewise.{module}; print('ray' in sys.modules)"
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.strip() == "False"


def test_a_cell_that_was_lost_with_its_actor_is_tried_again() -> None:
    said = "the supervisor was lost with its Ray actor on 10.0.0.1: The actor died"
    lost = Attempt(1, "failed", "supervisor", said, None, None, (), 1.0, 2.0)
    assert mendable(lost) == "the supervisor was lost"


def test_a_node_holds_what_fits_one_of_its_hosts() -> None:
    node = Node("id", "10.0.0.1", cpus=16, gpus=4)
    assert node.holds(Demand(4, 1, 4, 4))
    assert not node.holds(Demand(4, 1, 4, 5)), "20 CPUs"
    assert not node.holds(Demand(8, 1, 8, 1))
    assert node.holds(Demand(8, 2, 4, 4)), "half of it"


def test_only_variables_that_mean_the_same_everywhere_go_along() -> None:
    environment = {"NCCL_DEBUG": "INFO", "HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "0"}
    assert forwarded(environment, {"HF_HOME": "/data"}) == {
        "NCCL_DEBUG": "INFO",
        "HF_HOME": "/data",
    }


def test_a_host_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    order = Order(str(tmp_path / "no"), PLANNED, Demand(1, 1, 0, 1), Origin("/", (), ()), "key")
    nobody: Any = None
    outcome = run(order, nobody)
    assert outcome.state == "failed"
    assert "hydra.sweep.dir" in outcome.message


def test_a_wide_cell_needs_only_its_share_of_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    cell: Any = SimpleNamespace(hardware=ON_CPU)
    devices = len(os.sched_getaffinity(0))
    host = granted(cell, Demand(4 * devices, 4, 0, 1))
    assert len(host.slots) == devices


def test_nobody_waits_for_devices_of_a_sweep_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path))
    cell: Any = SimpleNamespace(hardware=ON_CPU)
    host = granted(cell, Demand(1, 1, 0, 1))
    stopped = pytest.raises(HostMismatch, match="stopped while it waited")
    with leased(host, len(host.slots)), stopped, leased(host, 1, go_on=lambda: False):
        pass


def test_the_interface_of_this_hosts_own_address_is_loopback() -> None:
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("not an address") is None


class Host:
    """A link that has answered."""

    def __init__(self, host: str, answer: Outcome | Lost | None) -> None:
        self.host = host
        self._answer = answer

    def answer(self) -> Outcome | Lost | None:
        return self._answer

    def tell(self, line: str) -> None:
        raise AssertionError("nobody is told")

    def stop(self) -> None:
        raise AssertionError("nobody is stopped")

    def drop(self) -> None:
        raise AssertionError("nobody is dropped")


def remote(folder: CellFolder, *hosts: Host) -> RemoteCell:
    cell: Any = SimpleNamespace(planned=PLANNED)
    running = RemoteCell(cell, folder, Demand(len(hosts), len(hosts), 0, 1), hosts, 1, 100.0)
    running.take_answers()
    return running


def test_what_a_lost_host_could_not_record_is_recorded_for_it(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    running = remote(folder, Host("a", Outcome("interrupted")), Host("b", Lost("b is gone")))
    assert running.lost_a_host
    assert running.outcome_without_result() == Outcome("failed", "b is gone")
    (attempt,) = folder.attempts()
    assert (attempt.outcome, attempt.cause, attempt.message) == ("failed", "host", "b is gone")


@pytest.mark.parametrize(
    ("outcome", "cause", "message", "rank"),
    [
        ("interrupted", "interrupted", "the sweep ended", None),
        ("failed", "exception", "rank 0: RuntimeError: Connection closed by peer", 0),
    ],
)
def test_a_supervisor_that_saw_only_what_came_of_a_loss_is_corrected(
    tmp_path: Path, outcome: Any, cause: Any, message: str, rank: int | None
) -> None:
    folder = CellFolder(tmp_path)
    folder.save_attempt(Attempt(1, outcome, cause, message, rank, None, (), 1.0, 2.0))
    record_loss(folder, 1, "host", "b is gone", 1.0)
    (attempt,) = folder.attempts()
    assert (attempt.outcome, attempt.cause, attempt.message) == ("failed", "host", "b is gone")
    assert attempt.rank is None


def test_a_supervisor_that_knows_the_cause_is_believed(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    known = Attempt(1, "failed", "oom", "rank 0: out of memory", 0, 1, (), 1.0, 2.0)
    folder.save_attempt(known)
    assert record_loss(folder, 1, "host", "b is gone", 1.0).message == "rank 0: out of memory"
    assert list(folder.attempts()) == [known]


def test_a_cell_has_ended_when_all_of_its_hosts_have_answered(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    running = remote(folder, Host("a", None), Host("b", Outcome("failed", "of a fault")))
    assert not running.ended
    assert running.failed_at is not None
    assert remote(folder, Host("a", Outcome("done"))).ended


class Cluster:
    """Nodes, without Ray behind them."""

    def __init__(self, *nodes: Node) -> None:
        self._nodes = list(nodes)

    def nodes(self) -> list[Node]:
        return self._nodes


@pytest.fixture
def on_ray(tmp_path: Path) -> RayEngine:
    pytest.importorskip("ray", reason="ray is not installed; pip install 'scalewise[ray]'")
    config = ray_config({"cpus_per_device": 4})
    engine = RayEngine(tmp_path, config, make_display(io.StringIO()))
    nodes: Any = Cluster(Node("a", "10.0.0.1", 32, 8), Node("b", "10.0.0.2", 32, 8))
    engine._cluster = nodes
    return engine


def test_a_cell_wider_than_a_node_takes_several(on_ray: RayEngine) -> None:
    on_ray._ask_for(asked("strategy=ddp", "strategy.devices=16", "hardware=h200"))
    on_ray._ask_for(asked("strategy=ddp", "strategy.devices=4", "hardware=h200"))
    on_ray._ask_for(asked("strategy=ddp", "hardware=h200"))
    wanted = [wanted for _, wanted in on_ray._queue]
    assert [(one.nodes, one.gpus_per_node, one.cpus_per_node) for one in wanted] == [
        (2, 8, 32),
        (1, 4, 16),
        (1, 8, 32),
    ]


def test_what_no_node_of_the_cluster_holds_is_refused(on_ray: RayEngine) -> None:
    with pytest.raises(HostMismatch) as caught:
        on_ray._ask_for(asked("strategy=ddp", "strategy.devices=32", "hardware=h200"))
    assert "of 2 nodes of the Ray cluster 2 hold that (the largest: 8 GPUs and 32 CPUs)" in str(
        caught.value
    )

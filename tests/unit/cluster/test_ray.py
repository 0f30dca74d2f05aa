"""Cells on a Ray cluster: what nodes are asked for, what they answer, and what was lost."""

import importlib.util
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from fakes.requests import asked as request_of
from scalewise.cluster import hosts, ray_executor
from scalewise.cluster.hosts import ClusterDemand, Order, granted, leased, train_here
from scalewise.cluster.ray_cluster import SILENCE_S, HostActor, Node, RayCluster, require_ray
from scalewise.cluster.ray_executor import HostLink, RayCell, RayConfig, RayExecutor
from scalewise.config import ConfigError, HardwareConfig
from scalewise.gpu import HostMismatch
from scalewise.records import CellFolder, Ending, PlannedCell
from scalewise.supervisor import Origin
from scalewise.sweep import Cell
from scalewise.sweep.plan import plan

PLANNED = PlannedCell("0" * 12, "1" * 12, "net-data-single-r0", ("a=1",), 0, 1)
ON_CPU = HardwareConfig("cpu", kind="cpu", cores_per_device=1)


def asked(*overrides: str) -> Cell:
    return plan([request_of(*overrides)], 0)[0]


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'scalewise\[ray\]'"):
        require_ray()


@pytest.mark.parametrize(
    ("address", "named", "refused"),
    [("auto", None, False), ("auto", "10.0.0.1:6379", True), ("10.0.0.1:6379", None, True)],
)
def test_only_where_no_cluster_was_named_one_is_started(
    monkeypatch: pytest.MonkeyPatch, address: str, named: str | None, refused: bool
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if named:
        monkeypatch.setenv("RAY_ADDRESS", named)
    cluster = RayCluster.__new__(RayCluster)
    cluster._ray = SimpleNamespace(init=Mock(side_effect=ConnectionError("nobody there")))
    with pytest.raises(ConfigError, match="no Ray cluster answers") if refused else nullcontext():
        assert not cluster._connected(address, {})


def test_a_node_holds_what_fits_one_of_its_hosts() -> None:
    node = Node("id", "10.0.0.1", cpus=16, gpus=4)
    assert node.holds(ClusterDemand(4, 1, 4, 4))
    assert not node.holds(ClusterDemand(4, 1, 4, 5)), "20 CPUs"
    assert not node.holds(ClusterDemand(8, 1, 8, 1))
    assert node.holds(ClusterDemand(8, 2, 4, 4)), "half of it"


def test_a_host_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    order = Order(str(tmp_path / "no"), PLANNED, ClusterDemand(1, 1, 0, 1), Origin("/", (), ()))
    ending = HostActor().run(order)
    assert (ending.outcome, ending.is_lost) == ("failed", False)
    assert "hydra.sweep.dir" in ending.message


def test_nobody_waits_for_devices_of_a_sweep_that_is_gone() -> None:
    cell: Any = SimpleNamespace(hardware=ON_CPU)
    host = granted(cell, ClusterDemand(1, 1, 0, 1))
    stopped = pytest.raises(HostMismatch, match="stopped while it waited")
    with leased(host, len(host.slots)), stopped, leased(host, 1, go_on=lambda: False):
        pass


@pytest.mark.parametrize(
    ("nodes", "index", "told"), [(1, 0, None), (2, 0, "announce"), (2, 1, "meet")]
)
def test_the_first_of_several_hosts_says_where_it_is_and_the_others_ask(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: int, index: int, told: str | None
) -> None:
    for name in ("announce", "meet"):
        monkeypatch.setattr(hosts, name, lambda *_, name=name: name)
    folder, found = CellFolder(tmp_path / "cell"), list[Any]()
    folder.save_config(request_of("hardware=cpu", "hardware.cores_per_device=1").plain)
    wanted, origin = ClusterDemand(nodes, nodes, 0, 1), Origin("/", (), ())
    order = Order(str(folder.path), PLANNED, wanted, origin, "key", index)
    train_here(order, lambda job, locks: found.append(job.nodes) or Ending("done"))
    assert found == [told]


def test_an_actor_is_wanted_until_stopped_or_without_news(monkeypatch: pytest.MonkeyPatch) -> None:
    actor, now = HostActor(), time.monotonic()
    assert actor._is_wanted()
    monkeypatch.setattr(time, "monotonic", lambda: now + SILENCE_S + 60)
    assert not actor._is_wanted()
    actor.hear()
    assert actor._is_wanted()
    actor.stop()
    assert not actor._is_wanted()


LOST = Ending("failed", "host", "b is gone")


def link(host: str, answer: Ending | None) -> Mock:
    """To a host that has answered."""
    return Mock(host=host, answer=lambda: answer)


def remote(folder: CellFolder, *hosts: Any) -> RayCell:
    cell: Any = SimpleNamespace(planned=PLANNED)
    wanted, room = ClusterDemand(len(hosts), len(hosts), 0, 1), cast(Any, None)
    running = RayCell(cell, folder, wanted, hosts, room, 1)
    running.take_answers()
    return running


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (("interrupted", "interrupted", "the sweep ended", None), "b is gone"),
        (("failed", "peer", "rank 0: RuntimeError: Connection closed by peer", 0), "b is gone"),
        (("failed", "oom", "rank 0: out of memory", 0), "rank 0: out of memory"),
    ],
    ids=["saw the sweep go", "saw a peer go", "knows the cause"],
)
def test_a_supervisor_that_saw_only_what_came_of_a_loss_is_corrected(
    tmp_path: Path, known: Any, told: str
) -> None:
    folder = CellFolder(tmp_path)
    recorded = Ending(*known, number=1)
    folder.save_attempt(recorded)
    running = remote(folder, link("b", LOST))
    assert (running.ending().outcome, running.ending().message) == ("failed", told)
    lost = replace(recorded, outcome="failed", cause="host", message="b is gone", rank=None)
    assert list(folder.attempts()) == [recorded if recorded.message == told else lost]


def test_where_a_host_failed_the_others_get_time_are_stopped_and_given_up(tmp_path: Path) -> None:
    late, failed = link("a", None), link("b", Ending("failed", "exception", "of a fault", number=1))
    running = remote(CellFolder(tmp_path), late, failed)
    for shares, stops, given_up in ((0.9, 0, False), (1.1, 1, False), (2.1, 1, True)):
        running.failed_at = time.monotonic() - shares * ray_executor._OTHERS_S
        running.end_others()
        assert (late.stop.call_count, running.ended) == (stops, given_up)
    remote(CellFolder(tmp_path), late, link("b", LOST)).end_others()
    assert late.stop.call_count == 2, "at once"
    assert remote(CellFolder(tmp_path), link("a", Ending("done"))).ended
    cell = Mock(ended=False)
    cell.take_answers.side_effect = lambda: setattr(cell, "ended", True)
    RayExecutor(RayConfig(cpus_per_device=4)).cancel([cell], math.inf)
    assert [name for name, *_ in cell.method_calls] == ["stop", "take_answers", "drop"]


NODES = (Node("a", "10.0.0.1", 32, 8), Node("b", "10.0.0.2", 32, 8))


@pytest.fixture
def on_ray() -> RayExecutor:
    executor = RayExecutor(RayConfig(cpus_per_device=4))
    executor._cluster = cast(RayCluster, SimpleNamespace(nodes=lambda: NODES))
    return executor


def test_a_cell_wider_than_a_node_takes_several(on_ray: RayExecutor) -> None:
    wanted = [
        on_ray.demand(asked("strategy=ddp", f"strategy.devices={devices}", "hardware=h200"))
        for devices in (16, 4, "auto")
    ]
    on_cpu = ("hardware=cpu", "strategy=ddp", "hardware.cores_per_device=6")
    wanted.append(on_ray.demand(asked(*on_cpu, "batch_size=960", "strategy.devices=auto")))
    found = [(one.nodes, one.gpus_per_node, one.cpus_per_node) for one in wanted]
    assert found == [(2, 8, 32), (1, 4, 16), (1, 8, 32), (1, 0, 30)]


def test_what_no_node_of_the_cluster_holds_is_refused(on_ray: RayExecutor) -> None:
    told = r"of 2 nodes of the Ray cluster 2 hold that \(the largest: 8 GPUs and 32 CPUs\)"
    with pytest.raises(HostMismatch, match=told):
        on_ray.demand(asked("strategy=ddp", "strategy.devices=32", "hardware=h200"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Ending("done"), ("done", None, "")),
        (Ending("failed", "supervisor", "it died"),
         ("failed", "supervisor", "it died (on 10.0.0.1)")),
        (RuntimeError("node"), ("failed", "host", "Ray lost node 10.0.0.1 (a)")),
        (RuntimeError("actor"), None),
    ],
    ids=["done", "supervisor lost", "node lost", "not known yet"],
)  # fmt: skip
def test_a_link_says_what_was_lost(answer: Any, expected: Any) -> None:
    def get(reference: object, timeout_s: float) -> Ending:
        if isinstance(answer, Exception):
            raise answer
        return cast(Ending, answer)

    alive = [] if str(answer) == "node" else [NODES[0]]
    cluster: Any = SimpleNamespace(
        is_ready=lambda run: True, get=get, errors=(RuntimeError,), nodes=lambda: alive
    )
    order = Order("cell", PLANNED, ClusterDemand(1, 1, 0, 1), Origin("/", (), ()))
    said = HostLink(cluster, NODES[0], Mock(), order).answer()
    assert (said and (said.outcome, said.cause, said.message)) == expected

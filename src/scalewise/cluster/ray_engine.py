"""Runs the cells of a sweep on a Ray cluster: a placement group a cell, an actor for each host."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveInt

from scalewise.cluster.engine import HostLink, Lost, RemoteEngine
from scalewise.cluster.hosts import Demand, Order, answer_in, demand, from_line, per_device
from scalewise.cluster.ray_cluster import Answer, Node, RayCluster, Reservation, require_ray
from scalewise.config import ConfigError, in_one_line, require
from scalewise.gpu import HostMismatch
from scalewise.records import DataError, build
from scalewise.supervisor import Outcome
from scalewise.sweep import Cell, Display, SweepReport

# What ``hydra/launcher=ray`` may be told. Ray itself is an optional extra, imported elsewhere.


@dataclass(frozen=True)
class RayConfig:
    """The config group ``hydra/launcher``, option ``ray``."""

    address: str = "auto"
    """``host:port`` of a cluster's head; ``auto``: $RAY_ADDRESS, else a cluster that runs on this
    host, else ``local``; ``local``: one of this host alone, which ends with the sweep."""
    policy: Literal["exclusive", "packed"] = "exclusive"
    """``exclusive``: each cell has its nodes to itself; ``packed``: cells share them."""
    wrap: str | None = None
    """Command around each rank's own: see :mod:`scalewise.wrap`."""
    gpus_per_device: Literal[0, 1, "auto"] = "auto"
    """1, or 0 for nodes without GPUs; ``auto`` is 0 with a CPU profile and 1 with any other."""
    cpus_per_device: PositiveInt = 1
    """CPUs, as Ray counts them, of one rank; also its cores with ``hardware=cpu``."""
    devices_per_node: PositiveInt | None = None
    """The widest cell that one node is to run; null: what the largest node has."""
    wait_for_nodes_s: NonNegativeFloat = 0.0
    """How long a cell waits for nodes that the cluster does not have yet, but may get."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for every node, beside NCCL_*, GLOO_* and TORCH_*, which go along by themselves."""

    def __post_init__(self) -> None:
        client = self.address.startswith("ray://")
        allowed = "auto | local | host:port; Ray's client (ray://) would run the sweep elsewhere"
        require("address", self.address, bool(self.address) and not client, allowed)


def ray_config(options: Mapping[str, Any]) -> RayConfig:
    """The typed ``hydra.launcher``. Raises :class:`ConfigError`."""
    try:
        return build(RayConfig, dict(options))
    except (DataError, ValueError) as error:
        raise ConfigError(f"hydra.launcher.{error}") from None


# One host of a running cell, through its Ray actor.


_DEAD_S = 20.0
"""How long Ray may take to notice that a node is gone whose actor is."""


class ActorLink:
    """Gives an order to an actor and waits for its answer."""

    def __init__(
        self,
        cluster: RayCluster,
        node: Node,
        actor: Any,
        order: Order,
        reservation: Reservation | None,
    ) -> None:
        self.host = node.node_id
        self._cluster, self._node, self._actor = cluster, node, actor
        self._reservation = reservation
        self._broken: tuple[float, str] | None = None
        self._run = actor.run.remote(order)

    def answer(self) -> Outcome | Lost | None:
        if self._broken is None:
            try:
                if not self._cluster.is_ready(self._run):
                    return None
                return _outcome(self._cluster.get(self._run, 0), self._node.address)
            except self._cluster.errors as error:
                self._broken = (time.monotonic(), in_one_line(error, 300))
        return self._loss(*self._broken)

    def _loss(self, since: float, said: str) -> Lost | None:
        """None while it is not clear yet whether the node went with the actor."""
        if all(node.node_id != self._node.node_id for node in self._cluster.nodes()):
            return Lost(f"Ray lost node {self._node.address} ({self._node.node_id[:8]})")
        if time.monotonic() - since < _DEAD_S:
            return None
        where = self._node.address
        return Lost(f"the supervisor was lost with its Ray actor on {where}: {said}", is_host=False)

    def tell(self, line: str) -> None:
        self._actor.tell.remote(line)

    def stop(self) -> None:
        self._actor.stop.remote()

    def drop(self) -> None:
        self._cluster.end(self._actor)
        if self._reservation is not None:
            self._reservation.free()


def _outcome(answer: Answer, address: str) -> Outcome | Lost:
    told = answer_in(answer.output)
    if told is not None:
        return from_line(Outcome, told)
    lines = answer.errors.strip().splitlines()
    said = f": {lines[-1]}" if lines else ""
    code = answer.status
    how = f"ended by SIG{-code}" if code < 0 else f"exited with {code}"
    return Lost(f"the supervisor on {address} was {how}{said}", is_host=False)


_ADDRESS_S = 20.0
"""Less than the hosts of other cells may hear nothing from the sweep."""


class RayEngine(RemoteEngine):
    """One sweep on a Ray cluster."""

    def __init__(self, folder: Path, config: RayConfig, display: Display) -> None:
        require_ray()
        super().__init__(folder, config.policy, display, dict(config.env))
        self._config = config
        self._asked: tuple[str, Reservation, float] | None = None
        """The cell whose turn it is, what was reserved for it, and since when."""

    def run(self, cells: Sequence[Cell]) -> SweepReport:
        self._cluster = RayCluster(self._config.address, self.display)
        try:
            return super().run(cells)
        finally:
            self._cluster.close()

    def _ask_for(self, cell: Cell) -> None:
        nodes = self._cluster.nodes()
        wide = self._config.devices_per_node or self._widest(cell, nodes)
        wanted = demand(cell.request.cell, replace(self._config, devices_per_node=wide))
        if self._config.wait_for_nodes_s == 0:
            self._require_room(wanted, nodes)
        self._queue.append((cell, wanted))

    def _widest(self, cell: Cell, nodes: Sequence[Node]) -> int | None:
        """Devices of the largest node for such a cell; None where there are none."""
        gpus, cores = per_device(cell.request.cell, self._config)
        fitting = [node.cpus // cores if not gpus else node.gpus // gpus for node in nodes]
        most = max(fitting, default=0)
        return most or None

    def _require_room(self, wanted: Demand, nodes: Sequence[Node]) -> None:
        fitting = sum(node.holds(wanted) for node in nodes)
        if fitting < wanted.nodes:
            largest = max(nodes, key=lambda n: (n.gpus, n.cpus), default=None)
            has = "no node" if largest is None else f"{largest.gpus} GPUs and {largest.cpus} CPUs"
            raise HostMismatch(
                f"{wanted} with {wanted.cpus_per_device} CPUs each were asked for; of "
                f"{len(nodes)} nodes of the Ray cluster {fitting} hold that (the largest: {has}); "
                "allowed: fewer devices, or hydra.launcher.wait_for_nodes_s for a cluster that "
                "grows"
            )

    def _links(self, orders: Sequence[Order], wanted: Demand) -> Sequence[HostLink] | None:
        name = orders[0].cell.cell_id
        if self._asked is None or self._asked[0] != name:
            self._give_back()
            whole = self._config.policy == "exclusive"
            self._asked = (name, self._cluster.reserve(wanted, whole), time.monotonic())
        _, reservation, since = self._asked
        if not reservation.is_ready():
            if time.monotonic() - since > self._config.wait_for_nodes_s:
                self._check_still_possible(wanted)
            return None
        self._asked = None
        return self._started(orders, wanted, reservation)

    def _check_still_possible(self, wanted: Demand) -> None:
        """A cluster that has lost nodes may have no place left: not a reason to wait for ever."""
        try:
            self._require_room(wanted, self._cluster.nodes())
        except HostMismatch:
            self._give_back()
            raise

    def _give_back(self) -> None:
        if self._asked is not None:
            self._asked[1].free()
            self._asked = None

    def _started(
        self, orders: Sequence[Order], wanted: Demand, reservation: Reservation
    ) -> Sequence[HostLink] | None:
        known = {node.node_id: node for node in self._cluster.nodes()}
        placed = reservation.nodes()
        actors = [self._cluster.actor(reservation, i, wanted) for i in range(wanted.nodes)]
        gone: tuple[type[Exception], ...] = (KeyError, *self._cluster.errors)
        try:
            nodes = [known[node_id] for node_id in placed]
            address = ""
            if wanted.nodes > 1:
                address = self._cluster.get(actors[0].address.remote(), _ADDRESS_S)
        except gone:
            # A node went just after it was given to us: ask for others at the next look.
            for actor in actors:
                self._cluster.end(actor)
            reservation.free()
            return None
        return [
            ActorLink(
                self._cluster,
                node,
                actor,
                replace(order, address=address, co_tenants=self._tenants(node.node_id)),
                # Freed once for all of the cell's hosts.
                reservation if order.index == wanted.nodes - 1 else None,
            )
            for node, actor, order in zip(nodes, actors, orders, strict=True)
        ]

    def _tenants(self, node_id: str) -> tuple[str, ...]:
        return tuple(r.cell.planned.name for r in self._cells if node_id in r.hosts)

    def _end_all(self, report: SweepReport, deadline: float) -> None:
        self._give_back()
        super()._end_all(report, deadline)

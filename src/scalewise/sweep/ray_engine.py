"""Runs the cells of a sweep on a Ray cluster: a placement group a cell, an actor for each host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scalewise.sweep.demand import Demand, demand, per_device
from scalewise.sweep.display import Display
from scalewise.sweep.lease import HostMismatch
from scalewise.sweep.order import Order
from scalewise.sweep.plan import Cell
from scalewise.sweep.ray import RayConfig
from scalewise.sweep.ray_cluster import Node, RayCluster, Reservation, require_ray
from scalewise.sweep.ray_link import ActorLink
from scalewise.sweep.remote import RemoteEngine
from scalewise.sweep.remote_cell import HostLink
from scalewise.sweep.sweep_report import SweepReport

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

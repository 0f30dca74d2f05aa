"""Runs the cells of a sweep on a Ray cluster: a placement group a cell, an actor for each host.

Each host of a cell is reached through a link that dies with the sweep. Where a host or a supervisor
was lost, the sweep puts its own word into the attempt that the cell itself recorded.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import NonNegativeFloat

from scalewise.cluster.hosts import (
    ClusterConfig,
    ClusterDemand,
    Order,
    attempt_since,
    demand,
    per_device,
)
from scalewise.cluster.ray_cluster import SILENCE_S, Node, RayCluster, Reservation
from scalewise.config import in_one_line, require
from scalewise.gpu import HostMismatch
from scalewise.records import ENV_SECRETS, Ending, SweepFolder
from scalewise.supervisor import Origin
from scalewise.sweep import Cell, Executor, Note, QueuedCell, RunningCell

_LOOK_S = 0.5
_ALIVE_EVERY_S = 5.0
_OTHERS_S = 15.0
"""How long the other hosts of a cell may take to end once one of them has failed."""
_LOST_S = SILENCE_S + 10.0
"""After so long, a host that cannot be reached has ended its part of a cell. A second try that
started earlier would share the cell's folder with the first."""
_DEAD_S = 20.0
"""How long Ray may take to notice that a node is gone whose actor is."""
_ADDRESS_S = 20.0
"""For a first host to tell its address: less than SILENCE_S, in which hosts of other cells end."""
_FORWARDED = ("NCCL_", "GLOO_", "TORCH_", ENV_SECRETS)
"""Variables of the sweep's environment that mean the same on every host."""


@dataclass(frozen=True)
class RayConfig(ClusterConfig):
    """The config group ``hydra/launcher``, option ``ray``.

    ``cpus_per_device`` are CPUs as Ray counts them; ``devices_per_node`` is, where it is null, what
    the largest node has.
    """

    address: str = "auto"
    """``host:port`` of a cluster's head; ``auto``: $RAY_ADDRESS, else a cluster that runs on this
    host, else ``local``; ``local``: one of this host alone, which ends with the sweep."""
    wait_for_nodes_s: NonNegativeFloat = 0.0
    """How long a cell waits for nodes that the cluster does not have yet, but may get."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for every node, beside NCCL_*, GLOO_* and TORCH_*, which go along by themselves."""

    def __post_init__(self) -> None:
        client = self.address.startswith("ray://")
        allowed = "auto | local | host:port; Ray's client (ray://) would run the sweep elsewhere"
        require("address", self.address, bool(self.address) and not client, allowed)


class HostLink:
    """One host's part of one running cell: gives an order to its actor and waits for the answer."""

    def __init__(self, cluster: RayCluster, node: Node, actor: Any, order: Order) -> None:
        self.host = node.node_id
        self._cluster, self._node, self._actor = cluster, node, actor
        self._broken: tuple[float, str] | None = None
        self._run = actor.run.remote(order)

    def answer(self) -> Ending | None:
        """How it ended; None while it runs. Does not wait.

        The link may break before the host has answered: then the ``host`` :attr:`is_lost`, or the
        supervisor of the cell where the host lives.
        """
        if self._broken is None:
            try:
                if not self._cluster.is_ready(self._run):
                    return None
                ending: Ending = self._cluster.get(self._run, 0)
            except self._cluster.errors as error:
                self._broken = (time.monotonic(), in_one_line(error, 300))
            else:
                if ending.is_lost:
                    return replace(ending, message=f"{ending.message} (on {self._node.address})")
                return ending
        return self._loss(*self._broken)

    def _loss(self, since: float, said: str) -> Ending | None:
        """None while it is not clear yet whether the node went with the actor."""
        where, node_id = self._node.address, self._node.node_id
        if all(node.node_id != node_id for node in self._cluster.nodes()):
            return Ending("failed", "host", f"Ray lost node {where} ({node_id[:8]})")
        if time.monotonic() - since < _DEAD_S:
            return None
        message = f"the supervisor was lost with its Ray actor on {where}: {said}"
        return Ending("failed", "supervisor_lost", message)

    def greet(self) -> None:
        self._actor.hear.remote()

    def stop(self) -> None:
        self._actor.stop.remote()

    def drop(self) -> None:
        self._cluster.end(self._actor)


@dataclass(eq=False)
class RayCell(RunningCell):
    """A cell that runs: a link to each of its hosts, and what they have answered."""

    links: Sequence[HostLink]
    reservation: Reservation
    first_attempt: int
    """Attempts from this number on are of this try."""
    answers: dict[int, Ending] = field(default_factory=dict)
    """By the index of the host."""
    failed_at: float | None = None
    stopped: bool = False

    @property
    def ended(self) -> bool:
        return len(self.answers) == len(self.links)

    @property
    def losses(self) -> list[Ending]:
        return [answer for answer in self.answers.values() if answer.is_lost]

    def take_answers(self) -> None:
        for index, link in enumerate(self.links):
            answer = None if index in self.answers else link.answer()
            if answer is not None:
                self.answers[index] = answer
                if answer.outcome != "done":
                    self.failed_at = self.failed_at or time.monotonic()

    def end_others(self) -> None:
        """Where a host has failed, give the others some time, then stop them, then give them up."""
        if self.failed_at is None:
            return
        waited = time.monotonic() - self.failed_at
        if (self.losses or waited > _OTHERS_S) and not self.stopped:
            self.stop()
        if waited > 2 * _OTHERS_S:
            for index, link in enumerate(self.links):
                silent = Ending("failed", "host", f"{link.host} did not end its ranks")
                self.answers.setdefault(index, silent)

    def stop(self) -> None:
        self.stopped = True
        for link in self.links:
            link.stop()

    def drop(self) -> None:
        """Break its links, and free its room."""
        for link in self.links:
            link.drop()
        self.reservation.free()

    def ending(self) -> Ending:
        """How it ended, once all of its hosts have answered."""
        if self.folder.is_done(self.cell.planned.cell_id):
            return Ending("done", elapsed_s=self.folder.load_result().elapsed_s)
        return replace(self._ending_without_result(), elapsed_s=self.age_s)

    def _ending_without_result(self) -> Ending:
        """Record why there is no result, where the hosts themselves could not."""
        if self.losses:
            return self._record(self.losses[0])
        answers = list(self.answers.values())
        failed = [one for one in answers if one.outcome == "failed"]
        # A host that was merely told to stop knows nothing.
        if self.stopped and failed:
            return self._record(replace(failed[0], cause="host"))
        return answers[0]

    def _record(self, ending: Ending) -> Ending:
        """Put the ending into this try's attempt, whose supervisor may know less, if it has one."""
        recorded = attempt_since(self.folder, self.first_attempt)
        if recorded is None:
            return replace(ending, number=None)
        if recorded.cause in ("interrupted", "peer"):
            recorded = replace(
                recorded,
                outcome="failed",
                cause=ending.cause,
                message=ending.message,
                rank=None,
                raised_at=None,
            )
        recorded = self.folder.save_attempt(recorded)
        self.folder.clear_running()
        return recorded


class RayExecutor(Executor[RayCell]):
    """A Ray cluster.

    ``exclusive`` gives a cell its hosts to itself, in the plan's order; ``packed`` fills them
    round by round. In neither does a cell overtake one that waits for room.
    """

    CONFIG = RayConfig
    config: RayConfig
    _cluster: RayCluster | None = None

    def __init__(self, config: RayConfig) -> None:
        super().__init__(config)
        self._told = time.monotonic()
        self._not_before: dict[str, float] = {}
        """By cell id: when one that was lost with its host may start again (monotonic time)."""
        self._reserved: tuple[QueuedCell, Reservation, float] | None = None
        """The cell whose turn it is, its room, and when that was asked for (monotonic time)."""

    @property
    def cluster(self) -> RayCluster:
        assert self._cluster is not None
        return self._cluster

    def open(self, folder: SweepFolder, locks: tuple[int, ...], note: Note) -> None:
        self._cluster = RayCluster(self.config.address, note)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    # Before anything starts

    def demand(self, cell: Cell) -> ClusterDemand:
        nodes = self.cluster.nodes()
        gpus, cores = per_device(cell.request.cell, self.config)
        fitting = [node.cpus // cores if not gpus else node.gpus // gpus for node in nodes]
        wide = self.config.devices_per_node or max(fitting, default=0) or None
        wanted = demand(cell.request.cell, replace(self.config, devices_per_node=wide))
        if self.config.wait_for_nodes_s == 0:
            _require_room(wanted, nodes)
        return wanted

    # While cells run

    def order(
        self, waiting: Sequence[QueuedCell], running: Sequence[RayCell]
    ) -> Sequence[QueuedCell]:
        now = time.monotonic()
        return [t for t in waiting if self._not_before.get(t.cell.planned.cell_id, 0.0) <= now]

    def start(self, queued: QueuedCell) -> RayCell | None:
        """Start a cell on as many nodes as it demands, once they are reserved for it."""
        folder, wanted = queued.folder, queued.demand
        if self._reserved is None:
            room = self.cluster.reserve(wanted, whole_nodes=self.policy == "exclusive")
            self._reserved = (queued, room, time.monotonic())
        whose, reservation, since = self._reserved
        if whose is not queued:
            return None
        if not reservation.is_ready():
            if time.monotonic() - since > self.config.wait_for_nodes_s:
                # A cluster that has lost nodes may have no place left: no reason to wait for ever.
                try:
                    _require_room(wanted, self.cluster.nodes())
                except HostMismatch:
                    self._give_back()
                    raise
            return None
        self._reserved = None
        first = folder.next_attempt_number()
        forwarded = {k: v for k, v in os.environ.items() if k.startswith(_FORWARDED)}
        order = Order(
            folder=str(folder.path.resolve()),
            cell=queued.cell.planned,
            wanted=wanted,
            origin=Origin.of_this_process(),
            key=uuid.uuid4().hex,
            environment={**forwarded, **self.config.env},
        )
        links = self.links(reservation, order)
        if links is None:
            return None
        return RayCell(queued.cell, folder, wanted, links, reservation, first)

    def _give_back(self) -> None:
        if self._reserved is not None:
            self._reserved[1].free()
            self._reserved = None

    def links(self, reservation: Reservation, order: Order) -> Sequence[HostLink] | None:
        """A link to each host of a cell; None where a node went just after it was given to us."""
        count, cluster = order.wanted.nodes, self.cluster
        known = {node.node_id: node for node in cluster.nodes()}
        actors = [cluster.actor(reservation, i, order.wanted) for i in range(count)]
        gone: tuple[type[Exception], ...] = (KeyError, *cluster.errors)
        try:
            nodes = [known[node_id] for node_id in reservation.nodes()]
            address = cluster.get(actors[0].address.remote(), _ADDRESS_S) if count > 1 else ""
        except gone:
            for actor in actors:
                cluster.end(actor)
            reservation.free()
            return None
        return [
            HostLink(cluster, node, actor, replace(order, index=index, address=address))
            for index, (node, actor) in enumerate(zip(nodes, actors, strict=True))
        ]

    def poll(self, running: Sequence[RayCell]) -> list[tuple[RayCell, Ending]]:
        time.sleep(_LOOK_S)
        now = time.monotonic()
        if now - self._told > _ALIVE_EVERY_S:
            self._told = now
            for cell in running:
                for link in cell.links:
                    link.greet()
        ended = []
        for cell in running:
            cell.take_answers()
            cell.end_others()
            if cell.ended:
                cell.drop()
                if any(lost.cause == "host" for lost in cell.losses):
                    self._not_before[cell.cell.planned.cell_id] = time.monotonic() + _LOST_S
                ended.append((cell, cell.ending()))
        return ended

    def cancel(self, running: Sequence[RayCell], deadline: float) -> None:
        self._give_back()
        for cell in running:
            cell.stop()
        while time.monotonic() < deadline and not all(cell.ended for cell in running):
            for cell in running:
                cell.take_answers()
            time.sleep(0.1)
        for cell in running:
            with contextlib.suppress(OSError):
                cell.drop()


def _require_room(wanted: ClusterDemand, nodes: Sequence[Node]) -> None:
    """Raises :class:`HostMismatch` where the cluster has too few nodes that are large enough."""
    fitting = sum(node.holds(wanted) for node in nodes)
    if fitting < wanted.nodes:
        largest = max(nodes, key=lambda n: (n.gpus, n.cpus), default=None)
        has = "no node" if largest is None else f"{largest.gpus} GPUs and {largest.cpus} CPUs"
        raise HostMismatch(
            f"{wanted} with {wanted.cpus_per_device} CPUs each were asked for; of {len(nodes)} "
            f"nodes of the Ray cluster {fitting} hold that (the largest: {has}); allowed: fewer "
            "devices, or hydra.launcher.wait_for_nodes_s for a cluster that grows"
        )

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
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveInt

from scalewise.cluster.hosts import Demand, Order, attempt_since, demand, per_device, result_of
from scalewise.cluster.ray_cluster import (
    NEEDS_SHARED_FOLDER,
    SILENCE_S,
    Node,
    RayCluster,
    Reservation,
)
from scalewise.config import ConfigError, in_one_line, require
from scalewise.gpu import HostMismatch
from scalewise.records import Cause, CellFolder, DataError, build
from scalewise.supervisor import Origin, Outcome, misses_a_peer
from scalewise.sweep import (
    Cell,
    Display,
    Engine,
    SweepReport,
    attempt_until_now,
    progress_of,
    remaining_of,
)

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
"""Less than the hosts of other cells may hear nothing from the sweep."""
_FORWARDED = ("NCCL_", "GLOO_", "TORCH_")
"""Variables of the sweep's environment that mean the same on every host."""


@dataclass(frozen=True)
class RayConfig:
    """The config group ``hydra/launcher``, option ``ray``."""

    address: str = "auto"
    """``host:port`` of a cluster's head; ``auto``: $RAY_ADDRESS, else a cluster that runs on this
    host, else ``local``; ``local``: one of this host alone, which ends with the sweep."""
    policy: Literal["exclusive", "packed"] = "exclusive"
    """``exclusive``: each cell has its nodes to itself; ``packed``: cells share them."""
    wrap: str | None = None
    """Command around each rank's own: ``nsys profile -o {folder}/rank{rank}``."""
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


@dataclass(frozen=True)
class Lost:
    """A link broke before its host had answered."""

    reason: str
    """One line."""
    is_host: bool = True
    """False where the host lives and only the processes of the cell are gone."""


class HostLink:
    """One host's part of one running cell: gives an order to its actor and waits for the answer.

    Args:
        reservation: freed with this link; None where another link of the cell does.
    """

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
        """How it ended; None while it runs. Does not wait."""
        if self._broken is None:
            try:
                if not self._cluster.is_ready(self._run):
                    return None
                outcome: Outcome = self._cluster.get(self._run, 0)
            except self._cluster.errors as error:
                self._broken = (time.monotonic(), in_one_line(error, 300))
            else:
                if outcome.cause == "supervisor" and not outcome.is_recorded:
                    return Lost(f"{outcome.message} (on {self._node.address})", is_host=False)
                return outcome
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
        """Say that the sweep is there, and who shares the host from now on (if not empty)."""
        self._actor.tell.remote(line)

    def stop(self) -> None:
        """Have the host end and record its part."""
        self._actor.stop.remote()

    def drop(self) -> None:
        """Break the link, and free what it holds."""
        self._cluster.end(self._actor)
        if self._reservation is not None:
            self._reservation.free()


@dataclass
class RemoteCell:
    """A cell that runs: a link to each of its hosts, and what they have answered."""

    cell: Cell
    folder: CellFolder
    wanted: Demand
    links: Sequence[HostLink]
    first_attempt: int
    began_at: float
    """Unix time."""
    started: float = field(default_factory=time.monotonic)
    answers: dict[int, Outcome | Lost] = field(default_factory=dict)
    """By the index of the host."""
    failed_at: float | None = None
    stopped: bool = False

    @property
    def hosts(self) -> set[str]:
        return {link.host for link in self.links}

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def ended(self) -> bool:
        return len(self.answers) == len(self.links)

    @property
    def losses(self) -> list[Lost]:
        return [answer for answer in self.answers.values() if isinstance(answer, Lost)]

    def take_answers(self) -> None:
        for index, link in enumerate(self.links):
            answer = None if index in self.answers else link.answer()
            if answer is not None:
                self.answers[index] = answer
                if isinstance(answer, Lost) or answer.state != "done":
                    self.failed_at = self.failed_at or time.monotonic()

    def stop(self) -> None:
        self.stopped = True
        for link in self.links:
            link.stop()

    def outcome_without_result(self) -> Outcome:
        """Record why there is no result, where the hosts themselves could not."""
        if self.losses:
            lost = self.losses[0]
            return self._record("host" if lost.is_host else "supervisor", lost.reason)
        answers = [a for a in self.answers.values() if isinstance(a, Outcome)]
        failed = [a for a in answers if a.state == "failed"]
        # Who was merely told to stop knows nothing.
        return self._record("host", failed[0].message) if self.stopped and failed else answers[0]

    def _record(self, cause: Cause, message: str) -> Outcome:
        """Put the cause into the attempt of this try, or make one, and return it as the outcome.

        A supervisor that lived saw only that the sweep or a peer was gone: its word is replaced.
        """
        recorded = attempt_since(self.folder, self.first_attempt)
        if recorded is None:
            recorded = attempt_until_now(self.folder, "failed", cause, message, (), self.began_at)
        elif recorded.cause == "interrupted" or misses_a_peer(recorded):
            recorded = replace(recorded, outcome="failed", cause=cause, message=message, rank=None)
        self.folder.save_attempt(recorded)
        self.folder.clear_running()
        return Outcome("failed", recorded.message)


class RayEngine(Engine):
    """One sweep on a Ray cluster.

    ``exclusive`` gives a cell its hosts to itself, in the plan's order; ``packed`` fills them,
    widest cells first. In neither does a cell overtake one that waits for room.
    """

    _cluster: RayCluster

    def __init__(self, folder: Path, config: RayConfig, display: Display) -> None:
        super().__init__(folder, config.policy, display)
        self._config = config
        self._queue: list[tuple[Cell, Demand]] = []
        self._cells: list[RemoteCell] = []
        self._told = time.monotonic()
        self._not_before: dict[str, float] = {}
        """By cell id: when one that was lost with its host may start again (monotonic time)."""
        self._asked: tuple[str, Reservation, float] | None = None
        """The cell whose turn it is, what was reserved for it, and since when."""

    def run(self, cells: Sequence[Cell]) -> SweepReport:
        self._cluster = RayCluster(self._config.address, self.display)
        try:
            return super().run(cells)
        finally:
            self._cluster.close()

    # Before anything starts

    def _begin(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """As :meth:`Engine._begin`. Raises :class:`ConfigError` where a node lacks the folder."""
        blind = self._cluster.nodes_without(self.folder.lock_path)
        if blind:
            raise ConfigError(
                f"hydra.sweep.dir: found {self.folder.path}, which Ray's nodes "
                f"{', '.join(node.address for node in blind)} do not see; {NEEDS_SHARED_FOLDER}"
            )
        return super()._begin(cells)

    def _to_run(self) -> list[Cell]:
        return [cell for cell, _ in self._queue]

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
        return max(fitting, default=0) or None

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

    # While cells run

    def _loop(self, report: SweepReport) -> None:
        if self.policy == "packed":
            # Narrow cells fit into what wide ones leave; among equals, the longest first.
            self._queue.sort(key=lambda e: (-e[1].width, -(self._expected_s(e[0]) or 0.0)))
        while self._queue or self._cells:
            self._start_what_has_room(report)
            for running in list(self._cells):
                self._look(running, report)
            self._say_alive()
            self._show()
            if self._queue or self._cells:
                time.sleep(_LOOK_S)

    def _start_what_has_room(self, report: SweepReport) -> None:
        while self._queue:
            cell, wanted = self._queue[0]
            if time.monotonic() < self._not_before.get(cell.planned.cell_id, 0.0):
                return
            beside = [(r.cell, r.wanted.width, r.age_s) for r in self._cells]
            if not self._affords(cell, wanted.width, beside):
                self._queue.pop(0)
                self._leave_out(cell, report)
                continue
            try:
                running = self._start(cell, wanted)
            except HostMismatch as mismatch:
                self._queue.pop(0)
                self._skip([cell], report, str(mismatch))
                continue
            if running is None:
                return
            self._queue.pop(0)
            self._meet_neighbours(running)
            self._cells.append(running)
            self.display.started(cell, wanted.width)

    def _start(self, cell: Cell, wanted: Demand) -> RemoteCell | None:
        """None while there is no room for it. Raises HostMismatch where there never will be."""
        folder = self.folder.cell(cell.planned.name)
        first, now = folder.next_attempt_number(), time.time()
        forwarded = {k: v for k, v in os.environ.items() if k.startswith(_FORWARDED)}
        order = Order(
            folder=str(folder.path.resolve()),
            cell=cell.planned,
            wanted=wanted,
            origin=Origin.of_this_process(),
            key=uuid.uuid4().hex,
            environment={**forwarded, **self._config.env},
        )
        links = self._links(order)
        return None if links is None else RemoteCell(cell, folder, wanted, links, first, now)

    def _links(self, order: Order) -> Sequence[HostLink] | None:
        """Start a cell on as many nodes as it wants, where there is room for it."""
        name, wanted = order.cell.cell_id, order.wanted
        if self._asked is None or self._asked[0] != name:
            self._give_back()
            whole = self._config.policy == "exclusive"
            self._asked = (name, self._cluster.reserve(wanted, whole), time.monotonic())
        _, reservation, since = self._asked
        if not reservation.is_ready():
            if time.monotonic() - since > self._config.wait_for_nodes_s:
                # A cluster that has lost nodes may have no place left: no reason to wait for ever.
                try:
                    self._require_room(wanted, self._cluster.nodes())
                except HostMismatch:
                    self._give_back()
                    raise
            return None
        self._asked = None
        return self._links_in(reservation, order)

    def _give_back(self) -> None:
        if self._asked is not None:
            self._asked[1].free()
            self._asked = None

    def _links_in(self, reservation: Reservation, order: Order) -> Sequence[HostLink] | None:
        count = order.wanted.nodes
        known = {node.node_id: node for node in self._cluster.nodes()}
        placed = reservation.nodes()
        actors = [self._cluster.actor(reservation, i, order.wanted) for i in range(count)]
        gone: tuple[type[Exception], ...] = (KeyError, *self._cluster.errors)
        try:
            nodes = [known[node_id] for node_id in placed]
            address = ""
            if count > 1:
                address = self._cluster.get(actors[0].address.remote(), _ADDRESS_S)
        except gone:
            # A node went just after it was given to us: ask for others at the next look.
            for actor in actors:
                self._cluster.end(actor)
            reservation.free()
            return None
        links = []
        for index, (node, actor) in enumerate(zip(nodes, actors, strict=True)):
            own = replace(
                order, index=index, address=address, co_tenants=self._tenants(node.node_id)
            )
            # Freed once for all of the cell's hosts.
            freed = reservation if index == count - 1 else None
            links.append(HostLink(self._cluster, node, actor, own, freed))
        return links

    def _tenants(self, node_id: str) -> tuple[str, ...]:
        return tuple(r.cell.planned.name for r in self._cells if node_id in r.hosts)

    def _meet_neighbours(self, running: RemoteCell) -> None:
        """Tell cells that share a host of each other."""
        for other in self._cells:
            for link in other.links:
                if link.host in running.hosts:
                    link.tell(running.cell.planned.name)
            for link in running.links:
                if link.host in other.hosts:
                    link.tell(other.cell.planned.name)

    def _say_alive(self) -> None:
        now = time.monotonic()
        if now - self._told > _ALIVE_EVERY_S:
            self._told = now
            for running in self._cells:
                for link in running.links:
                    link.tell("")

    def _look(self, running: RemoteCell, report: SweepReport) -> None:
        running.take_answers()
        if running.ended:
            self._finish_cell(running, report)
        elif running.failed_at is not None:
            waited = time.monotonic() - running.failed_at
            if (running.losses or waited > _OTHERS_S) and not running.stopped:
                running.stop()
            if waited > 2 * _OTHERS_S:
                for index, link in enumerate(running.links):
                    running.answers.setdefault(index, Lost(f"{link.host} did not end its ranks"))
                    link.drop()

    def _finish_cell(self, running: RemoteCell, report: SweepReport) -> None:
        cell_id = running.cell.planned.cell_id
        for link in running.links:
            link.drop()
        self._cells.remove(running)
        self.budget.spend(running.wanted.width, running.age_s)
        if any(lost.is_host for lost in running.losses):
            self._not_before[cell_id] = time.monotonic() + _LOST_S
        if running.folder.result_of(cell_id) is not None:
            outcome, seconds = result_of(running.folder)
        else:
            outcome, seconds = running.outcome_without_result(), running.age_s
        self._end(report, running.cell, outcome, seconds)

    def _show(self) -> None:
        progress = [progress_of(r.cell.planned.name, r.folder, r.wanted.width) for r in self._cells]
        waiting = [remaining_of(cell, wanted.width) for cell, wanted in self._queue]
        running = [
            remaining_of(r.cell, r.wanted.width, r.age_s, p)
            for r, p in zip(self._cells, progress, strict=True)
        ]
        self._tick(progress, waiting + running)

    def _end_all(self, report: SweepReport, deadline: float) -> None:
        """End every running cell: their hosts record it, until ``deadline``."""
        self._give_back()
        for running in self._cells:
            running.stop()
        while time.monotonic() < deadline and not all(r.ended for r in self._cells):
            for running in self._cells:
                running.take_answers()
            time.sleep(0.1)
        for running in self._cells:
            for link in running.links:
                with contextlib.suppress(OSError):
                    link.drop()
            cell_id = running.cell.planned.cell_id
            done = running.folder.result_of(cell_id) is not None
            report.outcomes[cell_id] = Outcome("done" if done else "interrupted")
        self._cells.clear()
        for cell, _ in self._queue:
            report.outcomes[cell.planned.cell_id] = Outcome("interrupted")

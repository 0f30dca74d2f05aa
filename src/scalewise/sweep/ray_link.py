"""One host of a running cell, through its Ray actor."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from scalewise.errors import in_one_line
from scalewise.sweep.folder_sync import apply, contents
from scalewise.sweep.job import Outcome
from scalewise.sweep.order import Order, answer_in, from_line
from scalewise.sweep.ray_cluster import Node, RayCluster, Reservation
from scalewise.sweep.ray_host import Answer
from scalewise.sweep.remote_cell import Lost

_DEAD_S = 20.0
"""How long Ray may take to notice that a node is gone whose actor is."""
_LAST_COPY_S = 20.0
_END_S = 5.0


class ActorLink:
    """Gives an order to an actor, copies back what the cell records, and waits for its answer."""

    def __init__(
        self,
        cluster: RayCluster,
        node: Node,
        actor: Any,
        order: Order,
        token: Path,
        sync_s: float,
        reservation: Reservation | None,
    ) -> None:
        self.host = node.node_id
        self._cluster, self._node, self._actor = cluster, node, actor
        self._folder = Path(order.folder)
        self._token = token
        self._reservation = reservation
        self._sync_s = sync_s
        self._copied = time.monotonic()
        self._copy: Any = None
        self._broken: tuple[float, str] | None = None
        self._run = actor.run.remote(order, str(token), contents(self._folder))

    def answer(self) -> Outcome | Lost | None:
        if self._broken is None:
            try:
                if not self._cluster.is_ready(self._run):
                    self._copy_back()
                    return None
                answer: Answer = self._cluster.get(self._run, 0)
                last = self._actor.changes.remote()
                # Two copies must not overtake each other.
                if self._copy is not None:
                    apply(self._folder, self._cluster.get(self._copy, _LAST_COPY_S))
                apply(self._folder, self._cluster.get(last, _LAST_COPY_S))
                return _outcome(answer, self._node.address)
            except self._cluster.errors as error:
                self._broken = (time.monotonic(), in_one_line(error, 300))
        return self._loss(*self._broken)

    def _copy_back(self) -> None:
        if self._copy is not None:
            if self._cluster.is_ready(self._copy):
                apply(self._folder, self._cluster.get(self._copy, 0))
                self._copy, self._copied = None, time.monotonic()
        elif time.monotonic() - self._copied > self._sync_s:
            self._copy = self._actor.changes.remote()

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
        with contextlib.suppress(*self._cluster.errors):
            self._cluster.get(self._actor.clear.remote(), _END_S)
        self._cluster.end(self._actor)
        self._token.unlink(missing_ok=True)
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

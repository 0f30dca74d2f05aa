"""One host of a running cell, through its Ray actor."""

from __future__ import annotations

import time
from typing import Any

from scalewise.errors import in_one_line
from scalewise.sweep.job import Outcome
from scalewise.sweep.order import Order, answer_in, from_line
from scalewise.sweep.ray_cluster import Node, RayCluster, Reservation
from scalewise.sweep.ray_host import Answer
from scalewise.sweep.remote_cell import Lost

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

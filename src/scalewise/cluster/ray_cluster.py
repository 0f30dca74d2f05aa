"""The one seam to Ray: connects to a cluster, reserves room on it, and holds actors there."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalewise.cluster.hosts import ClusterDemand, Order, train_here
from scalewise.config import ConfigError, in_one_line
from scalewise.gpu import HostMismatch
from scalewise.host import usable_cores
from scalewise.records import CellFolder, Ending, RecordError
from scalewise.supervisor import Job, NodesApart
from scalewise.sweep import SupervisorProcess, start_supervisor

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


SILENCE_S = 30.0
"""The sweep says something at least every few seconds. A connection that was cut may never close:
without this limit, a cell would go on there while the sweep starts it anew elsewhere."""
_NOT_INHERITED = ("RAY_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")
"""Variables that Ray sets for its workers and a cell is not to see."""
_CALLS_AT_ONCE = 4
"""Calls of one actor: one runs the cell, the others talk to it."""


class HostActor:
    """One host's part of one cell: the Ray actor that holds its supervisor.

    Ray ends an actor with the sweep that made it and with its node; the supervisor then sees its
    standard input close and ends the cell.
    """

    def __init__(self) -> None:
        self._supervisor: SupervisorProcess | None = None
        self._stopped = False
        self._heard = time.monotonic()

    def address(self) -> str:
        """Where other nodes reach this one."""
        import ray

        return str(ray.util.get_node_ip_address())

    def run(self, order: Order) -> Ending:
        self._heard = time.monotonic()
        os.environ.update(order.environment)
        threading.Thread(target=self._stop_if_unwanted, daemon=True).start()
        try:
            return train_here(
                order, lambda job, locks: self._supervise(job, locks, order), self._is_wanted
            )
        except (HostMismatch, NodesApart) as mismatch:
            return CellFolder(order.folder).save_attempt(Ending("failed", "host", str(mismatch)))
        except RecordError as error:
            why = "allowed: a hydra.sweep.dir on a file system that all hosts share"
            message = f"this host does not see the cell's folder ({error}); {why}"
            return Ending("failed", "config", message)
        finally:
            self._stopped = True

    def hear(self) -> None:
        self._heard = time.monotonic()

    def stop(self) -> None:
        self._stopped = True
        if self._supervisor is not None:
            self._supervisor.stop()

    def _supervise(self, job: Job, locks: tuple[int, ...], order: Order) -> Ending:
        path = os.pathsep.join((*order.origin.python_path, *(p for p in sys.path if p)))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
        self._supervisor = start_supervisor(
            job, locks, env={**kept, "PYTHONPATH": path}, start_new_session=True
        )
        if self._stopped:
            self._supervisor.stop()
        return self._supervisor.ending()

    def _is_wanted(self) -> bool:
        return not self._stopped and time.monotonic() - self._heard <= SILENCE_S

    def _stop_if_unwanted(self) -> None:
        while self._is_wanted():
            time.sleep(0.5)
        self.stop()


def require_ray() -> None:
    """Raises :class:`ConfigError` where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("hydra/launcher=ray: ray is not installed; pip install 'scalewise[ray]'")


@dataclass(frozen=True)
class Node:
    """A living node of the cluster and all that it has, free or not."""

    node_id: str
    address: str
    cpus: int
    gpus: int

    def holds(self, wanted: ClusterDemand) -> bool:
        return self.cpus >= wanted.cpus_per_node and self.gpus >= wanted.gpus_per_node


class Reservation:
    """Room for one cell: a bundle of resources on each of its nodes."""

    def __init__(self, group: PlacementGroup) -> None:
        self.group = group

    def is_ready(self) -> bool:
        return bool(self.group.wait(0))

    def nodes(self) -> list[str]:
        """Node ids by bundle."""
        from ray.util import placement_group_table

        placed = placement_group_table(self.group)["bundles_to_node_id"]
        return [str(placed[index]) for index in sorted(placed)]

    def free(self) -> None:
        from ray.util import remove_placement_group

        remove_placement_group(self.group)


class RayCluster:
    """A connection to a cluster, for as long as the sweep lasts."""

    def __init__(self, address: str, note: Callable[[str], None]) -> None:
        require_ray()
        # Ray reports usage to its makers unless told not to; a sweep has not been asked.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray = ray
        self.errors: tuple[type[Exception], ...] = (ray.exceptions.RayError,)
        """Raised by Ray for an actor that is gone, and for an answer that is late."""
        # Ray installs a handler of its own that ends the process without a word.
        handler = signal.getsignal(signal.SIGTERM)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address == "local" or not self._connected(address, quiet):
                note("ray: started on this host alone, until the sweep ends")
                ray.init(
                    address="local", num_cpus=len(usable_cores()), include_dashboard=False,
                    _node_ip_address="127.0.0.1", **quiet,
                )  # fmt: skip
        finally:
            signal.signal(signal.SIGTERM, handler)

    def _connected(self, address: str, quiet: dict[str, Any]) -> bool:
        try:
            self._ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            if address == "auto" and not os.environ.get("RAY_ADDRESS"):
                return False
            raise ConfigError(
                f"hydra.launcher.address: found {address!r}, where no Ray cluster answers "
                f"({in_one_line(error, 200)})"
            ) from None
        return True

    def close(self) -> None:
        self._ray.shutdown()

    def nodes(self) -> list[Node]:
        """Those alive."""
        return [
            Node(
                str(node["NodeID"]),
                str(node["NodeManagerAddress"]),
                int(node["Resources"].get("CPU", 0)),
                int(node["Resources"].get("GPU", 0)),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def reserve(self, wanted: ClusterDemand, whole_nodes: bool) -> Reservation:
        """Ask for a bundle a node. ``whole_nodes`` leaves no room on them for anyone else."""
        from ray.util import placement_group

        cpus, gpus = wanted.cpus_per_node, wanted.gpus_per_node
        if whole_nodes:
            fitting = [node for node in self.nodes() if node.holds(wanted)]
            # The smallest that is big enough: on larger nodes others may find room beside it.
            smallest = min(fitting, key=lambda n: (n.gpus, n.cpus), default=None)
            if smallest is not None:
                cpus, gpus = smallest.cpus, smallest.gpus
        bundle = {"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})}
        strategy = "STRICT_SPREAD" if wanted.nodes > 1 else "STRICT_PACK"
        return Reservation(placement_group([bundle] * wanted.nodes, strategy=strategy))

    def actor(self, reservation: Reservation, index: int, wanted: ClusterDemand) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        made = self._ray.remote(HostActor).options(
            num_cpus=wanted.cpus_per_node,
            num_gpus=wanted.gpus_per_node,
            max_restarts=0,
            max_concurrency=_CALLS_AT_ONCE,
            scheduling_strategy=PlacementGroupSchedulingStrategy(reservation.group, index),
        )
        return made.remote()

    def get(self, reference: Any, timeout_s: float) -> Any:
        """The value of a call. Raises one of :attr:`errors`, also where it is late."""
        return self._ray.get(reference, timeout=timeout_s)

    def is_ready(self, reference: Any) -> bool:
        ready, _ = self._ray.wait([reference], timeout=0)
        return bool(ready)

    def end(self, actor: Any) -> None:
        self._ray.kill(actor)

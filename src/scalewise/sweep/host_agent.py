"""A cell's supervisor on a host that is not the sweep's own.

    python -m scalewise.sweep.host_agent < order

A Ray actor starts it. It leases the devices there, and from then on is the supervisor of a local
sweep: when its standard input closes, or nothing has come through it for too long, the sweep is
gone and so is this cell.
"""

from __future__ import annotations

import os
import sys
import time

from scalewise.config import build_cell
from scalewise.records import CellFolder, RecordError
from scalewise.sweep.cell_settings import settings_of
from scalewise.sweep.hosted import granted, leased, record
from scalewise.sweep.job import Job, Nodes, Outcome, Settings
from scalewise.sweep.lease import Host, HostMismatch, Lease
from scalewise.sweep.nodes import NodesApart, announce, meet
from scalewise.sweep.order import MARK, Order, from_line, to_line
from scalewise.sweep.ports import free_port
from scalewise.sweep.process_tree import become_subreaper
from scalewise.sweep.supervisor import Supervisor
from scalewise.sweep.wakeup import Wakeup, read_line

SILENCE_S = 30.0
"""The sweep says something at least every few seconds. A connection that was cut may never close:
without this limit, a cell would go on here while the sweep starts it anew elsewhere."""


class LinkedWakeup(Wakeup):
    """Also takes a sweep for gone that has been silent for too long."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = time.monotonic()

    def wait(self, timeout_s: float) -> None:
        super().wait(timeout_s)
        if time.monotonic() - self._heard > SILENCE_S:
            self.sweep_gone = True

    def _hear(self) -> None:
        super()._hear()
        self._heard = time.monotonic()

    def wanted(self) -> bool:
        """Whether anybody still waits for this cell; looks without waiting."""
        self.wait(0)
        return not (self.sweep_gone or self.stop_asked)


def main() -> int:
    """Exit status 0 if the cell is done."""
    become_subreaper()
    wakeup = LinkedWakeup()
    line, told = read_line()
    wakeup.tell(told)
    outcome = run(from_line(Order, line), wakeup)
    _answer(outcome)
    return 0 if outcome.state == "done" else 1


def _answer(message: object) -> None:
    sys.stdout.buffer.write(b"\n" + MARK + to_line(message))
    sys.stdout.buffer.flush()


def run(order: Order, wakeup: LinkedWakeup) -> Outcome:
    """Train this host's part of the cell."""
    os.environ.update(order.environment)
    folder = CellFolder(order.folder)
    try:
        cell = build_cell(folder.load_config())
        host = granted(cell, order.wanted)
        width = order.wanted.devices_per_node
        with leased(host, width, order.lease_s, wakeup.wanted) as lease:
            nodes = _meet_others(folder, order, wakeup)
            settings = settings_of(cell, order.wanted.width)
            job = _job(order, settings, lease, host, nodes)
            return Supervisor(job, wakeup, locks=lease.descriptors).run()
    except (HostMismatch, NodesApart) as mismatch:
        record(folder, str(mismatch))
        return Outcome("failed", str(mismatch))
    except RecordError as error:
        return Outcome(
            "failed",
            f"this host does not see the cell's folder ({error}); allowed: a hydra.sweep.dir on a "
            "file system that all hosts share",
        )


def _meet_others(folder: CellFolder, order: Order, wakeup: LinkedWakeup) -> Nodes | None:
    """None for a cell on one host. Raises :class:`NodesApart`."""
    count = order.wanted.nodes
    if count == 1:
        return None
    if order.index > 0:
        return meet(folder, order.key, order.index, count, wakeup.wanted)
    return announce(folder, order.key, count, order.address, free_port("0.0.0.0"))


def _job(order: Order, settings: Settings, lease: Lease, host: Host, nodes: Nodes | None) -> Job:
    return Job(
        folder=order.folder,
        cell=order.cell,
        settings=settings,
        slots=lease.slots,
        cwd=order.origin.cwd,
        python_path=order.origin.python_path,
        command=order.origin.command,
        driver=host.driver,
        topology=host.topology,
        co_tenants=order.co_tenants,
        nodes=nodes,
        samples_devices=True,
    )


if __name__ == "__main__":
    sys.exit(main())

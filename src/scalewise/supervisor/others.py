"""Others that have a part in a try at a cell: its further hosts, and strangers on its GPUs."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from scalewise.records import CellFolder, Ending, load_json, load_or_none, save_json
from scalewise.supervisor.failures import outside_cause
from scalewise.supervisor.job import Nodes

_MEET_S = 300.0
"""Hosts of one job start together, but one may first have to load its environment."""
_TELL_S = 10.0
_LAST_S = 60.0
_LOOK_S = 0.2


class NodesApart(TimeoutError):  # noqa: N818 - it says what is wrong
    """The first host of the cell never said where it listens."""


@dataclass(frozen=True)
class _Meeting:
    key: str
    """Key of this run of the job: an earlier one's file may still lie there."""
    address: str
    port: int


def announce(folder: CellFolder, key: str, count: int, address: str, port: int) -> Nodes:
    """Make room for this attempt, and tell the other hosts of the cell that they may start.

    Each host has a supervisor of its own, and the first one's records count. They meet on the
    shared file system: ``rendezvous.json`` says where the first rank listens, and
    ``nodes/<index>.json`` how the ranks of each further host ended.
    """
    folder.clear_attempt()
    shutil.rmtree(folder.path / "nodes", ignore_errors=True)
    save_json(folder.path / "rendezvous.json", _Meeting(key, address, port))
    return Nodes(0, count, address, port)


def meet(
    folder: CellFolder, key: str, index: int, count: int, go_on: Callable[[], bool] = lambda: True
) -> Nodes:
    """Wait for the first host. Raises :class:`NodesApart`, also when ``go_on`` says no."""
    deadline = time.monotonic() + _MEET_S
    while time.monotonic() < deadline and go_on():
        meeting = load_or_none(load_json, folder.path / "rendezvous.json", _Meeting)
        if meeting is not None and meeting.key == key:
            return Nodes(index, count, meeting.address, meeting.port)
        time.sleep(_LOOK_S)
    raise NodesApart(
        f"host {index} of {count} waited up to {_MEET_S:g} s for the first one's rendezvous.json; "
        f"is {folder.path} on a file system that all of them share?"
    )


def conclude(folder: CellFolder, nodes: Nodes, own: Ending) -> Ending:
    """How the whole cell ended, given how the ranks of this host did.

    A further host only says its own. The first one waits for the others: where a rank dies on one
    host, those on the others fail too, of a peer that is gone.
    """
    if nodes.index > 0:
        save_json(folder.path / "nodes" / f"{nodes.index}.json", own)
        return own
    deadline = time.monotonic() + (_LAST_S if own.outcome == "done" else _TELL_S)
    endings, silent = [own], list(range(1, nodes.count))
    while silent and all(one.outcome == "done" or _is_no_culprit(one) for one in endings[1:]):
        if time.monotonic() >= deadline:
            break
        for index in tuple(silent):
            ending = load_or_none(load_json, folder.path / "nodes" / f"{index}.json", Ending)
            if ending is not None:
                endings.append(ending)
                silent.remove(index)
        time.sleep(_LOOK_S)
    failed = [ending for ending in endings if ending.outcome != "done"]
    if failed:
        # As among the ranks of one host: who was killed, then who failed first of itself.
        return min(failed, key=lambda one: (
            one.cause == "interrupted", one.cause != "signal" or one.exit_code == -signal.SIGABRT,
            _is_no_culprit(one), one.finished_at))  # fmt: skip
    if silent:
        return Ending("failed", "host", f"hosts {silent} of the cell did not say how it ended")
    return own


def _is_no_culprit(ending: Ending) -> bool:
    """A peer was gone, or it was told to stop: SLURM ends all tasks of a job when one fails."""
    return ending.cause in ("peer", "interrupted") or outside_cause(ending.message) == "peer"


def foreign_processes(
    folder: CellFolder, own: Collection[int], sees_host: bool | None = None
) -> tuple[str, ...]:
    """Processes of others on a cell's GPUs while it ran, by its device series.

    ``own`` are the ranks' pids; ``sees_host`` whether the driver's pids mean the same here (None:
    find out). Where they do not, all that can be told is that there were more than one.
    """
    from scalewise.records import read_device_series

    sees_host = _sees_host_pids() if sees_host is None else sees_host
    pids: dict[int, str] = {}
    most: dict[str, int] = {}
    for path in folder.device_series_paths():
        series = load_or_none(read_device_series, path)
        for sample in () if series is None else series.samples:  # the report names the file
            for uuid, row in sample.items():
                running = [p.pid for p in row.processes or ()]
                most[uuid] = max(most.get(uuid, 0), len(running))
                pids.update(dict.fromkeys(set(running) - set(own), uuid))
    if sees_host:
        return tuple(f"process {pid} on {uuid}" for pid, uuid in sorted(pids.items()))
    return tuple(
        f"{count - 1} other process{'es' if count > 2 else ''} on {uuid}"
        for uuid, count in sorted(most.items())
        if count > 1
    )


def _sees_host_pids() -> bool:
    """Whether this process is in the host's PID namespace, which has a number of its own."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]"  # PROC_PID_INIT_INO
    except OSError:
        return False

"""A cell on several hosts: each has a supervisor of its own, and the first one's records count.

They meet on the shared file system: ``rendezvous.json`` says where the first rank listens, and
``nodes/<index>.json`` how the ranks of each further host ended.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

from scalewise.records import CellFolder, RecordError
from scalewise.records.files import load_json, save_json
from scalewise.sweep.job import Nodes, Verdict

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
    """Of this run of the job: an earlier one's file may still lie there."""
    address: str
    port: int


@dataclass(frozen=True)
class _End:
    verdict: Verdict | None


def announce(folder: CellFolder, key: str, count: int, address: str, port: int) -> Nodes:
    """Make room for this attempt, and tell the other hosts that they may start."""
    folder.clear_attempt()
    shutil.rmtree(folder.path / "nodes", ignore_errors=True)
    save_json(folder.path / "rendezvous.json", _Meeting(key, address, port))
    return Nodes(0, count, address, port)


def meet(
    folder: CellFolder,
    key: str,
    index: int,
    count: int,
    go_on: Callable[[], bool] = lambda: True,
) -> Nodes:
    """Wait for the first host. Raises :class:`NodesApart`, also when ``go_on`` says no."""
    deadline = time.monotonic() + _MEET_S
    while time.monotonic() < deadline and go_on():
        try:
            meeting = load_json(folder.path / "rendezvous.json", _Meeting)
        except RecordError:
            meeting = None
        if meeting is not None and meeting.key == key:
            return Nodes(index, count, meeting.address, meeting.port)
        time.sleep(_LOOK_S)
    raise NodesApart(
        f"host {index} of {count} waited up to {_MEET_S:g} s for the first one's rendezvous.json; "
        f"is {folder.path} on a file system that all of them share?"
    )


def conclude(folder: CellFolder, nodes: Nodes, own: Verdict | None) -> Verdict | None:
    """How the whole cell ended, None for well, given how the ranks of this host did.

    A further host only says its own. The first one waits for the others: where a rank dies on one
    host, those on the others fail too, of a peer that is gone.
    """
    if nodes.index > 0:
        save_json(folder.path / "nodes" / f"{nodes.index}.json", _End(own))
        return own
    deadline = time.monotonic() + (_LAST_S if own is None else _TELL_S)
    told: dict[int, _End] = {}
    while len(told) < nodes.count - 1 and time.monotonic() < deadline:
        told = _told(folder, nodes.count)
        if any(end.verdict is not None for end in told.values()):
            break
        time.sleep(_LOOK_S)
    verdicts = [end.verdict for end in told.values() if end.verdict is not None]
    if own is not None:
        verdicts.append(own)
    if verdicts:
        return min(verdicts, key=_order)
    silent = sorted(set(range(1, nodes.count)) - set(told))
    if silent:
        return Verdict("host", f"hosts {silent} of the cell did not say how it ended", None, None)
    return None


def _told(folder: CellFolder, count: int) -> dict[int, _End]:
    found = {}
    for index in range(1, count):
        try:
            found[index] = load_json(folder.path / "nodes" / f"{index}.json", _End)
        except RecordError:
            continue  # not yet
    return found


def _order(verdict: Verdict) -> tuple[bool, bool, float]:
    """As among the ranks of one host: who was killed, then who failed first.

    Who was merely told to stop knows nothing: SLURM ends all tasks of a job when one fails.
    """
    return verdict.cause == "interrupted", verdict.cause != "signal", verdict.at

"""The participants of a host as one of them sees them: who leads, what all want, what was read."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from scalewise.gpu.election import FileLock, Wish, WishBoard
from scalewise.gpu.lanes import GPM_METRICS
from scalewise.gpu.spool import Reading, SpoolReader
from scalewise.records import DeviceSample

_WISHES_RECHECK_S = 5.0
_LOOK_AGAIN_S = 0.02
_CARRIED = (*GPM_METRICS, "energy_j", "processes")
"""Read less often than the core lane: of several readings the last that has it counts."""


def patience_s(interval_s: float) -> float:
    """How long a follower waits for a reading before it helps itself."""
    return max(2.5 * interval_s, 0.5)


class Peers:
    """A cell among the cells of its host: it may lead, and says what it wants."""

    def __init__(self, folder: Path, wish: Wish) -> None:
        self.folder = folder
        self.lock = FileLock(folder / "sampler.lock")
        self._board = WishBoard(folder)
        self._board.post(wish)
        self._changed_at = -1
        self._checked_at = -_WISHES_RECHECK_S

    def merged(self, current: Wish) -> Wish:
        """What all participants want together; ``current`` as long as nothing changed."""
        now, changed_at = time.monotonic(), self._board.changed_at_ns()
        if changed_at == self._changed_at and now - self._checked_at < _WISHES_RECHECK_S:
            return current
        self._changed_at, self._checked_at = changed_at, now
        wishes = self._board.read()
        return Wish(
            min((w.interval_s for w in wishes), default=current.interval_s),
            tuple(sorted({u for w in wishes for u in w.uuids})) or current.uuids,
        )

    def leave(self) -> None:
        self._board.withdraw()
        self.lock.release()


class Onlooker:
    """Somebody who is never elected, and has the elected sampler read for him too."""

    def __init__(self, folder: Path, wish: Wish) -> None:
        self._lock = FileLock(folder / "sampler.lock")
        self._board = WishBoard(folder)
        self._board.post(wish)
        self._uuids = frozenset(wish.uuids)
        self._patience_s = patience_s(wish.interval_s)
        self._spool = SpoolReader(folder, since=time.time())
        self._silent = False

    def next(self) -> Reading | None:
        """The newest reading of all that he wants since the last call, waited for if need be.

        None where nobody samples, or nobody for him: he has to look himself.
        """
        until = time.monotonic() + (0.0 if self._silent else self._patience_s)
        while True:
            # A leader that has not seen the wish yet reads what others want.
            new = [r for r in self._spool.read(self._uuids) if self._is_whole(r)]
            if new:
                self._silent = False
                return _newest(new)
            if not self._somebody_leads():
                return None
            if time.monotonic() >= until:
                # It hangs or cannot see our GPUs: from now on it is not waited for.
                self._silent = True
                return None
            time.sleep(_LOOK_AGAIN_S)

    def _is_whole(self, reading: Reading) -> bool:
        return self._uuids <= {*reading.samples, *reading.lost}

    def _somebody_leads(self) -> bool:
        free = self._lock.try_acquire()
        self._lock.release()
        return not free

    def leave(self) -> None:
        self._board.withdraw()


def _newest(readings: list[Reading]) -> Reading:
    """The last of several, with what only earlier ones hold."""
    samples: dict[str, DeviceSample] = {}
    for reading in readings:
        for uuid, sample in reading.samples.items():
            before = samples.get(uuid)
            samples[uuid] = sample if before is None else _carry(before, sample)
    last = readings[-1]
    events = {
        uuid: tuple(event for r in readings for event in r.events.get(uuid, ()))
        for reading in readings
        for uuid in reading.events
    }
    return replace(last, samples={u: samples[u] for u in last.samples}, events=events)


def _carry(before: DeviceSample, sample: DeviceSample) -> DeviceSample:
    missing = {
        name: getattr(before, name)
        for name in _CARRIED
        if getattr(sample, name) is None and getattr(before, name) is not None
    }
    return replace(sample, **missing) if missing else sample

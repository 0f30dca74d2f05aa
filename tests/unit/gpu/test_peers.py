"""An onlooker beside whoever samples, hangs, or does not look at his GPUs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from scalewise.gpu.election import FileLock, Wish, WishBoard
from scalewise.gpu.events import back, lost
from scalewise.gpu.peers import Onlooker
from scalewise.gpu.spool import Reading, SpoolWriter
from scalewise.records import DeviceProcess, DeviceSample

_WISH = Wish(0.1, ("GPU-a", "GPU-b"))


def _reading(power_w: float, *uuids: str) -> Reading:
    samples = {u: DeviceSample(u, power_w=power_w) for u in uuids}
    return Reading(time.time(), 0.1, 0.2, False, samples)


def _leader(folder: Path) -> FileLock:
    lock = FileLock(folder / "sampler.lock")
    assert lock.try_acquire()
    return lock


def test_his_wish_is_posted_as_long_as_he_looks(tmp_path: Path) -> None:
    onlooker = Onlooker(tmp_path, _WISH)
    assert WishBoard(tmp_path).read() == [_WISH]
    onlooker.leave()
    assert WishBoard(tmp_path).read() == []


def test_where_nobody_samples_he_is_told_at_once(tmp_path: Path) -> None:
    assert Onlooker(tmp_path, _WISH).next() is None


def test_of_several_readings_he_gets_the_last_with_what_only_earlier_ones_hold(
    tmp_path: Path,
) -> None:
    onlooker, leader = Onlooker(tmp_path, _WISH), _leader(tmp_path)
    spool = SpoolWriter(tmp_path)
    processes = (DeviceProcess(7, 100.0),)
    first = _reading(1, "GPU-a", "GPU-b")
    slow = replace(first.samples["GPU-a"], energy_j=5.0, processes=processes)
    spool.write(
        replace(first, samples={**first.samples, "GPU-a": slow}, events={"GPU-b": (back(1),)})
    )
    gone = _reading(2, "GPU-a")
    spool.write(replace(gone, lost=("GPU-b",), events={"GPU-b": (lost(1, "timeout"),)}))
    found = onlooker.next()
    assert found is not None
    assert set(found.samples) == {"GPU-a"}
    sample = found.samples["GPU-a"]
    assert (sample.power_w, sample.energy_j, sample.processes) == (2, 5.0, processes)
    assert [event.text for event in found.events["GPU-b"]] == [
        "GPU 1 answers again",
        "GPU 1 is lost: timeout",
    ]
    spool.close()
    leader.release()


def test_a_leader_that_does_not_see_his_gpus_is_waited_for_only_once(tmp_path: Path) -> None:
    onlooker, leader = Onlooker(tmp_path, _WISH), _leader(tmp_path)
    spool = SpoolWriter(tmp_path)
    spool.write(_reading(1, "GPU-a"))
    waits = []
    for _ in range(2):
        begun = time.monotonic()
        assert onlooker.next() is None
        waits.append(time.monotonic() - begun)
    assert waits[1] < waits[0]
    spool.write(_reading(2, "GPU-a", "GPU-b"))
    found = onlooker.next()
    assert found is not None and set(found.samples) == {"GPU-a", "GPU-b"}
    spool.close()
    leader.release()

"""The recording thread leaves the interpreter to training."""

import threading
import time
from unittest.mock import Mock

import pytest
import torch

from scalewise.train.recording import BackgroundDrain, background
from scalewise.train.recording.background import GiveWay

PIECE_S = 0.02


class Pieces:
    """A drain of three pieces, once; notes when each began and ended."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []
        self.done = threading.Event()

    def __call__(self, wait: bool, give_way: GiveWay | None) -> None:
        if give_way is None or self.began:
            return
        for _ in range(3):
            self.began.append(time.perf_counter())
            until = time.thread_time() + PIECE_S  # holds the processor, and nothing else
            while time.thread_time() < until:
                pass
            self.ended.append(time.perf_counter())
            give_way()
        self.done.set()


def test_it_rests_three_times_as_long_as_each_piece_took() -> None:
    pieces, rests = Pieces(), list[float]()
    drain = BackgroundDrain([pieces], interval_s=0.5)
    drain._hurry.wait = rests.append  # type: ignore[method-assign,assignment]
    assert pieces.done.wait(30)
    drain.stop()
    assert rests == pytest.approx([3 * PIECE_S] * 3, rel=0.2)


def test_it_rests_not_while_training_waits_for_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_REST", 60 / PIECE_S)
    pieces = Pieces()
    drain = BackgroundDrain([pieces], interval_s=0.001)
    while not pieces.ended:
        time.sleep(0.001)
    drain.stop()
    assert pieces.done.is_set()
    assert pieces.ended[-1] - pieces.began[0] < 60, "there was a rest"


@pytest.mark.parametrize("of_look", [False, True])
def test_what_a_piece_or_a_look_raises_reaches_training(of_look: bool) -> None:
    fails = Mock(side_effect=OSError(28, "No space left on device"))
    drain = BackgroundDrain([] if of_look else [fails], 0.001, look=fails if of_look else None)
    deadline = time.monotonic() + 10
    with pytest.raises(OSError, match="No space"):
        while time.monotonic() < deadline:
            drain.check()
            time.sleep(0.001)
    drain.abandon()


def test_the_recording_thread_has_the_device_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    # A new thread's current device is 0: on any other rank that opens a second context.
    chosen: list[tuple[torch.device, str]] = []
    here = threading.current_thread
    monkeypatch.setattr(torch.cuda, "set_device", lambda one: chosen.append((one, here().name)))
    BackgroundDrain([lambda wait, give_way: None], device=torch.device("cuda", 3)).stop()
    assert chosen == [(torch.device("cuda", 3), "scalewise-records")]


def test_it_looks_around_while_its_work_lasts_and_not_when_training_is_over() -> None:
    pieces = Pieces()
    looks: list[float] = []
    own = BackgroundDrain([pieces], interval_s=0.01, look=lambda: looks.append(time.perf_counter()))
    assert pieces.done.wait(30)
    own.stop()
    amid = [look for look in looks if pieces.began[0] < look < pieces.ended[-1]]
    assert len(amid) >= 2, "between pieces too"
    before = len(looks)
    time.sleep(0.05)
    assert len(looks) == before

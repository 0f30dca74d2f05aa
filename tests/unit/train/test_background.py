"""The recording thread leaves the interpreter to training."""

from __future__ import annotations

import threading
import time

import pytest

from scalewise.train.callbacks.background import BackgroundDrain, GiveWay

PIECE_S = 0.02


def work() -> None:
    """Holds the processor, and nothing else, for a piece's time."""
    until = time.thread_time() + PIECE_S
    while time.thread_time() < until:
        pass


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
            work()
            self.ended.append(time.perf_counter())
            give_way()
        self.done.set()


def test_it_rests_three_times_as_long_as_each_piece_took() -> None:
    pieces = Pieces()
    background = BackgroundDrain([pieces], interval_s=0.01)
    assert pieces.done.wait(10)
    background.stop()
    rests = [began - ended for ended, began in zip(pieces.ended, pieces.began[1:], strict=False)]
    assert all(rest >= 2.9 * PIECE_S for rest in rests), rests


def test_it_does_not_rest_once_training_is_over() -> None:
    pieces = Pieces()
    background = BackgroundDrain([pieces], interval_s=60)
    background.stop()
    assert pieces.done.is_set()
    assert pieces.ended[-1] - pieces.began[0] < 5 * PIECE_S, "a rest of 3 pieces was not taken"


def test_what_goes_wrong_between_two_pieces_reaches_training() -> None:
    def fails(wait: bool, give_way: GiveWay | None) -> None:
        raise OSError(28, "No space left on device")

    background = BackgroundDrain([fails], interval_s=0.001)
    deadline = time.monotonic() + 10
    with pytest.raises(OSError, match="No space"):
        while time.monotonic() < deadline:
            background.check()
            time.sleep(0.001)
    background.abandon()

"""Runs that last as long as their timed steps must: one rank tells the last step, all keep it."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import Mock

import pytest
import torch.distributed as dist

from scalewise.analysis import step_figures
from scalewise.records import DeviceInfo
from scalewise.train import length
from scalewise.train.length import LEAST_STEPS, LONGEST_S, SHORTEST_S, TooLateError
from scalewise.train.rank import RankContext
from scalewise.train.recording import INTERVAL_S

PACE_S = 0.01


@pytest.mark.parametrize(
    ("seen", "chosen"),
    [
        ((60, 58, PACE_S, 5800), None),  # the end is not near
        ((60, 59, PACE_S, 5920), 6030), ((1, 150, 30.0, 7), 8), ((3, 180, 60.0, 23), 24),
        ((1, 20, PACE_S, 2040), 2140),  # far enough ahead of who leads
    ],
)  # fmt: skip
def test_the_last_step_is_chosen_when_the_end_is_near(seen: Any, chosen: int | None) -> None:
    assert length.choose_last_step(*seen) == chosen


class Rank:
    """A rank whose training is moved by hand; ``errors`` are those it gave up with."""

    def __init__(
        self, rank: int, world_size: int = 2, min_time_s: float | None = 1.0,
        pace_s: float = PACE_S, kind: Literal["cpu", "cuda"] = "cpu",
    ) -> None:  # fmt: skip
        self.pace_s = pace_s
        self.steps = SimpleNamespace(steps=0, attempt_steps=0, rows=0, timed=(0, 0.0))
        self.planned: list[int] = []
        folder = SimpleNamespace(path=Path("cell"))
        self.recorder: Any = SimpleNamespace(folder=folder, steps=self.steps)
        self.recorder.plan_steps = self.planned.append
        self.errors: list[BaseException] = []
        context = RankContext(rank, rank, world_size, DeviceInfo(kind, "a device"))
        self.length = length.RunLength(min_time_s, context, self.recorder, 2, self.errors.append)
        self.loop: Any = SimpleNamespace(global_step=0, max_steps=-1)
        self.loop.on_advance_end = lambda fetcher: None
        trainer: Any = SimpleNamespace(fit_loop=SimpleNamespace(epoch_loop=self.loop))
        self.length.attach(trainer)

    def train(self, steps: int) -> None:
        """Take so many steps, none of which is warm-up, and write them."""
        for _ in range(steps):
            self.launch(1)
            self.steps.rows += 1
            count, seconds = self.steps.timed
            self.steps.timed = count + 1, seconds + self.pace_s
            self.loop.on_advance_end(None)

    def launch(self, steps: int) -> None:
        """Take steps whose times nobody has written yet."""
        self.steps.steps += steps
        self.steps.attempt_steps += steps
        self.loop.global_step += steps

    @property
    def last(self) -> int | None:
        return self.length.record().announced_step


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.HashStore:
    store = dist.HashStore()
    monkeypatch.setattr(length, "default_store", lambda: store)
    return store


@pytest.mark.usefixtures("store")
def test_every_rank_ends_after_the_same_step() -> None:
    first, second = Rank(0), Rank(1)
    first.train(50)
    second.train(53)
    first.length.look()
    assert first.last is None  # the other has not said where it is
    second.length.look()
    for _ in range(3):  # at none of them is a rank at the last step
        first.length.look()
        second.length.look()
    assert first.last == second.last == 53 + 2 + 100 and not (first.errors or second.errors)
    for rank in (first, second):
        rank.train(1)
        assert rank.loop.max_steps == rank.planned[-1] == first.last
    assert [rank.length.record().announced_at_step for rank in (first, second)] == [50, 53]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_rank_past_the_last_step_fails_in_one_line_or_gives_up_waiting(goes_on: bool) -> None:
    first, second = Rank(0), Rank(1)
    first.train(50)
    second.length.look()
    first.length.look()
    assert first.last is not None
    second.train(first.last + goes_on)
    for _ in range(1 if goes_on else 3):  # it may be in a step that nobody joins
        second.length.look()
    if goes_on:
        with pytest.raises(TooLateError, match=r"rank 1 was past step \d+, the last of all"):
            second.train(1)
    else:
        assert second.length.settle() == first.last, "it had not begun another"
    assert [type(error) for error in second.errors] == [TooLateError] * (not goes_on)


def test_a_rank_that_lost_rank_0_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Mock(side_effect=dist.DistNetworkError("connection reset"))
    monkeypatch.setattr(length, "default_store", lambda: SimpleNamespace(set=gone))
    rank = Rank(1)
    rank.length.look()
    assert "cannot ask rank 0" in str(rank.errors[0])


def test_steps_that_are_not_written_yet_count_by_the_pace() -> None:
    alone = Rank(0, world_size=1, min_time_s=3)
    alone.train(150)
    alone.length.look()
    assert alone.last is None
    alone.launch(30)
    alone.length.look()
    assert alone.last == 180 + 2 + 132
    alone.loop.global_step = 362  # of two optimizers, which Lightning counts apart
    alone.train(1)
    assert alone.loop.max_steps - alone.loop.global_step == alone.last - 181


@pytest.mark.parametrize(
    ("kind", "pace_s", "least_s"),
    [("cpu", 0.01, SHORTEST_S), ("cpu", 0.04, LEAST_STEPS * 0.04), ("cpu", 0.2, LONGEST_S),
     ("cuda", 0.01, LONGEST_S)],
)  # fmt: skip
def test_without_a_time_the_device_and_the_pace_of_its_steps_decide(
    kind: Literal["cpu", "cuda"], pace_s: float, least_s: float
) -> None:
    alone = Rank(0, world_size=1, min_time_s=None, pace_s=pace_s, kind=kind)
    while alone.last is None:
        alone.train(math.ceil(INTERVAL_S / pace_s))
        alone.length.look()
    assert least_s <= alone.last * pace_s <= 1.25 * least_s
    assert LEAST_STEPS == step_figures.LEAST_STEPS  # with which a later warm-up is found


@pytest.mark.parametrize(("steps", "last"), [(2, None), (3, 3 + 2 + 1)])
def test_steps_of_minutes_end_after_three(steps: int, last: int | None) -> None:
    alone = Rank(0, world_size=1, pace_s=60.0)
    alone.train(steps)
    alone.length.look()
    assert alone.last == last


@pytest.mark.parametrize(("more", "last"), [(2, 5 + 2 + 4), (3, 6 + 2 + 10), (4, 7 + 2 + 9)])
def test_a_stop_among_the_first_steps_does_not_shorten_the_run(more: int, last: int) -> None:
    alone = Rank(0, world_size=1, min_time_s=3.0, pace_s=0.5)
    alone.train(3)
    alone.length.look()
    alone.pace_s = 0.13  # and as soon as three steps tell it
    alone.train(more)
    alone.length.look()
    assert alone.last == last

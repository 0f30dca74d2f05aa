"""Cells of different world sizes on a host: round by round, and full."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from scalewise.records import DeviceInfo
from scalewise.sweep.local_executor import choose_cells

GPUS = tuple(DeviceInfo("cuda", "a GPU", f"GPU-{i}", i) for i in range(8))


@dataclass(eq=False)
class Waits:
    """All that is asked of a queued cell."""

    key: str
    world_size: int
    repeat: int
    slots: Sequence[DeviceInfo] = GPUS
    seconds: float = 1.0
    cell: Any = field(init=False)
    demand: Any = field(init=False)

    def __post_init__(self) -> None:
        self.cell = SimpleNamespace(planned=SimpleNamespace(repeat=self.repeat))
        self.demand = SimpleNamespace(host=SimpleNamespace(slots=self.slots))


def starts_now(waiting: Sequence[Waits], taken: int) -> list[str]:
    """Keys of the cells that start beside one that has the first ``taken`` devices."""
    chosen = choose_cells(cast(Any, waiting), [GPUS[:taken]])
    return [cast(Any, one).key for one in chosen]


def test_a_host_is_filled_with_what_fits_in_the_order_of_the_plan() -> None:
    waiting = [Waits("a", 2, 0), Waits("wide", 4, 0), Waits("b", 2, 0), Waits("c", 1, 0)]
    assert starts_now(waiting, 0) == ["a", "wide", "b"]
    assert starts_now(waiting, 7) == ["c"]
    assert starts_now(waiting, 8) == []


def test_a_narrow_cell_fills_what_a_wider_one_of_its_round_cannot_use() -> None:
    wide, narrow = Waits("wide", 8, 0), Waits("narrow", 1, 0)
    assert starts_now([wide, narrow], 4) == ["narrow"]
    assert starts_now([wide, narrow], 0) == ["wide"]


def test_the_next_round_waits_until_all_of_this_one_have_started() -> None:
    """Whatever its order in the queue: a cell that is tried again goes back into its round."""
    wide, later = Waits("wide", 8, 1), Waits("later", 1, 2)
    assert starts_now([later, wide], 4) == []
    assert starts_now([later, wide], 0) == ["wide"]
    assert starts_now([later], 4) == ["later"]


def test_a_cell_takes_no_device_that_it_may_not_have() -> None:
    first, other = Waits("first", 2, 0, GPUS[:4]), Waits("other", 4, 0, GPUS[4:])
    assert starts_now([first, other], 3) == ["other"]
    assert starts_now([first, other, Waits("any", 2, 0)], 0) == ["first", "other", "any"]


def play(runs: Sequence[Waits]) -> tuple[float, list[Waits]]:
    """Seconds until the last has ended, and the order in which they started."""
    left, running, order, now = list(runs), list[tuple[float, Waits]](), list[Waits](), 0.0
    while left or running:
        taken = sum(run.world_size for _, run in running)
        for key in starts_now(left, taken):
            (started,) = [run for run in left if run.key == key]
            left.remove(started)
            running.append((now + started.seconds, started))
            order.append(started)
        assert sum(run.world_size for _, run in running) <= len(GPUS)
        done = min(running, key=lambda one: one[0])
        now = done[0]
        running.remove(done)
    return now, order


def matrix(seed: int) -> list[Waits]:
    """Three workloads on 1, 2, 4 and 8 devices, shuffled in each of 5 rounds."""
    rng, runs = random.Random(seed), list[Waits]()
    alone_s = [rng.uniform(10, 120) for _ in range(3)]
    for repeat in range(5):
        block = [
            Waits(f"{i}x{n}r{repeat}", n, repeat, seconds=12 + s / n ** rng.uniform(0.3, 0.9))
            for i, s in enumerate(alone_s)
            for n in (1, 2, 4, 8)
        ]
        rng.shuffle(block)
        runs += block
    return runs


def test_rounds_cost_little_of_the_host() -> None:
    """Mean over 10 matrices, over device-time by devices: a bound that nothing beats."""
    over = []
    for seed in range(10):
        runs = matrix(seed)
        seconds, order = play(runs)
        assert [run.repeat for run in order] == sorted(run.repeat for run in order)
        over.append(seconds / (sum(run.world_size * run.seconds for run in runs) / len(GPUS)))
    assert 1.0 <= sum(over) / len(over) <= 1.15

"""Cells of different world sizes on a host: round by round, and full."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from scalewise.sweep.schedule import Waiting, starts_now


def test_a_host_is_filled_with_what_fits_in_the_order_of_the_plan() -> None:
    waiting = [Waiting("a", 2, 0), Waiting("wide", 4, 0), Waiting("b", 2, 0), Waiting("c", 1, 0)]
    assert starts_now(waiting, 0, 8) == ["a", "wide", "b"]
    assert starts_now(waiting, 7, 8) == ["c"]
    assert starts_now(waiting, 8, 8) == []


def test_a_narrow_cell_fills_what_a_wider_one_of_its_round_cannot_use() -> None:
    wide, narrow = Waiting("wide", 8, 0), Waiting("narrow", 1, 0)
    assert starts_now([wide, narrow], 4, 8) == ["narrow"]
    assert starts_now([wide, narrow], 0, 8) == ["wide"]


def test_the_next_round_waits_until_all_of_this_one_have_started() -> None:
    """Whatever its order in the queue: a cell that is tried again goes back into its round."""
    wide, later = Waiting("wide", 8, 1), Waiting("later", 1, 2)
    assert starts_now([later, wide], 4, 8) == []
    assert starts_now([later, wide], 0, 8) == ["wide"]
    assert starts_now([later], 4, 8) == ["later"]


@dataclass(frozen=True)
class Run:
    """A cell of a simulated sweep."""

    key: str
    world_size: int
    repeat: int
    seconds: float


def play(runs: Sequence[Run], slots: int) -> tuple[float, list[Run]]:
    """Seconds until the last has ended, and the order in which they started."""
    left, running, order, now = list(runs), list[tuple[float, Run]](), list[Run](), 0.0
    while left or running:
        taken = sum(run.world_size for _, run in running)
        waiting = [Waiting(run.key, run.world_size, run.repeat) for run in left]
        for key in starts_now(waiting, taken, slots):
            (started,) = [run for run in left if run.key == key]
            left.remove(started)
            running.append((now + started.seconds, started))
            order.append(started)
        assert sum(run.world_size for _, run in running) <= slots
        done = min(running, key=lambda one: one[0])
        now = done[0]
        running.remove(done)
    return now, order


def matrix(seed: int, workloads: int, rounds: int, slots: int) -> list[Run]:
    """Every workload on 1, 2, 4, ... devices, 12 s of start each, shuffled in each round."""
    rng, runs = random.Random(seed), list[Run]()
    alone_s = [rng.uniform(10, 120) for _ in range(workloads)]
    for repeat in range(rounds):
        block = [
            Run(f"{i}x{2**k}r{repeat}", 2**k, repeat, 12 + s / 2 ** (k * rng.uniform(0.3, 0.9)))
            for i, s in enumerate(alone_s)
            for k in range(slots.bit_length())
        ]
        rng.shuffle(block)
        runs += block
    return runs


@pytest.mark.parametrize(("workloads", "longest"), [(1, 1.45), (3, 1.15), (6, 1.08)])
def test_rounds_cost_little_of_the_host(workloads: int, longest: float) -> None:
    """Mean over 40 matrices of 8 slots and 5 rounds, over device-time by slots: a bound that
    nothing beats. No cell starts before one of an earlier round."""
    over = []
    for seed in range(40):
        runs = matrix(seed, workloads, 5, 8)
        seconds, order = play(runs, 8)
        assert [run.repeat for run in order] == sorted(run.repeat for run in order)
        over.append(seconds / (sum(run.world_size * run.seconds for run in runs) / 8))
    assert 1.0 <= sum(over) / len(over) <= longest


def test_a_cell_wider_than_the_host_is_refused() -> None:
    with pytest.raises(ValueError, match="wide: 9 slots; this host has 8"):
        starts_now([Waiting("wide", 9, 0)], 0, 8)

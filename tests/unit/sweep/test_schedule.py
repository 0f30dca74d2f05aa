"""Cells of different world sizes on a host: full, and in a good order."""

from __future__ import annotations

import pytest

from scalewise.sweep.schedule import Waiting, starts_now


def test_a_host_is_filled_with_what_fits() -> None:
    waiting = [Waiting("wide", 4, 10.0), Waiting("a", 2, 10.0), Waiting("b", 2, 10.0)]
    assert set(starts_now(waiting, 0, 8)) == {"wide", "a", "b"}
    assert starts_now(waiting, 7, 8) == []


def test_the_longest_starts_first_where_all_are_alike() -> None:
    waiting = [Waiting(f"{s}s", 1, float(s)) for s in (1, 9, 5)]
    assert starts_now(waiting, 0, 1) == ["9s"]


def test_a_cell_of_unknown_duration_counts_as_the_median() -> None:
    waiting = [Waiting("short", 1, 1.0), Waiting("unknown", 1, None), Waiting("long", 1, 9.0)]
    assert starts_now(waiting, 0, 3) == ["long", "unknown", "short"]
    assert starts_now([Waiting("alone", 1, None)], 0, 1) == ["alone"]


def test_a_narrow_cell_fills_what_a_larger_one_cannot_use() -> None:
    """4 of 8 slots are free for 10 s, then the wide cell can start."""
    wide, narrow = Waiting("wide", 8, 100.0), Waiting("narrow", 1, 9.0)
    assert starts_now([narrow, wide], 4, 8) == ["narrow"]
    assert starts_now([narrow, wide], 0, 8) == ["wide"], "the larger one goes first"


def test_a_stream_of_narrow_cells_does_not_starve_a_wide_one() -> None:
    """Played to the end with every cell as long as expected."""
    waiting = [Waiting(f"n{i}", 1, 10.0 + i % 3) for i in range(40)] + [Waiting("wide", 8, 10.0)]
    running: dict[str, tuple[float, int]] = {}
    now, order = 0.0, []
    while waiting or running:
        taken = sum(world_size for _, world_size in running.values())
        for key in starts_now(waiting, taken, 8):
            (one,) = [w for w in waiting if w.key == key]
            waiting.remove(one)
            assert one.expected_s is not None
            running[key] = (now + one.expected_s, one.world_size)
            order.append(key)
        assert sum(world_size for _, world_size in running.values()) <= 8
        done = min(running, key=lambda key: running[key][0])
        now = running.pop(done)[0]
    assert len(order) == 41
    area = (sum(10.0 + i % 3 for i in range(40)) + 80.0) / 8
    assert now <= 1.15 * area


def test_a_cell_wider_than_the_host_is_refused() -> None:
    with pytest.raises(ValueError, match="wide: 9 slots; this host has 8"):
        starts_now([Waiting("wide", 9, 1.0)], 0, 8)

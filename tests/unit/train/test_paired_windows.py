"""Switches in windows: how they are drawn, and whether planted effects are found again."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

import overhead
import paired_windows
from paired_windows import LONGEST_S, SHORTEST_S, Window, draw_rounds, draw_windows

PARTS = ("marks", "thread", "workers", "threads", "null")
PLANTED = {"marks": 1.05, "workers": 0.9}
EVERYTHING_ON = ("everything", ("everything", "null"), 1.04)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_windows, "DRAWS", 200)


def kept(
    plan: Sequence[Window],
    planted: Mapping[str, float],
    seed: int,
    mode: tuple[set[str], float] = (set(), 1.0),
    noise: float = 0.05,
) -> dict[str, Any]:
    """A record of two ranks whose host drifts, in noise of which neighbours share half.

    While all of ``mode`` are on, steps take so many times as long.
    """
    rng = np.random.default_rng(seed)
    ranks: list[list[dict[str, Any]]] = [[], []]
    common = rng.normal(0, noise)
    at_s = 0.0
    for window in plan:
        common = 0.5 * common + rng.normal(0, noise * math.sqrt(0.75))
        drift = 0.2 * math.sin(at_s / 40)
        level = math.exp(common + drift) * math.prod(planted.get(part, 1.0) for part in window.on)
        level *= mode[1] if mode[0] and mode[0] <= set(window.on) else 1.0
        for slower, rank in zip((1.0, 1.01), ranks, strict=True):
            rank.append(
                {"pair": window.pair, "design": window.design, "on": list(window.on), "steps": 100,
                 "seconds": 0.25 * level * slower, "began_ns": round(1e9 * at_s)}
            )  # fmt: skip
        at_s += window.seconds
    return {"ranks": ranks, "seed": 0}


def parts_of(seed: int, pairs: int = 60, parts: Sequence[str] = PARTS) -> list[Window]:
    return draw_windows({"parts": (parts, pairs)}, seed)


# Drawing


def test_the_windows_of_a_pair_have_each_part_on_once() -> None:
    plan = draw_windows({"parts": (PARTS, 30), "everything": (("everything",), 10)}, seed=3)
    pairs = [(plan[i], plan[i + 1]) for i in range(0, len(plan), 2)]
    assert [one.design for one, _ in pairs].count("everything") == 10
    for number, (one, other) in enumerate(pairs):
        factors = PARTS if one.design == "parts" else ("everything",)
        assert (one.pair, other.pair, one.design) == (number, number, other.design)
        assert sorted(one.on + other.on) == sorted(factors)
    assert all(SHORTEST_S <= window.seconds <= LONGEST_S for window in plan)


def test_the_plan_is_the_seeds_and_an_early_end_leaves_some_of_each_design() -> None:
    designs = {"parts": (PARTS, 60), "everything": (("everything",), 60)}
    plan = draw_windows(designs, seed=1)
    assert plan == draw_windows(designs, seed=1) != draw_windows(designs, seed=2)
    assert {window.design for window in plan[:24]} == set(designs)


def test_a_part_is_first_in_half_of_its_pairs_whatever_the_others_are() -> None:
    firsts = [set(window.on) for window in parts_of(seed=5, pairs=400)[::2]]
    for part in PARTS:
        assert 160 < sum(part in on for on in firsts) < 240
    for two in itertools.combinations(PARTS, 2):
        assert 60 < sum(set(two) <= on for on in firsts) < 140


def test_every_way_of_executing_has_its_turn_in_each_round() -> None:
    plan = draw_rounds("execution", ("eager", "compile", "cudagraph"), rounds=20, seed=0)
    orders = [tuple(window.on[0] for window in plan[i : i + 3]) for i in range(0, len(plan), 3)]
    assert all(sorted(order) == ["compile", "cudagraph", "eager"] for order in orders)
    assert len(set(orders)) > 3


# Estimating


def test_planted_parts_are_found_beside_a_drift() -> None:
    found = overhead.estimate(kept(parts_of(seed=1), PLANTED, seed=1))["parts"]
    assert (found.samples, found.ratios["null"].count) == ("windows", 120)
    for part in PARTS:
        ratio, truth = found.ratios[part], PLANTED.get(part, 1.0)
        assert ratio.low is not None and ratio.high is not None
        assert ratio.low < truth < ratio.high
        assert ratio.high - ratio.low < 0.1
    marks, workers = found.ratios["marks"], found.ratios["workers"]
    assert marks.low > 1.0 and workers.high < 1.0


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held = dict.fromkeys(PARTS, 0)
    for seed in range(60):
        windows = overhead.merged(kept(parts_of(seed), PLANTED, seed))
        states = [(w["began_ns"] / 1e9, w["on"], w["step_ms"]) for w in windows]
        for part, ratio in paired_windows.estimate_switches(states, PARTS).items():
            held[part] += ratio.low < PLANTED.get(part, 1.0) < ratio.high
    assert all(often >= 53 for often in held.values())  # of 95 %: fewer once in a hundred times


def test_windows_of_a_mode_of_two_parts_spoil_none_of_the_others() -> None:
    parts = (*PARTS, overhead.LEFT_OUT)
    mode = ({overhead.LEFT_OUT, "threads"}, 3.0)
    record = kept(parts_of(1, parts=parts), PLANTED, 1, mode)
    found = overhead.estimate(record)["parts"].ratios
    assert set(found) == set(PARTS) and found["null"].count == 60
    for part in PARTS:
        assert found[part].low < PLANTED.get(part, 1.0) < found[part].high
    # What the ratios of whole pairs say of that record: a part that does nothing costs much.
    windows = overhead.merged(record)
    ratios = overhead._of_pairs(windows, 0).ratios
    assert ratios["threads"].low > 1.3


def test_a_mode_of_two_parts_is_named_and_none_is_made_up() -> None:
    mode = ({"workers", "threads"}, 1.3)
    found = overhead.estimate(kept(parts_of(2), PLANTED, 2, mode))["parts"].interactions
    assert list(found) == [("threads", "workers")]
    assert found["threads", "workers"].value == pytest.approx(1.3, abs=0.08)
    named = [overhead.estimate(kept(parts_of(s), PLANTED, s))["parts"] for s in range(20)]
    # Of 5 %: more less than twice in a hundred times.
    assert sum(bool(each.interactions) for each in named) <= 3


def test_everything_is_estimated_from_its_pairs() -> None:
    design, factors, truth = EVERYTHING_ON
    plan = draw_windows({design: (factors, 60)}, seed=4)
    found = overhead.estimate(kept(plan, {"everything": truth}, seed=4))[design]
    assert found.samples == "pairs"
    ratio, null = found.ratios["everything"], found.ratios["null"]
    assert ratio.low is not None and ratio.high is not None
    assert 1.0 < ratio.low < truth < ratio.high < 1.1
    assert null.low < 1.0 < null.high


def test_arms_are_compared_round_by_round_with_eager() -> None:
    plan = draw_rounds("execution", ("eager", "cudagraph"), rounds=40, seed=0)
    found = overhead.estimate(kept(plan[:-1], {"cudagraph": 0.5}, seed=0))["execution"]
    ratio = found.ratios["cudagraph"]
    assert (ratio.count, found.samples) == (39, "rounds")
    assert ratio.value == pytest.approx(0.5, abs=0.02)
    assert ratio.low < 0.5 < ratio.high


def test_few_windows_give_a_ratio_without_an_interval() -> None:
    found = overhead.estimate(kept(parts_of(1, pairs=8), {}, seed=1))["parts"].ratios["null"]
    assert (found.low, found.high, found.count) == (None, None, 16)


def test_a_window_counts_by_its_slowest_rank() -> None:
    record = kept(parts_of(1, pairs=2), {}, seed=1)
    first = overhead.merged(record)[0]
    assert first["step_ms"] == pytest.approx(10 * record["ranks"][1][0]["seconds"])

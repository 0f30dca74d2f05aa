"""What the benchmarks of anatomy and communication judge: known times in, known verdicts out."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

import anatomy_injection
import exposed_comm

BASE_MS = dict.fromkeys(anatomy_injection.PHASES, 2.0)
EACH = 9


def recorded(
    took_ms: float,
    noise_ms: float,
    misplaced: float = 0.0,
    slowed_ms: float = 0.0,
    relieved_ms: float = 0.0,
) -> list[dict[str, Any]]:
    """What two ranks hand back: delays that land where they were put, but for a share."""
    plan = anatomy_injection.turns(2, EACH)
    noise = random.Random(1)
    ranks: list[dict[str, Any]] = []
    for rank in range(2):
        steps = [
            {phase: ms + noise.gauss(0, noise_ms) for phase, ms in BASE_MS.items()}
            for _ in range(anatomy_injection.CYCLE * (len(plan) + 1))
        ]
        delays = {}
        for turn, (target, phase) in enumerate(plan):
            delayed = steps[anatomy_injection.CYCLE * (turn + 1)]
            if target in (rank, anatomy_injection.ALL):
                elsewhere = "optimizer" if phase != "optimizer" else "forward"
                delayed[phase] += took_ms * (1 - misplaced)
                delayed[elsewhere] += took_ms * misplaced
                delays[str(turn)] = took_ms
                if target == rank:
                    delayed["backward"] -= relieved_ms
            else:
                delayed["exposed_comm"] += took_ms
                delayed["backward"] += slowed_ms
        for step in steps:
            step["step"] = sum(step.values())
        ranks.append({"plan": plan, "runs": {"1": steps}, "delays": {"1": delays}})
    return ranks


def test_a_delay_is_compared_with_what_it_took_and_not_with_what_was_asked_for() -> None:
    found = anatomy_injection.judge(recorded(1.3, noise_ms=0.01))
    assert len(found) == 21  # seven phases on either rank, and on both at once
    for one in found:
        assert one["taken_ms"] == pytest.approx(1.3)
        assert one["found_ms"] == pytest.approx(1.3, abs=0.03)
        assert one["step_grew_ms"] == pytest.approx(1.3, abs=0.1)
        assert one["within"] and one["resolved"]


def test_a_fifth_of_a_delay_in_another_phase_is_told() -> None:
    found = anatomy_injection.judge(recorded(1.0, noise_ms=0.01, misplaced=0.2))
    assert not any(one["within"] for one in found)
    assert all(one["resolved"] for one in found)


def rows(reduced: bool, step: float, arrival: float, exposed: float) -> list[dict[str, Any]]:
    return [
        {"reduced": reduced, "step": step, "arrival": arrival, "exposed_comm": exposed}
        for _ in range(3)
    ]


def test_the_cost_of_reducing_is_split_into_waiting_and_slower_computation() -> None:
    off = rows(False, 42.8, 41.0, float("nan"))
    # One step in three is an accident: the median does not see it.
    ranks = [[*rows(True, 44.8, 42.3, exposed), *off] for exposed in (0.5, 0.7)]
    for rank in ranks:
        rank[0] = {**rank[0], "step": 90.0, "arrival": 88.0}
    found = exposed_comm.figures(ranks)
    assert found == pytest.approx(
        {
            "on_ms": 44.8, "off_ms": 42.8, "cost_ms": 2.0, "exposed_ms": 0.6, "slower_ms": 1.3,
            "rest_ms": 0.1,
        }
    )  # fmt: skip

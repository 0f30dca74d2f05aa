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


def alone(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if one["rank"] != anatomy_injection.ALL]


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


def test_noise_wider_than_the_tolerance_proves_nothing() -> None:
    found = anatomy_injection.judge(recorded(1.0, noise_ms=0.5))
    assert not any(one["resolved"] for one in found)


def test_the_others_backward_beside_a_waiting_collective_is_shown_and_not_judged() -> None:
    found = anatomy_injection.judge(recorded(1.0, noise_ms=0.01, slowed_ms=0.4))
    assert all(one["within"] for one in found)
    for one in alone(found):
        assert one["others_slowed_ms"] == [pytest.approx(0.4, abs=0.03)]
        assert one["others_waited_ms"] == [pytest.approx(1.0, abs=0.05)]


def test_a_rank_is_relieved_by_no_more_than_it_is_ever_slowed() -> None:
    known = anatomy_injection.judge(recorded(1.0, 0.01, slowed_ms=0.4, relieved_ms=0.3))
    assert all(one["within"] for one in known)
    for one in alone(known):
        assert one["relieved_ms"] == pytest.approx(0.3, abs=0.03)
    unknown = anatomy_injection.judge(recorded(1.0, 0.01, slowed_ms=0.1, relieved_ms=0.3))
    assert not any(one["within"] for one in alone(unknown))


def test_nothing_is_allowed_for_where_all_ranks_are_delayed_alike() -> None:
    ranks = recorded(1.0, 0.01, slowed_ms=0.4)
    for turn, (target, _) in enumerate(ranks[0]["plan"]):
        if target == anatomy_injection.ALL:
            step = ranks[1]["runs"]["1"][anatomy_injection.CYCLE * (turn + 1)]
            step["backward"] -= 0.3
    found = anatomy_injection.judge(ranks)
    assert all(one["within"] for one in alone(found))
    assert not any(one["within"] for one in found if one not in alone(found))


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


def test_a_cell_that_always_reduces_has_no_cost_of_reducing() -> None:
    found = exposed_comm.figures([rows(True, 44.8, 42.3, 0.6)])
    assert set(found) == {"on_ms", "exposed_ms"}

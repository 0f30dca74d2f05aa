"""What the benchmarks of this room judge: known times in, known figures and verdicts out."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

import anatomy_injection
import exposed_comm
import weak_scaling_table

BASE_MS = dict.fromkeys(anatomy_injection.PHASES, 2.0)
EACH = 9


def recorded(
    took_ms: float,
    noise_ms: float,
    misplaced: float = 0.0,
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
            else:
                delayed["exposed_comm"] += took_ms
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
    assert [one["within"] for one in found] == [False] * 21


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


SETTINGS = ["bf16_compression", "compiled"]


def arms(
    times_ms: dict[tuple[str, int], float], drift: tuple[float, ...] = (1.0,)
) -> list[dict[str, Any]]:
    """Merged rows: the same times in every round, all longer by the round's drift."""
    return [
        {"round": number, "arm": arm, "devices": devices, "step_ms": ms * factor}
        for number, factor in enumerate(drift)
        for (arm, devices), ms in times_ms.items()
    ]


TIMES_MS = {
    ("bare", 1): 40.0, ("bare", 4): 50.0, ("ours", 1): 42.0, ("ours", 4): 52.5,
    ("bf16_compression", 4): 44.0, ("compiled", 1): 30.0, ("compiled", 4): 40.0,
}  # fmt: skip


def test_an_efficiency_is_of_an_arms_own_time_on_one_device() -> None:
    table = weak_scaling_table.summarise(arms(TIMES_MS), SETTINGS, 4)["arms"]
    efficiencies = {name: arm["efficiency_percent"] for name, arm in table.items()}
    assert efficiencies == pytest.approx(
        {"bare": 80.0, "ours": 80.0, "bf16_compression": 100 * 42 / 44, "compiled": 75.0}
    )
    assert table["compiled"]["alone_from"] == "compiled"
    assert table["bf16_compression"]["alone_from"] == "ours"
    assert table["compiled"]["difference_points"] == pytest.approx(-5.0)
    assert table["ours"]["efficiency_low95"] is None


def test_a_drift_of_the_host_widens_no_interval() -> None:
    found = weak_scaling_table.summarise(arms(TIMES_MS, (1.0, 1.3, 0.8)), SETTINGS, 4)
    ours = found["arms"]["ours"]
    assert ours["efficiency_low95"] == pytest.approx(80.0)
    assert ours["efficiency_high95"] == pytest.approx(80.0)
    assert found["verdict"] == {
        "met": True, "resolved": True, "best": "bf16_compression", "best_is_above_bare": True,
        "best_resolved": True,
    }  # fmt: skip


@pytest.mark.parametrize(("ours_ms", "met"), [(53.0, True), (53.3, False)])
def test_ours_may_lose_a_point_and_no_more(ours_ms: float, met: bool) -> None:
    times = {**TIMES_MS, ("ours", 4): ours_ms}
    found = weak_scaling_table.summarise(arms(times), SETTINGS, 4)
    assert found["verdict"]["met"] is met
    assert not found["verdict"]["resolved"]  # one round tells nothing about its doubt

"""What the weak-scaling benchmark makes of step times: known times in, known efficiencies out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

import weak_scaling_table

SETTINGS = ["bf16_compression", "compiled"]


def rows(
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
    table = weak_scaling_table.summarise(rows(TIMES_MS), SETTINGS, 4)["arms"]
    efficiencies = {name: arm["efficiency_percent"] for name, arm in table.items()}
    assert efficiencies == pytest.approx(
        {"bare": 80.0, "ours": 80.0, "bf16_compression": 100 * 42 / 44, "compiled": 75.0}
    )
    assert table["compiled"]["alone_from"] == "compiled"
    assert table["bf16_compression"]["alone_from"] == "ours"
    assert table["compiled"]["difference_points"] == pytest.approx(-5.0)
    assert table["ours"]["efficiency_low95"] is None


def test_a_drift_of_the_host_widens_no_interval() -> None:
    found = weak_scaling_table.summarise(rows(TIMES_MS, (1.0, 1.3, 0.8)), SETTINGS, 4)
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
    found = weak_scaling_table.summarise(rows(times), SETTINGS, 4)
    assert found["verdict"]["met"] is met
    assert not found["verdict"]["resolved"]  # one round tells nothing about its doubt


def test_a_difference_whose_interval_holds_the_limit_is_not_resolved() -> None:
    scattered = [
        {**row, "step_ms": row["step_ms"] * (1 + 0.03 * row["round"])}
        if (row["arm"], row["devices"]) == ("ours", 4)
        else row
        for row in rows(TIMES_MS, (1.0, 1.0, 1.0))
    ]
    assert not weak_scaling_table.summarise(scattered, SETTINGS, 4)["verdict"]["resolved"]


def test_the_slowest_rank_counts_and_one_that_waited_does_not() -> None:
    def one(step_ms: float | None, held_mib: float | None) -> list[dict[str, Any]]:
        row = {"round": 0, "arm": "bare", "devices": 2}
        return [{**row, "step_ms": step_ms, "held_before_mib": held_mib}]

    together = weak_scaling_table.merged([one(40.0, 1.0), one(41.0, 3.0)])[0]
    assert (together["step_ms"], together["ranks_ms"]) == (41.0, [40.0, 41.0])
    assert together["held_before_mib"] == 3.0
    alone = weak_scaling_table.merged([one(39.0, None), one(None, None)])[0]
    assert (alone["step_ms"], alone["ranks_ms"]) == (39.0, [39.0])
    assert alone["held_before_mib"] is None

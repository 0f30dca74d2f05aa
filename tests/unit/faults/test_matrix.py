"""Detection limits, accusations and pages follow from the observations alone."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from faults import FaultConfig, page
from faults.matrix import accusations, detections, passed, rows
from faults.observe import HEALTHY, NOTHING, Finding, Observation
from faults.plan import ALONE, CROWDED, PAIR, asks, cpu_workload, gpu_workload
from hydra import compose, initialize_config_dir

from scalewise.analysis import Loss
from scalewise.config import conf_dir, resolve
from scalewise.sweep.plan import request

SETTING = page.Setting("python self_test.py", ("a CPU", "a CPU"), 16, 7, 1.5, 200.0)


def seen(fault: str, strength: int, *limits: str) -> Observation:
    expected = NOTHING if fault == HEALTHY else "waiting"
    named = tuple(Loss(limit, 2.0, 0.2, "", 1) for limit in limits)  # type: ignore[arg-type]
    healthy = fault == HEALTHY
    return Observation(fault, expected, f"{strength} ms", strength, named, 10.0, (), healthy)


def crowded(limits: tuple[str, ...], codes: tuple[str, ...]) -> Observation:
    """A healthy pair on a busy host."""
    busy = seen("oversubscribe", 0, *limits)
    return replace(busy, expected=CROWDED, findings=findings(*codes), is_healthy=True)


def findings(*codes: str) -> tuple[Finding, ...]:
    return tuple(Finding(code, "") for code in codes)


def test_the_detection_limit_is_the_weakest_from_which_all_are_right() -> None:
    found = [
        seen("slow_rank", 0),
        seen("slow_rank", 1, "waiting", "long_steps"),
        seen("slow_rank", 1, "waiting"),
        seen("slow_rank", 2, "waiting"),
    ]
    (detection,) = detections(found)
    assert detection.limit == "1 ms"
    assert passed(found)
    (detection,) = detections([*found, seen("slow_rank", 1, "long_steps", "waiting")])
    assert detection.limit == "2 ms"
    (detection,) = detections([*found, seen("slow_rank", 2)])
    assert detection.limit is None
    assert "NOT" in str(detection)


def test_a_true_limit_of_a_healthy_run_is_no_accusation() -> None:
    healthy = [seen(HEALTHY, 0, "transfer"), seen(HEALTHY, 0, "long_steps", "waiting")]
    assert accusations(healthy) == {"long_steps": 1, "waiting": 1}
    assert [o.right for o in healthy] == [True, False]
    assert not passed(healthy)
    in_turns = replace(healthy[1], losses=(Loss("waiting", 2.0, 0.2, ""),))
    assert in_turns.right


@pytest.mark.parametrize(
    ("limits", "codes", "accused"),
    [
        ((CROWDED, "transfer"), (), ()),
        ((CROWDED, "long_steps"), ("common_stall",), ()),
        ((CROWDED, "waiting"), (), ("waiting",)),
        ((CROWDED,), ("rank_on_other_gpu",), ("rank_on_other_gpu",)),
        ((), ("common_stall",), ("common_stall",)),
    ],
)
def test_on_a_busy_host_only_the_host_may_be_named(
    limits: tuple[str, ...], codes: tuple[str, ...], accused: tuple[str, ...]
) -> None:
    busy = crowded(limits, codes)
    assert busy.accused == accused
    assert busy.right == passed([busy]) == (not accused)
    assert accusations([busy]) == dict.fromkeys(accused, 1)


def test_a_fault_may_be_judged_by_a_finding() -> None:
    stalled = replace(seen("common_stall", 1, "transfer"), expected="common_stall")
    assert stalled.first == NOTHING
    found = replace(stalled, findings=findings("common_stall"))
    assert (found.first, found.right) == ("common_stall", True)


def test_the_page_counts_what_was_named_first() -> None:
    found = [seen("slow_rank", 2, "waiting"), seen("slow_rank", 2), seen(HEALTHY, 0, "long_steps")]
    plain = json.loads(json.dumps(page.as_plain(found, SETTING)))
    assert plain["detection"][0]["limit"] is None
    assert plain["healthy_accused"] == {"long_steps": 1}
    _, slow = rows(found)
    assert (slow.first, slow.right, slow.runs) == ({"waiting": 1, NOTHING: 1}, 1, 2)
    assert "slow_rank" in page.as_markdown(found, SETTING)


@pytest.mark.parametrize("workload", [cpu_workload(1), gpu_workload()])
def test_every_fault_has_three_magnitudes_and_healthy_twins_are_shared_out(workload) -> None:  # type: ignore[no-untyped-def]
    asked = list(asks(workload, workload.faults, (0, 1, 2), healthy=61, planted=2))
    healthy = [a for a in asked if not any(o.startswith("+fault.") for o in a.overrides)]
    assert sum(a.repeats for a in healthy) == 61
    planted = [a for a in asked if a not in healthy]
    singles = [a for a in planted if set(ALONE) <= set(a.overrides)]
    assert len(planted) == 3 * len(workload.faults) + len(singles)
    assert all(set(PAIR) <= set(a.overrides) for a in planted if a not in singles)
    assert {a.repeats for a in planted} == {2}
    assert len({a.overrides for a in asked}) == len(asked)


@pytest.mark.parametrize("workload", [cpu_workload(1), gpu_workload()])
def test_every_fault_is_a_cell_that_can_be_planned(workload) -> None:  # type: ignore[no-untyped-def]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for fault in workload.faults:
            overrides = (*workload.overrides, *PAIR, *fault.overrides(2))
            plain = resolve(compose(config_name="config", overrides=list(overrides)))
            cell = request(overrides, plain).cell
            assert cell.fault is not None
            assert (cell.fault.name, cell.fault.target) == (
                fault.name,
                "faults.plant.PlantedFault",
            )
            FaultConfig(**cell.fault.arguments)

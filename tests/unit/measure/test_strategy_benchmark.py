"""What ``benchmarks/strategies.py`` judges, and that one failing variant costs only itself."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

import strategies
import strategy_variants
import team
import watched_team
from strategy_variants import EXACT, VARIANTS, Allowed, Difference

BENCHMARKS = str(Path(strategies.__file__).parent)
STEPS = 20
FALLING = [5.0 - 0.2 * step for step in range(STEPS)]
RANK_SCRIPT = f"""
import os, sys, time
sys.path[:0] = [{BENCHMARKS!r}]
from watched_team import work_through

def do(task):
    first = os.environ["RANK"] == "0"
    if task == "raises" and not first:
        raise ValueError("no such thing\\nsecond line")
    if task == "dies" and first:
        os._exit(3)
    if task == "hangs" or task in ("raises", "dies"):
        time.sleep(60)
    return [task, int(os.environ["RANK"]), os.getpid()]

work_through(sys.argv[2:], do)
"""


def recorded(losses: Sequence[float | None], fed: int = 8, shard: int | None = None) -> Any:
    return {
        "losses": list(losses), "samples_fed": fed, "data_shard": shard, "step_ms": [2.0, 4.0, 9.0],
        "payload_bytes_per_step": None, "peak_allocated_mib": None,
    }  # fmt: skip


def outcomes(**losses: Sequence[float | None]) -> dict[str, watched_team.Outcome]:
    return {
        name: watched_team.Outcome(name, 1.0, [recorded(values)]) for name, values in losses.items()
    }


def judged(name: str, found: dict[str, watched_team.Outcome], device: str = "cuda") -> Any:
    options = ["--device", device, "--steps", str(STEPS)]
    arguments = strategies.parser_of_options().parse_args(options)
    return strategies.judged(name, found, arguments)


def test_a_global_loss_is_weighted_by_samples_and_counts_shared_ones_once() -> None:
    uneven = [recorded([1.0, 2.0], fed=11), recorded([3.0, 6.0], fed=5)]
    assert strategy_variants.global_losses(uneven) == pytest.approx([26 / 16, 52 / 16])
    first, second = recorded([1.0], shard=0), recorded([3.0], shard=1)
    assert strategy_variants.global_losses([first, first, second, second]) == [2.0]


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_told_and_not_compared(bad: float | None) -> None:
    with pytest.raises(ValueError, match="not finite in step 2"):
        strategy_variants.global_losses([recorded([1.0, 1.0]), recorded([1.0, bad])])


def test_one_step_apart_is_seen_and_the_end_is_seen_on_its_own() -> None:
    early, late = [*FALLING], [*FALLING]
    early[2] *= 1.001
    late[-1] *= 1.5
    assert strategy_variants.differences(early, FALLING) == Difference(pytest.approx(1e-3), 0.0)
    end = sum(FALLING[-10:])
    found = strategy_variants.differences(late, FALLING)
    assert found == Difference(pytest.approx(0.5), pytest.approx(0.5 * FALLING[-1] / end))
    with pytest.raises(ValueError, match="19 losses and 20"):
        strategy_variants.differences(FALLING[:-1], FALLING)


def test_both_limits_count_and_nan_is_within_none() -> None:
    assert EXACT.admits(Difference(1e-4, 0.5))
    assert not EXACT.admits(Difference(1.1e-4, 0.0))
    assert not Allowed(0.05, 0.01).admits(Difference(0.04, 0.02))
    assert not Allowed(None, 0.2).admits(Difference(0.0, math.nan))


def test_a_variant_is_judged_by_what_it_is_compared_with() -> None:
    away = [*FALLING[:-1], FALLING[-1] * 1.001]
    found = outcomes(single=FALLING, ddp=FALLING, fsdp=away, task_parallel=away)
    agrees = {name: judged(name, found)["agrees"] for name in found}
    assert agrees == {"single": True, "ddp": True, "fsdp": False, "task_parallel": None}
    flat = outcomes(single=[5.0] * STEPS)
    assert judged("single", flat)["agrees"] is False, "what does not learn proves nothing"


def test_what_failed_or_did_not_run_disagrees_and_what_needs_gpus_is_not_judged() -> None:
    failed = watched_team.Outcome("single", 1.0, error="rank 0: boom")
    found = {"single": failed, **outcomes(ddp=FALLING, local_sgd=FALLING[:-1])}
    errors = {
        name: (judged(name, found)["agrees"], judged(name, found)["error"])
        for name in ("single", "ddp", "local_sgd", "tensor")
    }
    assert errors == {
        "single": (False, "rank 0: boom"),
        "ddp": (False, "single failed: nothing to compare with"),
        "local_sgd": (False, "19 losses in 20 steps"),
        "tensor": (False, "not run"),
    }
    on_cpu = judged("fsdp_offload", found, device="cpu")
    assert (on_cpu["agrees"], on_cpu["error"]) == (None, "needs GPUs")


def test_a_line_has_the_difference_beside_what_is_allowed_and_dashes_for_what_is_missing() -> None:
    found = outcomes(single=FALLING, ddp=[1.00001 * loss for loss in FALLING])
    words = strategies.row(judged("ddp", found)).split()
    assert words == ["20", "1.0e-05", "1e-04", "1.0e-05", "-", "yes", "4.00", "-", "-"]


@pytest.mark.parametrize("devices", [2, 4])
def test_every_variant_is_a_cell_that_can_run_on_so_many_gpus(devices: int) -> None:
    from scalewise.config import build_cell

    for variant in VARIANTS.values():
        overrides = strategy_variants.overrides_of(variant, "cuda", devices, 50, True)
        cell = build_cell(team.compose(overrides))
        ranks = 1 if variant.baseline is None else devices
        cell.strategy.check_world(ranks)
        assert sum(cell.shard_batch_sizes(ranks)) * cell.accumulate_grad_batches == 16
        assert (cell.precision.name, cell.deterministic) == ("fp32", True)
        assert variant.baseline is None or VARIANTS[variant.baseline].baseline is None


def test_a_task_that_raises_dies_or_hangs_costs_only_itself(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK_SCRIPT)
    tasks = ["one", "raises", "two", "hangs", "three", "dies", "four"]
    found = list(watched_team.run_tasks(str(script), [], tasks, 2, limit_s=2.0, start_s=20.0))
    assert [one.task for one in found] == tasks
    errors = {one.task: one.error for one in found if one.error}
    assert errors == {
        "raises": "rank 1: ValueError: no such thing",
        "dies": "rank 0 ended with 3",
        "hangs": "no answer from rank 0, 1 within 2 s",
    }
    answers = {one.task: one.answers for one in found if not one.error}
    assert {task: [a[:2] for a in each] for task, each in answers.items()} == {
        task: [[task, 0], [task, 1]] for task in ("one", "two", "three", "four")
    }
    assert answers["one"][0][2] != answers["two"][0][2], "fresh ranks after a failure"
    logs = {one.task: one.logs for one in found}
    assert "second line" in logs["raises"][1]
    assert all("most recent call first" in log and "in do" in log for log in logs["hangs"])

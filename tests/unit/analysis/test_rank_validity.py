"""Steps without a gradient are fast ones: a run with such steps is doubted, or invalid."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, repeats, write_sweep
from fakes.sections import lines_of
from scalewise.analysis import (
    Analysis,
    analyse,
    choose_strategy,
    compare,
    load_sweep,
    reach,
    under_ceiling,
)

STEADY = [1.0, 1.01, 0.99]
AUTO = {"repeats": "auto", "max_repeats": 8, "precision_percent": 2}
SIDES = [run for spec in (Spec(config=AUTO), replace(DDP, config=AUTO))
         for run in repeats(spec, STEADY)]  # fmt: skip


def analysed(
    path: Path, *specs: Spec, without: int | None, resumed_at: int | None = None
) -> Analysis:
    """The single-device runs left out a gradient in so many steps, the others in none."""
    write_sweep(path, specs)
    for result in path.glob("*/result.json"):
        told = json.loads(result.read_text())
        for rank in told["ranks"]:
            rank["steps_without_loss"] = without if len(told["ranks"]) == 1 else 0
            rank["resumed_at_step"] = resumed_at
        result.write_text(json.dumps(told))
    return analyse(load_sweep(path))


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Three runs on one device that trained nothing, and three on two that did."""
    return analysed(tmp_path_factory.mktemp("sweep"), *SIDES, without=60)


@pytest.mark.parametrize(
    ("without", "resumed_at", "counted"),
    [(15, None, "15 of 60 steps"), (15, 20, "15 of 40 steps"), (0, None, ""), (None, None, "")],
)
def test_a_run_that_trained_nothing_is_doubted(
    tmp_path: Path, without: int | None, resumed_at: int | None, counted: str
) -> None:
    found = analysed(tmp_path, Spec(), without=without, resumed_at=resumed_at)
    said = [line for line in lines_of(found, "remarks") if "trained nothing" in line]
    assert [counted in line for line in said] == [True] * bool(counted)


def test_a_comparison_with_few_such_steps_says_so(tmp_path: Path) -> None:
    found = analysed(tmp_path, *SIDES, without=3)
    (pair,) = found.pairs
    assert [(one.code, one.about) for one in pair.remarks] == [
        ("few_untrained", pair.single.config_id)
    ]
    assert "one device: 3 of 60 steps trained nothing" in found.say_why(pair)


def test_its_comparisons_are_invalid(untrained: Analysis) -> None:
    (pair,) = untrained.pairs
    assert (pair.verdict, pair.invalid[0].code) == ("invalid", "invalid_baseline")
    single, multi = untrained.measured
    codes = {key: why[0].code for key, why in untrained.invalid.items()}
    assert codes == {single.config_id: "untrained", multi.config_id: "invalid_baseline"}
    costs = [untrained.costs[c.config_id] for c in (single, multi)]
    assert [cost.usd_per_million_samples for cost in costs] == [None, None]
    assert reach(1000, single, costs[0]).hours is None
    assert reach(1000, multi, costs[1]).hours is not None


def test_nothing_is_repeated_or_chosen_for_its_speed(untrained: Analysis) -> None:
    (both,) = untrained.repeats
    assert (both.wanted, both.because) == (None, "failures")
    candidates = {str(c.name("strategy")): c for c in untrained.measured}
    decision = choose_strategy(candidates, 60, 128)
    problems = {one.name: one.problem for one in decision.candidates}
    assert decision.chosen == "ddp"
    assert not problems["ddp"]
    assert (problems["single"] or "").startswith("60 of 60 steps trained nothing")


def test_it_is_not_the_fastest(tmp_path: Path) -> None:
    """It has three times the samples/s of the fastest that trained, and one device, as they do."""
    fast = repeats(Spec(batch_size=64), [0.1, 0.101, 0.099])
    others = [one for size in (256, 512) for one in repeats(Spec(batch_size=size), STEADY)]
    write_sweep(tmp_path, [*fast, *others])
    for result in list(tmp_path.glob("00[012]-*/result.json")):
        text = result.read_text()
        result.write_text(text.replace('"steps_without_loss": null', '"steps_without_loss": 60'))
    (named,) = [line for line in lines_of(tmp_path, "answer") if line.startswith("Fastest: ")]
    assert "batch_size=512" in named and "batch_size=64" not in named


@pytest.mark.parametrize(("a", "b", "side"), [(0, 60, "B"), (60, 0, "A")])
def test_it_is_neither_faster_nor_slower_than_before(
    tmp_path: Path, a: int, b: int, side: str
) -> None:
    before = analysed(tmp_path / "a", *SIDES[:3], without=a).sweep
    after = analysed(tmp_path / "b", *SIDES[:3], without=b).sweep
    found = compare(before, after, "code", "slower=3%")
    assert found.matches == ()
    assert found.unmatched[0].reason.startswith(f"in {side}, 60 of 60 steps trained nothing")
    assert found.gate is not None
    assert found.gate.failed


@pytest.mark.parametrize(("without", "bounded"), [(3, True), (60, False)])
def test_it_is_no_ceiling(tmp_path: Path, without: int, bounded: bool) -> None:
    write_sweep(tmp_path, [DDP, replace(DDP, strategy="independent")])
    for result in tmp_path.glob("*independent*/result.json"):
        told = json.loads(result.read_text())
        told["models"] = 2
        for rank in told["ranks"]:
            rank["steps_without_loss"] = without
        result.write_text(json.dumps(told))
    measured = analyse(load_sweep(tmp_path)).measured
    (ddp,) = (config for config in measured if config.name("strategy") == "ddp")
    assert (under_ceiling(ddp, measured) is not None) == bounded

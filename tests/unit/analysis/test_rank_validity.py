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


def said(analysis: Analysis) -> list[str]:
    return [line for line in lines_of(analysis, "doubts") if "trained nothing" in line]


@pytest.mark.parametrize(
    ("resumed_at", "counted"), [(None, "15 of 60"), (20, "15 of 40")], ids=["whole", "resumed"]
)
def test_a_run_that_trained_nothing_is_doubted(
    tmp_path: Path, resumed_at: int | None, counted: str
) -> None:
    (line,) = said(analysed(tmp_path, Spec(), without=15, resumed_at=resumed_at))
    assert line.endswith(
        f"{counted} steps trained nothing (training_step returned no loss in them): "
        "their time is not that of training"
    )


@pytest.mark.parametrize("without", [0, None])
def test_a_run_that_trained_or_cannot_tell_is_not(tmp_path: Path, without: int | None) -> None:
    assert not said(analysed(tmp_path, Spec(), without=without))


def test_a_comparison_with_such_a_run_says_so(tmp_path: Path) -> None:
    sides = [replace(spec, repeat=i) for spec in (Spec(), DDP) for i in range(3)]
    (pair,) = analysed(tmp_path, *sides, without=3).pairs
    (doubt,) = pair.doubts
    assert doubt.startswith("one device: 3 of 60 steps trained nothing")
    assert doubt in pair.judgement.reason


SIDES = [replace(spec, repeat=i, run_factor=f) for spec in (Spec(), DDP)
         for i, f in enumerate((1.0, 1.01, 0.99))]  # fmt: skip


def test_a_run_that_trained_nothing_makes_its_comparisons_invalid(tmp_path: Path) -> None:
    found = analysed(tmp_path, *SIDES, without=60)
    (pair,) = found.pairs
    assert (pair.judgement.verdict, pair.invalid[0].code) == ("invalid", "invalid_baseline")
    single, multi = found.measured
    codes = {key: why[0].code for key, why in found.invalid.items()}
    assert codes == {single.config_id: "untrained", multi.config_id: "invalid_baseline"}
    assert [found.costs[c.config_id].usd_per_million_samples for c in found.measured] == [None] * 2
    untrained, trained = (reach(1000, c, found.costs[c.config_id]) for c in found.measured)
    assert untrained.hours is None
    assert trained.hours is not None


def test_it_is_not_the_fastest(tmp_path: Path) -> None:
    """It has three times the samples/s of the fastest that trained, and one device, as they do."""
    fast = repeats(Spec(run_factor=1.0, batch_size=64), [0.1, 0.101, 0.099])
    others = [
        one for size in (256, 512) for one in repeats(Spec(batch_size=size), [1.0, 1.01, 0.99])
    ]
    write_sweep(tmp_path, [*fast, *others])
    for result in list(tmp_path.glob("00[012]-*/result.json")):
        text = result.read_text()
        assert text.count('"steps_without_loss": null') == 1
        result.write_text(text.replace('"steps_without_loss": null', '"steps_without_loss": 60'))
    (named,) = [line for line in lines_of(tmp_path, "answer") if line.startswith("fastest: ")]
    assert "batch_size=512" in named and "batch_size=64" not in named


def test_more_repeats_would_not_help(tmp_path: Path) -> None:
    auto = {"repeats": "auto", "max_repeats": 8, "precision_percent": 2}
    found = analysed(tmp_path, *(replace(s, config=auto) for s in SIDES), without=60)
    (both,) = found.repeats
    assert (both.wanted, both.because) == (None, "failures")


def test_it_is_not_chosen_for_its_speed(tmp_path: Path) -> None:
    found = analysed(tmp_path, *SIDES, without=60)
    candidates = {str(c.name("strategy")): c for c in found.measured}
    decision = choose_strategy(candidates, 60, 128)
    assert decision.chosen == "ddp"
    problems = {one.name: one.problem for one in decision.candidates}
    assert (problems["single"] or "").startswith("60 of 60 steps trained nothing")
    assert not problems["ddp"]


@pytest.mark.parametrize(("a", "b", "side"), [(0, 60, "B"), (60, 0, "A"), (60, 60, "A")])
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


@pytest.mark.parametrize(("without", "bounded"), [(None, True), (3, True), (60, False)])
def test_it_is_no_ceiling(tmp_path: Path, without: int | None, bounded: bool) -> None:
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

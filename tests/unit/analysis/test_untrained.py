"""Steps without a gradient are fast ones: a run with such steps is doubted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import DDP, Spec, write_sweep

from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import Analysis, analyse
from scalewise.report.findings import warnings


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
    return [line for line in warnings(analysis) if "trained nothing" in line]


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

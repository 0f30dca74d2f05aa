"""Where long steps pull the speedup of means from that of medians, one line says both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded import DDP, Spec, repeats, write_sweep

from fakes.kept_sweep import with_known_code
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import analyse
from scalewise.report import build, doubts

RESULTS = Path(__file__).parents[3] / "docs" / "results"
STALLED = Path(__file__).parents[2] / "golden" / "stalled"


def said(path: Path) -> list[str]:
    return [line for line in doubts.warnings(analyse(load_sweep(path))) if "by median ones" in line]


def test_recorded_on_four_h200_both_figures_and_the_reason_are_told(tmp_path: Path) -> None:
    assert said(with_known_code(STALLED / "h200x4_gpt2", tmp_path / "sweep")) == [
        "gpt2 ddp x4: speedup 2.08 by mean steps, 2.47 by median ones: long steps make the mean "
        "1.19 medians on 4 devices and 1.00 on one; verdict and cost are of the mean"
    ]


def test_where_they_agree_nothing_is_said_and_programs_read_both(tmp_path: Path) -> None:
    runs = [run for spec in (Spec(), DDP) for run in repeats(spec, [1.0, 1.02, 0.98])]
    path = write_sweep(tmp_path / "sweep", runs)
    assert said(path) == []
    assert said(with_known_code(RESULTS / "h200x2_gpt2", tmp_path / "kept")) == []
    configs = json.loads(build(path).json.read_text())["configurations"]
    (pair,) = [config["comparison"] for config in configs if config["comparison"]]
    assert pair["speedup_of_median_steps"] == pytest.approx(pair["speedup"]["value"], rel=0.01)

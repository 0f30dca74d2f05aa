"""Joules of a sample are one figure wherever they stand, and GPUs have their part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from scalewise.report.table import Table

from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import Analysis, analyse
from scalewise.report import energy, tables

STALLED = Path(__file__).parents[2] / "golden" / "stalled"


@pytest.fixture(scope="module")
def recorded() -> Analysis:
    """Three runs on four H200 that vary by a tenth: their means differ by kind of mean."""
    return analyse(load_sweep(STALLED / "h200x4_gpt2"))


def column(table: Table, header: str) -> dict[str, str]:
    return {row[0]: row[table.headers.index(header)] for row in table.rows}


def test_both_tables_have_the_same_figure(recorded: Analysis) -> None:
    shown = column(tables.resource_table(recorded), "energy (J per 1,000 samples)")
    again = column(energy.energy_table(recorded), "J per 1,000 samples")
    assert shown["gpt2 ddp x4"] == "2,130 [1,780, 2,540]"
    assert {label: again[label] for label in shown} == shown


def test_gpus_have_their_part_of_each_run(recorded: Analysis) -> None:
    found = column(energy.energy_table(recorded), "J a step")
    parts = [text for label, text in found.items() if label.startswith("gpt2 ddp x4: GPU ")]
    assert len(parts) == 4
    assert all("[" in text for text in parts)
    whole = float(found["gpt2 ddp x4"].split(" ")[0])
    assert sum(float(text.split(" ")[0]) for text in parts) == pytest.approx(whole, rel=0.005)

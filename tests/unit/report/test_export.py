"""A sweep as tables: of the kept records, against the report's own figures and the docs."""

import json
import os
import re
import sys
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import matplotlib
import pandas as pd
import pytest

import scalewise
from fakes.recorded import Spec, write_sweep
from scalewise.analysis import FIGURES
from scalewise.analysis.run import RUN_FIGURES
from scalewise.report import results_json

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs/results/h200x2_small.zip"
NAMES = ("cells", "runs", "configurations", "steps", "devices")
DOCS = ROOT / "docs/tables.md"
UPDATE = "UPDATE_DOCS" in os.environ
"""Set it to write the generated parts of the page anew."""


@pytest.fixture(scope="module")
def tables() -> scalewise.report.Tables:
    return scalewise.load(KEPT)


def explained(columns: Iterable[tuple[str, str]]) -> str:
    """A row of Markdown for each column and what it holds; neighbours of one meaning share it."""
    lines = [
        f"| {', '.join(name for name, _ in alike)} | {says} |"
        for says, alike in groupby(columns, key=itemgetter(1))
    ]
    return "\n".join(["", "| column | what it holds |", "| --- | --- |", *lines, ""])


def test_the_docs_are_those_of_the_figures() -> None:
    text = known = DOCS.read_text()
    of_a_run = ((f"`{key}`", figure.says) for key, figure in RUN_FIGURES.items())
    marked = ((one, "" if one.in_csv else "*") for one in FIGURES)
    of_each = ((f"{mark}`{name}`{mark}", one.says) for one, mark in marked for name in one.columns)
    for of, columns in (("run", of_a_run), ("configuration", of_each)):
        begin, end = f"<!-- figures of a {of} -->", "<!-- end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{explained(columns)}{end}{rest.partition(end)[2]}"
    if UPDATE:
        DOCS.write_text(text)
    assert UPDATE or text == known, "UPDATE_DOCS=1 pytest tests/unit/report/test_export.py"


@pytest.mark.parametrize("name", ["cells", "steps", "devices"])
def test_docs_explain_every_column_and_no_other(tables: scalewise.report.Tables, name: str) -> None:
    text = DOCS.read_text().partition(f"## `{name}`")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert set(re.findall("`([a-z0-9_]+)`", " ".join(rows))) == set(getattr(tables, name).columns)


def test_figures_are_those_of_the_report(tables: scalewise.report.Tables) -> None:
    told = json.loads(results_json(tables.analysis))["configurations"]
    speedups = {c["config_id"]: c["speedup_ratio"]["value"] for c in told if c["comparison"]}
    found = tables.configurations.set_index("config_id").speedup_ratio.dropna()
    assert speedups and found.to_dict() == pytest.approx(speedups)
    timed = tables.steps[tables.steps.is_timed].groupby("cell").size()
    runs = tables.runs.set_index("cell")
    assert timed.to_dict() == (runs.timed_steps * runs.world_size).to_dict()


def test_runs_that_are_set_aside_are_there_with_their_reason(tmp_path: Path) -> None:
    specs = [Spec(repeat=i, foreign_cpu=0.3 if i == 1 else 0.0) for i in range(4)]
    found = scalewise.load(write_sweep(tmp_path, specs)).runs.set_index("repeat").set_aside
    assert found.isna().to_dict() == {0: True, 1: False, 2: True, 3: True}
    assert "was disturbed" in found[1]


def test_phases_of_a_step_add_up_to_it(tables: scalewise.report.Tables) -> None:
    steps = tables.steps_of(tables.cells.cell[0])
    (series, *_) = tables.analysis.sweep.cells[0].steps
    began_ns = series.rows["start_ns"][0] + series.epoch_offset_ns
    assert steps.start_unix_s.iloc[0] * 1e9 == pytest.approx(began_ns, rel=1e-15)
    phases = steps.filter(regex="^host_.*_ms$").drop(columns=["host_step_ms", "host_arrival_ms"])
    took_ms = 1e3 * steps.samples_of_rank / steps.samples_per_s_of_rank
    expected = steps.device_step_ms.fillna(steps.host_step_ms)
    assert took_ms.to_list() == pytest.approx(expected.to_list(), rel=1e-6)
    assert phases.sum(axis=1).to_list() == pytest.approx(steps.host_step_ms.to_list(), rel=1e-4)


def test_a_step_has_its_device_as_last_read_by_its_end(tables: scalewise.report.Tables) -> None:
    first = [tables.devices, tables.steps_of(tables.cells.cell[0])]
    read, steps = (one[(one.cell == tables.cells.cell[0]) & (one["rank"] == 0)] for one in first)
    steps = steps.assign(time_unix_s=steps.start_unix_s + steps.host_step_ms / 1e3)
    names = ["memory_used_mib", "utilization_percent"]
    found = pd.merge_asof(steps[["time_unix_s"]], read[["time_unix_s", *names]])
    pd.testing.assert_frame_equal(found[names], steps[names].reset_index(drop=True))
    assert len(found) > 100 and found[names].notna().all(axis=None)


@pytest.mark.parametrize("name", NAMES)
def test_parquet_holds_the_same(tables: scalewise.report.Tables, tmp_path: Path, name: str) -> None:
    table = getattr(tables, name)
    table.to_parquet(tmp_path / "table", index=False)
    read = pd.read_parquet(tmp_path / "table")
    pd.testing.assert_frame_equal(read, table, check_dtype=False, check_categorical=False)


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'scalewise\[tables\]'"):
        scalewise.load(KEPT)


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "docs")
    matplotlib.use("agg")
    names: dict[str, object] = {}
    for cell in json.loads(Path("tables.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["slowest"]

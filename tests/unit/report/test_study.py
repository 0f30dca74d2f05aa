"""The published studies' files, written from a recording of two real GPUs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from statistics import geometric_mean

import pytest

from fakes.kept_sweep import with_known_code
from scalewise.analysis.diagnosis import Limit
from scalewise.analysis.load import load_sweep
from scalewise.analysis.remedies import REMEDIES
from scalewise.analysis.summary import Analysis, analyse
from scalewise.report import study
from scalewise.report.study import benchmarks, tables
from scalewise.report.study.epochs import epoch_times_s
from scalewise.report.study.selection import StudySelection, select
from scalewise.report.table import Table

RECORDING = Path(__file__).parents[2] / "data" / "h200x2_gpt2"
MATRIX = Path(__file__).parents[3] / "docs" / "results" / "cpu2_matrix"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyse(load_sweep(MATRIX))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return with_known_code(RECORDING, tmp_path / "sweep")


def test_every_file_is_there_and_nothing_stale(sweep: Path) -> None:
    folder = sweep / "report" / "study"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ag_news_accuracy.png").write_bytes(b"of an earlier study")
    written = study.build(sweep)
    assert {path.name for path in folder.iterdir()} == {path.name for path in written}
    names = {path.name for path in written}
    assert {
        "benchmark_gpt2_single_gpu.json",
        "benchmark_gpt2_multi_gpu.json",
        "comparison_report_gpt2.md",
        "comprehensive_summary.csv",
        "summary_table.tex",
        "performance_report.txt",
        "stdlib_speedup_efficiency.png",
        "stdlib_throughput.png",
    } <= names
    assert "ag_news_accuracy.png" not in names
    assert all(path.stat().st_size > 100 for path in written)


def test_the_json_holds_every_run(analysis: Analysis) -> None:
    texts = dict(benchmarks.texts(analysis))
    plain = json.loads(texts["benchmark_medium_multi_gpu.json"])
    (config,) = plain["results"]
    assert [run["repeat"] for run in config["runs"]] == [0, 1, 2]
    rates = [run["global_samples_per_s"] for run in config["runs"]]
    assert config["global_samples_per_s"]["value"] == pytest.approx(geometric_mean(rates))
    assert config["devices"] == 2
    assert config["global_batch_size_samples"] == 128


def test_the_comparison_averages_ratios_geometrically(analysis: Analysis) -> None:
    pairs = list(analysis.pairs)
    text = benchmarks.comparison("both", pairs)
    mean = (pairs[0].speedup.value * pairs[1].speedup.value) ** 0.5
    assert f"average speedup {mean:.3g} (geometric mean of 2)" in text
    assert "verdicts: 1 beneficial, 1 prefer single" in text


def test_the_summary_has_numbers_and_its_units_in_the_header(analysis: Analysis) -> None:
    rows = list(
        csv.DictReader(io.StringIO(dict(tables.texts(analysis))["comprehensive_summary.csv"]))
    )
    assert len(rows) == 4
    ratio = next(r for r in rows if r["configuration"] == "medium ddp x2")["speedup_ratio"]
    assert 0.5 < float(ratio) < 0.7


def test_latex_is_escaped() -> None:
    table = Table(("a_b", "50 %"), (("x & y", "1 ± 2"), ("{^~\\}", "#1 $")), frozenset({1}))
    text = tables.latex(table)
    assert r"\begin{tabular}{lr}" in text
    assert r"a\_b & 50 \% \\" in text
    assert r"x \& y & 1 $\pm$ 2 \\" in text
    assert r"\{\textasciicircum{}\textasciitilde{}\textbackslash{}\} & \#1 \$ \\" in text


def test_the_table_of_a_sweep_is_plain_ascii_to_latex(analysis: Analysis) -> None:
    text = tables.latex(tables.summary(analysis))
    assert text.isascii()
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {6}


def test_the_report_says_what_to_try(analysis: Analysis) -> None:
    text = tables.performance_report(analysis)
    assert "batch too small" in text
    assert "a larger batch_size; under scaling=strong, fewer devices" in " ".join(text.split())


def test_every_limit_has_a_remedy() -> None:
    assert set(REMEDIES) == set(Limit.__args__)  # type: ignore[attr-defined]


def test_epoch_times_leave_out_the_first_and_the_unfinished(analysis: Analysis) -> None:
    run = next(c for c in analysis.configurations if c.label == "medium single x1").runs[0]
    series = run.cell.steps[0]
    # 8,000 training samples in batches of 128: 62 steps an epoch, 400 steps are 6.5 epochs.
    times = epoch_times_s(run, warmup_epochs=2)
    assert len(times) == 4
    third = series.column("step", "host")[2 * 62 : 3 * 62].sum() / 1e3
    assert times[0] == pytest.approx(third)


class TestSelection:
    def test_one_data_set(self, analysis: Analysis) -> None:
        chosen = select(analysis, StudySelection(datasets=("stdlib",)))
        assert {c.name("dataset") for c in chosen.configurations} == {"stdlib"}
        assert {p.multi.name("dataset") for p in chosen.pairs} == {"stdlib"}

    def test_one_that_is_not_there(self, analysis: Analysis) -> None:
        with pytest.raises(ValueError, match=r"--datasets: found 'imdb'; allowed: stdlib, tabular"):
            select(analysis, StudySelection(datasets=("imdb",)))

"""The published studies' files, written from a recording of two real GPUs."""

import csv
import io
import json
import re
from pathlib import Path
from statistics import geometric_mean

import pytest
from matplotlib.figure import Figure

from fakes.kept_sweep import analysis_of, kept, with_known_code
from fakes.recorded import Spec, analysed
from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.report import build_study, of_datasets, study
from scalewise.report.study import panel_grid
from scalewise.report.study_tables import p_words

RECORDING = Path(__file__).parents[2] / "data" / "h200x2_gpt2"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analysis_of(kept("cpu2_matrix"))


@pytest.fixture
def texts(analysis: Analysis, tmp_path: Path) -> dict[str, str]:
    files, _ = build_study(analysis, tmp_path, warmup_epochs=2)
    return {file.name: file.read_text() for file in files if file.suffix != ".png"}


def summary(texts: dict[str, str]) -> dict[str, dict[str, str]]:
    """Rows of the summary by their configuration."""
    rows = csv.DictReader(io.StringIO(texts["comprehensive_summary.csv"]))
    return {row["configuration"]: row for row in rows}


def test_every_file_is_there_and_nothing_stale(tmp_path: Path) -> None:
    sweep = with_known_code(RECORDING, tmp_path / "sweep")
    folder = sweep / "report" / "study"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ag_news_accuracy.png").write_bytes(b"of an earlier study")
    written, problems = build_study(analyse(load_sweep(sweep)))
    assert not problems
    assert {path.name for path in folder.iterdir()} == {path.name for path in written}
    names = {path.name for path in written}
    assert {
        "benchmark_gpt2_single_gpu.json", "benchmark_gpt2_multi_gpu.json",
        "comparison_report_gpt2.md", "comprehensive_summary.csv", "summary_table.tex",
        "performance_report.txt", "stdlib_speedup_efficiency.png", "stdlib_throughput.png",
    } <= names  # fmt: skip
    assert "ag_news_accuracy.png" not in names
    assert all(path.stat().st_size > 100 for path in written)


def test_panels_stand_in_two_rows_and_in_a_square_above() -> None:
    shapes = {1: (1, 1), 2: (1, 2), 3: (2, 2), 8: (2, 4), 9: (3, 3), 10: (3, 4)}
    assert {devices: panel_grid(devices) for devices in shapes} == shapes


def test_tables_have_the_figures_of_the_analysis(analysis: Analysis, texts: dict[str, str]) -> None:
    rows = summary(texts)
    assert len(rows) == 4
    for pair in analysis.pairs:
        assert float(rows[pair.multi.label]["speedup_ratio"]) == pytest.approx(pair.speedup.value)
        page = texts[f"comparison_report_{pair.multi.name('model')}.md"]
        assert f"| {pair.verdict} |" in page
        assert f"| {p_words(pair.speedup.p_value or 1.0)} |" in page
        assert "so there is no mean" in page
    (config,) = json.loads(texts["benchmark_medium_multi_gpu.json"])["results"]
    assert (config["devices"], [run["repeat"] for run in config["runs"]]) == (2, [0, 1, 2])
    assert "ms a step. To try: " in " ".join(texts["performance_report.txt"].split())


def test_latex_is_ascii_and_escaped(texts: dict[str, str], tmp_path: Path) -> None:
    text = texts["summary_table.tex"]
    assert text.isascii()
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {7}
    build_study(analysed(tmp_path / "hostile", Spec(model=r"{^~&} #1 $ 50 % a_b")), tmp_path)
    escaped = r"\{\textasciicircum{}\textasciitilde{}\&\} \#1 \$ 50 \% a\_b"
    assert escaped in (tmp_path / "study" / "summary_table.tex").read_text()


def test_each_epoch_is_drawn_but_the_first_and_the_unfinished(
    analysis: Analysis, texts: dict[str, str], figures: dict[str, Figure],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config = next(c for c in analysis.configurations if c.label == "medium single x1")
    # 8,000 training samples in batches of 128: 62 steps an epoch, 400 steps are 6.5 epochs.
    each = [run.cell.steps[0].column("step", "host") for run in config.runs]
    expected = [[float(ms[e * 62 : e * 62 + 62].sum()) / 1e3 for e in range(2, 6)] for ms in each]
    (axes,) = figures["tabular_epoch_time_detailed.png"].axes
    drawn = [list(line.get_ydata()) for line in axes.get_lines()]
    assert all(any(y == pytest.approx(each) for y in drawn) for each in expected)
    assert list(axes.get_lines()[0].get_xdata()) == [2, 3, 4, 5]
    mean = geometric_mean([sum(each) / 4 for each in expected])
    assert float(summary(texts)[config.label]["epoch_time_s"]) == pytest.approx(mean)
    for most, said in ((2, "left out"), (1, "left out (the first 1 of 2)")):
        monkeypatch.setattr(study, "_MOST_CURVES", most)
        assert study.epoch_time("x", [config] * 2, 1).axes[0].get_title("left").endswith(said)


def test_a_summary_has_ratio_and_serial_fraction(analysis: Analysis, texts: dict[str, str]) -> None:
    pair = next(p for p in analysis.pairs if p.multi.name("model") == "gpt2_tiny")
    row, alone = (summary(texts)[side.label] for side in (pair.multi, pair.single))
    # Karp and Flatt on two devices: 2/S - 1.
    assert float(row["amdahl_serial_fraction"]) == pytest.approx(2 / pair.speedup.value - 1)
    cost = analysis.communication[pair.multi.config_id]
    assert float(row["compute_to_communication_ratio"]) == cost.compute_to_communication
    assert alone["amdahl_serial_fraction"] == ""
    scored = [run.cell.result.ranks[0].metrics["val_accuracy"] for run in pair.multi.runs
              if run.cell.result]  # fmt: skip
    assert float(row["val_accuracy_reached"]) == pytest.approx(sum(scored) / len(scored))


def test_one_data_set_alone(analysis: Analysis, tmp_path: Path) -> None:
    build_study(of_datasets(analysis, ["stdlib"]), tmp_path)
    with (tmp_path / "study" / "comprehensive_summary.csv").open() as file:
        assert {row["dataset"] for row in csv.DictReader(file)} == {"stdlib"}
    with pytest.raises(ValueError, match=r"--datasets: found 'imdb'; allowed: stdlib, tabular"):
        of_datasets(analysis, ["imdb"])

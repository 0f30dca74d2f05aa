"""Balance run by run: who was last, for how long, at what speed, and what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recorded import DDP, Spec, repeats, write_sweep

from scalewise import report
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import Analysis, analyse
from scalewise.report import balance_runs, energy, timeline

SLOW = replace(DDP, devices=4, slow_ranks_ms={2: 3.0})


@pytest.fixture
def analysis(tmp_path: Path) -> Analysis:
    specs = [*repeats(Spec(), [1.0]), *repeats(SLOW, [1.0, 1.1])]
    return analyse(load_sweep(write_sweep(tmp_path, specs)))


def test_each_run_has_its_straggler_and_its_speed(analysis: Analysis) -> None:
    table = balance_runs.runs_table(analysis)
    first, second = (dict(zip(table.headers, row, strict=True)) for row in table.rows)
    assert first["run"] == "large ddp x4, repeat 0"
    assert (first["slowest rank"], first["last in (% of steps)"]) == ("2", "100")
    assert float(first["behind (ms)"]) == pytest.approx(3.0, abs=0.01)
    # A step takes 9.2 ms: 6.2 and the wait for rank 2.
    assert float(first["share of the step (%)"]) == pytest.approx(100 * 3 / 9.2, rel=0.01)
    fast, slow = (float(r["samples/s (global)"].replace(",", "")) for r in (first, second))
    assert fast / slow == pytest.approx(1.1, rel=0.01)
    assert balance_runs.left_out(analysis) == 0


def test_advice_on_a_rank_is_given_where_the_diagnosis_names_one(analysis: Analysis) -> None:
    (line,) = balance_runs.advice_lines(analysis)
    assert line.startswith("large ddp x4 (poor): rank 2 holds the others back")
    (line,) = balance_runs.advice_lines(replace(analysis, diagnoses={}))
    assert line.startswith("large ddp x4 (poor)")
    assert "rank 2" not in line


def test_history_has_windows_of_ten_steps_at_least(analysis: Analysis) -> None:
    _, _, balance = balance_runs.balanced_runs(analysis)[0]
    assert [(w.first_step, w.last_step) for w in balance.history] == [
        (10, 19), (20, 29), (30, 39), (40, 49), (50, 59),
    ]  # fmt: skip
    assert {w.slowest_rank for w in balance.history} == {2}


def test_equal_ranks_have_no_last_one(tmp_path: Path) -> None:
    even = analyse(load_sweep(write_sweep(tmp_path, [DDP])))
    _, _, balance = balance_runs.balanced_runs(even)[0]
    assert balance.slowest_share == 0.0


def test_the_plot_shows_time_and_speed(analysis: Analysis) -> None:
    figure = balance_runs.draw(analysis)
    assert figure is not None
    left, right = figure.axes
    curves = [line for line in left.get_lines() if len(line.get_xdata()) == 5]
    assert len(curves) == 2
    (points,) = [line for line in right.get_lines() if line.get_label() == "large ddp x4"]
    assert sorted(points.get_ydata()) == pytest.approx([100 / 1.1, 100], rel=0.01)


def test_a_cpu_host_has_a_timeline_of_processes_and_claims_no_gpu(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [replace(DDP, kind="cpu")])
    files = report.build(path)
    found = analyse(load_sweep(path))
    assert not (path / "report" / "gpu_timeline.csv").exists()
    assert energy.energy_table(found).rows == ()
    assert "## Energy" not in files.markdown.read_text()
    figure = timeline.draw(found)
    assert figure is not None
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "CPU of the process (%)",
        "resident memory (MiB)",
    ]


def test_a_report_survives_missing_and_empty_series(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), SLOW])
    first, second = sorted(path.glob("*/gpu/*.jsonl"))
    first.unlink()
    header = second.read_text().splitlines()[0]
    second.write_text(header + "\n")
    files = report.build(path)
    assert "gpu_timeline.png" not in {p.name for p in files.plots}
    assert not (path / "report" / "gpu_timeline.csv").exists()


def test_a_long_series_is_thinned_in_the_report(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec()])
    (series,) = path.glob("*/gpu/*.jsonl")
    header, *samples = series.read_text().splitlines()
    series.write_text("\n".join([header, *(samples * 400)]) + "\n")
    text = timeline.as_csv(analyse(load_sweep(path)))
    rows = text.splitlines()
    assert 500 < len(rows) <= 1001
    assert rows[0].startswith("cell,timestamp,unix_time,gpu_index")

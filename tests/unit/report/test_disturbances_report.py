"""Findings about processes and stalls in the report, and step times over time."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from recorded import DDP, Spec, repeats, write_sweep
from rich.console import Console
from scalewise.report.plots_steps import MOST_PANELS, step_times

from scalewise import report
from scalewise.analysis.disturbances import CODES, DEVICE_CODES
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import Analysis, analyse
from scalewise.records import CellFolder, StepSeries, StepWriter, read_steps
from scalewise.report import disturbances

STALL_MS = 400.0


def stall(folder: Path, step: int) -> None:
    """Make one recorded step of every rank of a cell ``STALL_MS`` long."""
    for rank in (0, 1):
        path = CellFolder(folder).steps_path(rank)
        series = read_steps(path, rank)
        rows = series.rows.copy()
        for line in ("host", "device"):
            rows[f"{line}_other_ms"][step] += STALL_MS - rows[f"{line}_step_ms"][step]
            rows[f"{line}_step_ms"][step] = STALL_MS
        rows["start_ns"][step + 1 :] += int(STALL_MS * 1e6)
        with closing(StepWriter(path, series.epoch_offset_ns)) as writer:
            writer.append_rows(rows)


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on one GPU, and two on two of which one was stalled."""
    path = tmp_path_factory.mktemp("stalled")
    write_sweep(path, [*repeats(Spec(), [1.0, 1.0]), *repeats(DDP, [1.0, 1.0])])
    stall(next(path.glob("*-ddp-r0")), step=30)
    return path


def test_programs_get_every_finding_with_its_numbers(stalled: Path, tmp_path: Path) -> None:
    files = report.build(stalled, out=tmp_path / "report")
    findings = json.loads(files.json.read_text())["findings"]
    (one,) = [found for found in findings if found["code"] == "common_stall"]
    assert one["status"] == "found" and one["cell"].endswith("-ddp-r0") and one["detail"]
    assert one["figures"]["length_ms"] == [pytest.approx(STALL_MS, abs=10)]
    assert tmp_path / "report" / "step_times.png" in files.plots
    page = files.markdown.read_text()
    assert f"## {disturbances.TITLE}" in page
    assert all(f"`{code}`" in page for code in CODES)


def test_the_console_tells_only_what_was_found_a_line_a_configuration(stalled: Path) -> None:
    console = Console(file=StringIO(), width=250)
    report.print_console(stalled, console)
    assert isinstance(console.file, StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if "finding:" in line]
    assert len(lines) == 1 and "`common_stall` in 1 of 2 runs" in lines[0]


def test_a_clear_sweep_says_so_of_each_code_that_means_something_there(tmp_path: Path) -> None:
    specs = [replace(Spec(), kind="cpu"), replace(DDP, kind="cpu")]
    lines = list(disturbances.all_lines(analyse(load_sweep(write_sweep(tmp_path, specs)))))
    assert [line.partition(":")[0] for line in lines] == ["`common_stall`"]
    assert not any(code in line for code in DEVICE_CODES for line in lines)


def long_run(path: Path, step: int, length_ms: float) -> Analysis:
    """A run of many steps, one of which is long."""
    sweep = load_sweep(write_sweep(path, [replace(Spec(), steps=9000)]))
    (cell,) = sweep.cells
    (series,) = cell.steps
    rows = series.rows.copy()
    rows["device_step_ms"][step] = length_ms
    return analyse(replace(sweep, cells=(replace(cell, steps=(StepSeries(0, rows, 0),)),)))


def test_a_long_run_is_drawn_with_few_points_and_keeps_every_spike(tmp_path: Path) -> None:
    figure = step_times(long_run(tmp_path, 5000, 777.0))
    assert figure is not None
    (axes,) = figure.axes
    (line,) = axes.lines
    drawn = np.asarray(line.get_ydata(), dtype=float)
    assert len(drawn) < 1000 and drawn.max() == pytest.approx(777.0)
    assert axes.get_yscale() == "log"


def test_more_configurations_than_panels_are_named(tmp_path: Path) -> None:
    specs = [Spec(model=f"m{i}") for i in range(MOST_PANELS + 2)]
    figure = step_times(analyse(load_sweep(write_sweep(tmp_path, specs))))
    assert figure is not None and len(figure.axes) == MOST_PANELS
    assert all(f"m{i}" in figure.get_suptitle() for i in (MOST_PANELS, MOST_PANELS + 1))

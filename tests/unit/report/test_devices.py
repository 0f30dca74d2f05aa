"""Seed 003's plots and text, under its names."""

from dataclasses import replace
from pathlib import Path

import pytest
from recorded import DDP, Spec, repeats, write_sweep

from scalewise import report
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import analyse
from scalewise.report import device_memory, devices


@pytest.mark.parametrize(
    ("count", "shape"),
    [
        (1, (1, 1)),
        (2, (1, 2)),
        (4, (2, 2)),
        (6, (2, 3)),
        (8, (2, 4)),
        (9, (3, 3)),
        (12, (3, 4)),
        (16, (4, 4)),
    ],
)
def test_the_grid_follows_the_number_of_gpus(count: int, shape: tuple[int, int]) -> None:
    assert devices.grid(count) == shape


@pytest.mark.parametrize("count", range(1, 20))
def test_every_gpu_finds_a_panel(count: int) -> None:
    rows, columns = devices.grid(count)
    assert rows * columns >= count
    assert (rows - 1) * columns < count


@pytest.mark.parametrize("count", [2, 3, 8, 12])
def test_the_breakdown_has_a_panel_for_every_gpu_with_its_line(tmp_path: Path, count: int) -> None:
    spec = replace(DDP, devices=count, batch_size=24 * count)
    analysis = analyse(load_sweep(write_sweep(tmp_path, [spec])))
    figure = devices.memory_breakdown(analysis.measured)
    assert figure is not None
    assert len(figure.axes) == count
    for i, axes in enumerate(figure.axes):
        (line,) = axes.get_lines()
        assert min(line.get_ydata()) == pytest.approx(12_000 + 40 * i)
        assert axes.get_ylim()[1] > max(line.get_ydata())


def test_the_text_has_the_seeds_shape_with_the_right_numbers(tmp_path: Path) -> None:
    specs = [*repeats(Spec(), [1.0]), *repeats(replace(DDP, slow_ranks_ms={1: 3.0}), [1.0, 1.01])]
    text = device_memory.summary_text(analyse(load_sweep(write_sweep(tmp_path, specs))))
    # Samples cycle through +0, +5 and +10 MiB, eight of them: their mean is 4.4, their sd 4.2.
    assert text.splitlines()[4:] == [
        "large ddp x2 - memory per device:",
        "    GPU 0: 12004.4 MiB (±4.2)",
        "    GPU 1: 12044.4 MiB (±4.2)",
        "    Total:  24048.8 MiB",
        "    Balance: memory CV = 0.2%, of the means over runs",
        "    Load: arrival CV = 23.4% (poor), mean over runs",
    ]


def test_a_report_carries_them(tmp_path: Path) -> None:
    files = report.build(write_sweep(tmp_path, [Spec(), DDP]))
    names = {p.name for p in files.plots}
    assert set(devices.NAMES) <= names
    assert "GPU 1: 12044.4 MiB" in files.markdown.read_text()
    assert "GPU 1: 12044.4 MiB" in (tmp_path / "report" / "gpu_summary.txt").read_text()


def test_processes_are_called_ranks_on_a_cpu_host(tmp_path: Path) -> None:
    text = device_memory.summary_text(
        analyse(load_sweep(write_sweep(tmp_path, [replace(DDP, kind="cpu")])))
    )
    assert "rank 1: " in text
    assert "GPU" not in text


def test_without_samples_there_is_nothing(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [DDP])
    for series in path.glob("*/gpu/*.jsonl"):
        series.unlink()
    analysis = analyse(load_sweep(path))
    assert devices.draw_all(analysis) == {}
    assert device_memory.summary_text(analysis) == ""

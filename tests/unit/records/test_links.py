"""Links and odd files in a sweep: nothing is read or written through them, nothing is lost."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import Spec, write_sweep
from scalewise.analysis import load_sweep
from scalewise.cli import main
from scalewise.records import CellFolder, RecordError, SweepFolder, read_shard, read_steps
from scalewise.sweep.resume import set_unreadable_aside

PRIVATE = "a line of somebody's private file"


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    specs = [Spec(), replace(Spec(), strategy="ddp", devices=2)]
    return SweepFolder(write_sweep(tmp_path / "sweep", specs))


@pytest.fixture
def cell(sweep: SweepFolder) -> CellFolder:
    return next(folder for _, folder in sweep.cells())


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Somebody else's folder, in which every file of a record has its name."""
    folder = tmp_path / "private"
    folder.mkdir()
    for name in ("rank0.err", "rank0.bin", "config.yaml", "result.json", "report.html"):
        (folder / name).write_text(PRIVATE)
    return folder


@pytest.mark.parametrize(
    ("inside", "read"),
    [
        ("config.yaml", CellFolder.load_config),
        ("result.json", CellFolder.load_result),
        ("steps/rank0.bin", lambda cell: read_steps(cell.steps_path(0), 0)),
        ("audit/rank0.npz", lambda cell: read_shard(cell.shard_path(0), 0)),
    ],
)
@pytest.mark.parametrize("of_folder", [False, True])
def test_a_link_is_refused_by_name(
    cell: CellFolder, private: Path, inside: str, read: Callable[[CellFolder], object],
    of_folder: bool,
) -> None:  # fmt: skip
    path = cell.path / inside
    if of_folder:
        path = cell.path if path.parent == cell.path else path.parent
        shutil.move(path, private / "whole")
        path.symlink_to(private / "whole")
    else:
        path.unlink()
        path.symlink_to(private / path.name)
    with pytest.raises(RecordError, match=r"found a link"):
        read(cell)


def test_a_log_behind_a_link_is_not_on_the_page(cell: CellFolder, private: Path) -> None:
    cell.log_path(0, "err").parent.mkdir(exist_ok=True)
    cell.log_path(0, "err").symlink_to(private / "rank0.err")
    (cell.path / "provenance.json").unlink()
    (cell.path / "provenance.json").symlink_to(private / "config.yaml")
    assert main(["report", str(cell.path.parent)]) in (0, 4)
    report = SweepFolder(cell.path.parent).report_path
    assert not any(PRIVATE in path.read_text(errors="ignore") for path in report.iterdir())


def test_a_report_is_not_written_through_a_link(
    sweep: SweepFolder, private: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.report_path.symlink_to(private)
    assert main(["report", str(sweep.path)]) == 2
    assert f"{sweep.report_path}: found a link; allowed: a folder" in capsys.readouterr().err
    assert (private / "report.html").read_text() == PRIVATE
    sweep.report_path.unlink()
    sweep.report_path.mkdir()
    (sweep.report_path / "report.html").symlink_to(private / "report.html")
    (sweep.report_path / "study").symlink_to(private)
    assert main(["report", str(sweep.path), "--study"]) == 2
    assert ((private / "report.html").read_text(), len(list(private.iterdir()))) == (PRIVATE, 5)


def test_the_sweep_itself_may_be_a_link_and_nobody_waits_for_a_pipe(
    sweep: SweepFolder, cell: CellFolder, tmp_path: Path
) -> None:
    (tmp_path / "latest").symlink_to(sweep.path)
    assert not load_sweep(tmp_path / "latest").problems
    (cell.path / "result.json").unlink()
    os.mkfifo(cell.path / "result.json")
    with pytest.raises(RecordError, match=r"found no plain file"):
        cell.load_result()


@pytest.mark.parametrize("kind", ["dangling", "gone"])
def test_a_run_whose_result_is_a_dead_link_or_gone_is_kept(cell: CellFolder, kind: str) -> None:
    steps = cell.steps_path(0).read_bytes()
    planned = next(p for p, c in SweepFolder(cell.path.parent).cells() if c.path == cell.path)
    (cell.path / "result.json").unlink()
    cell.save_rank(load_sweep(cell.path.parent).cells[1].result.ranks[0])  # type: ignore[union-attr]
    if kind == "dangling":
        (cell.path / "result.json").symlink_to("nowhere")
    said = set_unreadable_aside(cell, planned)
    assert said is not None and said.startswith(f"set aside {planned.name}: ")
    cell.clear_attempt()
    assert CellFolder(cell.path / "earlier" / "1").steps_path(0).read_bytes() == steps
    assert not cell.steps_path(0).exists()

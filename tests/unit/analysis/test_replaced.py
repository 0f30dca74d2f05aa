"""A finished run that was run again is said beside the figures that its successor is in."""

from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, repeats, write_sweep
from fakes.sections import lines_of
from scalewise.analysis import load_sweep
from scalewise.analysis.comparison import replaced_runs
from scalewise.records import CellFolder, SweepFolder

WHY = "(sweep.rerun, or a result that could not be read)"
STEADY = [1.0, 1.01, 0.99]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    each = [one for spec in (Spec(), DDP) for one in repeats(spec, STEADY)]
    return write_sweep(tmp_path / "sweep", each)


def cells(path: Path) -> dict[str, CellFolder]:
    return {folder.name: folder for _, folder in SweepFolder(path).cells()}


def run_again(folder: CellFolder, times: int = 1) -> None:
    """As the sweep does it: the result goes to ``earlier``, and a new try leaves the same files."""
    for _ in range(times):
        kept = folder.set_aside()
        for name in ("result.json", "config.yaml", "provenance.json"):
            (folder.path / name).write_bytes((kept / name).read_bytes())


def test_replaced_runs_are_counted_and_named_in_the_doubts_of_the_report(path: Path) -> None:
    assert replaced_runs(load_sweep(path)) == []
    first, second, *_ = cells(path).values()
    run_again(first)
    (line,) = replaced_runs(load_sweep(path))
    assert line == (
        f"1 run made again after a result {WHY}: {first.name}; "
        "earlier results lie in earlier/ of their folders"
    )
    run_again(second, times=2)
    (line,) = replaced_runs(load_sweep(path))
    assert line.startswith(
        f"2 runs made again after a result {WHY}: {first.name}, {second.name} (2 times); "
    )
    assert f"doubt: {line}" in lines_of(path, "remarks")


def test_a_result_that_was_only_removed_is_said_too(path: Path) -> None:
    first, *_ = cells(path).values()
    first.set_aside()
    (line,) = replaced_runs(load_sweep(path))
    assert line.startswith(f"1 run set aside {WHY}, without a new result: ")
    assert first.name in line


def test_many_are_counted(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, repeats(Spec(), [1.0] * 8))
    for folder in cells(path).values():
        run_again(folder)
    (line,) = replaced_runs(load_sweep(path))
    assert line.startswith("8 runs made again")
    assert "-r5 and 2 more; " in line

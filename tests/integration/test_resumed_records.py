"""What a resumed sweep does with cells that ended, but whose result it cannot use."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from fakes.train_command import SMALL, Finished, Train
from scalewise.records import CellFolder

ONE_CELL = (*SMALL, "model=medium", "dataset=tabular", "strategy=single")


def sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every record, by its path; Hydra writes its own files at each start."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".hydra" not in path.parts
    }


@pytest.fixture(scope="module")
def finished(shared_train: Train) -> Finished:
    run = shared_train(*ONE_CELL)
    assert run.status == 0, run.err
    return run


def resume(train: Train, run: Finished, *more: str) -> Finished:
    return train(*ONE_CELL, f"sweep.resume={run.folder}", *more)


def earlier(cell: CellFolder, number: int) -> CellFolder:
    return CellFolder(cell.path / "earlier" / str(number))


def test_a_run_whose_result_is_torn_is_kept_and_said(
    shared_train: Train, finished: Finished
) -> None:
    cell = finished.only_cell()
    path = cell.path / "result.json"
    path.write_bytes(path.read_bytes()[:-40])
    before = sums(cell.path)
    again = resume(shared_train, finished)
    assert again.status == 0, again.err
    (said,) = [line for line in again.err.splitlines() if "earlier/1" in line]
    assert cell.name in said
    assert "result.json" in said
    kept = earlier(cell, 1)
    assert sums(kept.path) == before
    assert {"steps/rank0.bin", "metrics/rank0.jsonl", "result.json"} <= before.keys()
    assert cell.is_done()
    assert cell.steps_path(0).read_bytes() != kept.steps_path(0).read_bytes()


def test_a_result_of_a_newer_scalewise_is_refused(shared_train: Train, finished: Finished) -> None:
    cell = finished.only_cell()
    path = cell.path / "result.json"
    own = path.read_bytes()
    path.write_text(json.dumps({**json.loads(own), "schema_version": 2}))
    try:
        before = sums(cell.path)
        again = resume(shared_train, finished, "sweep.rerun=all")
        assert again.status == 2
        _, line = again.err.splitlines()  # what is prepared, and the error
        for told in (str(path), "version 2", "reads 1"):
            assert told in line
        assert sums(cell.path) == before
    finally:
        path.write_bytes(own)

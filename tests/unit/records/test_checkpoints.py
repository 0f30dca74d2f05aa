"""Only a checkpoint all of whose files are there counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewise.records import (
    Checkpoint,
    drop_checkpoints,
    last_checkpoint,
    part_path,
    seal_checkpoint,
)


def save(cell: Path, step: int) -> Path:
    part = part_path(cell, step)
    part.mkdir(parents=True)
    (part / "trainer.ckpt").write_bytes(b"x" * step)
    (part / "rank0.pt").write_bytes(b"y")
    return seal_checkpoint(part, Checkpoint(step, step, 1, (step,), ("a CPU",), {}, {}))


def test_the_last_whole_one_counts_and_older_ones_go(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    save(tmp_path, 5)
    second = save(tmp_path, 10)
    found = last_checkpoint(tmp_path)
    assert found is not None
    assert (found[0], found[1].step) == (second, 10)
    assert found[1].files.keys() == {"rank0.pt", "trainer.ckpt"}
    assert list((tmp_path / "checkpoints").iterdir()) == [second]


def test_what_a_crash_left_half_written_does_not(tmp_path: Path) -> None:
    whole = save(tmp_path, 5)
    part_path(tmp_path, 15).mkdir()
    torn = tmp_path / "checkpoints" / "step-000000020"
    torn.mkdir()
    (torn / "checkpoint.json").write_text("{")
    found = last_checkpoint(tmp_path)
    assert found is not None
    assert found[0] == whole
    (whole / "trainer.ckpt").write_bytes(b"xxxxy")
    assert last_checkpoint(tmp_path) is None, "a file of the right size holds something else"
    drop_checkpoints(tmp_path)
    assert not (tmp_path / "checkpoints").exists()
    drop_checkpoints(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"step": 10**400}, {"files": {"absent": "0" * 64}}, {"files": {"../result.json": "0"}}],
)
def test_one_that_cannot_be_is_passed_over(tmp_path: Path, change: dict[str, object]) -> None:
    path = save(tmp_path, 10) / "checkpoint.json"
    assert last_checkpoint(tmp_path) is not None
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert last_checkpoint(tmp_path) is None

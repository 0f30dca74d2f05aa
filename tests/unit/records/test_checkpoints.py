"""Only a checkpoint all of whose files are there counts."""

from __future__ import annotations

from pathlib import Path

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

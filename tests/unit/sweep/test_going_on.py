"""A checkpoint is not gone on from with other data or code than it was made with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes.recorded import provenance
from fakes.requests import asked
from fakes.settings import SETTINGS
from scalewise.host import data_identity, own_classes, running_code
from scalewise.records import (
    CellFolder,
    Checkpoint,
    DeviceInfo,
    PlannedCell,
    last_checkpoint,
    part_path,
    seal_checkpoint,
)
from scalewise.supervisor import Job, Origin
from scalewise.supervisor.attempt import prepare

SLOT = DeviceInfo("cpu", "a processor")
RECORDED = provenance([SLOT], code={})


def begun(
    folder: Path, cwd: Path, plain: dict[str, Any], python_path: tuple[str, ...] = ()
) -> tuple[CellFolder, Job]:
    """A cell with a checkpoint that this host may go on from."""
    cell = CellFolder(folder)
    part = part_path(folder, 10)
    part.mkdir(parents=True)
    code = running_code(cwd, own_classes(plain), python_path)
    cell.save_config(plain)
    seal_checkpoint(part, Checkpoint(10, 10, 1, (40,), (SLOT.name,), code, {}))
    settings = replace(SETTINGS, checkpoints=True, dataset_arguments={"path": "t.txt"})
    planned = PlannedCell("id", "config", folder.name, (), 0, 1)
    return cell, Job(str(folder), planned, settings, (SLOT,), Origin(str(cwd), python_path, ()))


def test_a_checkpoint_of_other_data_is_moved_away(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("a" * 1000)
    plain = asked(
        "model=gpt2_tiny", "dataset=text_file", "dataset.path=t.txt", "checkpoint.every_n_steps=10"
    ).plain
    folder, job = begun(tmp_path / "cell", tmp_path, plain)
    now = data_identity(job.settings.dataset_arguments, tmp_path)
    folder.save_provenance(replace(RECORDED, data=now))
    assert prepare(folder, job) is None
    assert last_checkpoint(folder.path) is not None

    text.write_text("a" * 900)
    mixed = replace(job, settings=replace(job.settings, allow_mixed=True))
    assert prepare(folder, mixed) is None, "as it was asked for"
    why = prepare(folder, job)
    assert why is not None
    assert why.startswith("its checkpoint is of other data: dataset.path: 1000 bytes (sha256 ")
    assert "there, 900 bytes" in why
    assert last_checkpoint(folder.path) is None
    assert (folder.path / "earlier" / "1" / "checkpoints" / "step-000000010").is_dir()


def test_a_checkpoint_that_cannot_be_read_is_moved_away(tmp_path: Path) -> None:
    plain = asked("model=medium", "checkpoint.every_n_steps=10").plain
    folder, job = begun(tmp_path / "cell", tmp_path, plain)
    (meta,) = folder.path.glob("checkpoints/*/checkpoint.json")
    meta.write_text(meta.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    assert prepare(folder, job) is not None
    assert list(folder.path.glob("earlier/1/checkpoints/*/checkpoint.json"))
    assert prepare(folder, job) is None


def test_a_checkpoint_of_other_own_code_is_moved_away(tmp_path: Path) -> None:
    """Its module lies outside of every repository: no commit tells that it changed."""
    module = tmp_path / "brought_along.py"
    module.write_text("FACTOR = 1\n")
    plain = asked("model=medium", "checkpoint.every_n_steps=10").plain
    plain["model"] = {**plain["model"], "_target_": "brought_along.Net"}
    folder, job = begun(tmp_path / "cell", tmp_path, plain, (str(tmp_path),))
    assert prepare(folder, job) is None
    module.write_text("FACTOR = 100\n")
    mixed = replace(job, settings=replace(job.settings, allow_mixed=True))
    assert prepare(folder, mixed) is None, "as it was asked for"
    why = prepare(folder, job)
    assert why is not None
    assert "brought_along.py" in why
    assert last_checkpoint(folder.path) is None

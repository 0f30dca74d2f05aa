"""Records of impossible size or shape are refused in one line that names the file and the key."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalewise.records import (
    CellFolder,
    DataError,
    RecordError,
    SweepFolder,
    files,
    last_checkpoint,
    read_shard,
    steps,
)

KEPT = Path(__file__).parents[2] / "golden" / "stalled" / "h200x2_medium"
CELL = "medium-tabular-ddp-r0-e08c5c3b"
HUGE = 10**400


@pytest.fixture
def cell(tmp_path: Path) -> CellFolder:
    shutil.copytree(KEPT, tmp_path / "sweep")
    return SweepFolder(tmp_path / "sweep").cell(CELL)


def changed(path: Path, keys: str, value: object) -> None:
    """Set the value at ``keys`` (``ranks.0.rank``) of a JSON file."""
    plain = at = json.loads(path.read_text())
    *way, last = [int(k) if k.isdecimal() else k for k in keys.split(".")]
    for key in way:
        at = at[key]
    at[last] = value
    path.write_text(json.dumps(plain))


@pytest.mark.parametrize(
    ("file", "keys", "value", "code"),
    [
        ("result.json", "world_size", 10**9, "less_than_equal"),
        ("result.json", "world_size", 0, "greater_than_equal"),
        ("result.json", "ranks", [], "too_short"),
        ("result.json", "ranks.0.rank", 10**9, "less_than"),
        ("result.json", "ranks.0.steps_completed", HUGE, "less_than_equal"),
        ("result.json", "ranks.0.flops_per_sample", 1e308, "less_than_equal"),
        ("result.json", "global_batch_size", HUGE, "less_than_equal"),
        ("result.json", "started_at", HUGE, "float_type"),
        ("result.json", "finished_at", 1e300, "less_than_equal"),
        ("result.json", "extra", 1, "value_error"),
        ("sweep.json", "cells.0.name", "x" * 3000, "string_too_long"),
        ("sweep.json", "cells.0.name", "../../etc", "string_pattern_mismatch"),
        ("sweep.json", "cells.0.name", "..", "string_pattern_mismatch"),
        ("sweep.json", "cells.0.devices", 10**9, "less_than_equal"),
        ("sweep.json", "created_at", -1e300, "greater_than_equal"),
        ("provenance.json", "peak_tflops", {"bf16": 1e308}, "less_than_equal"),
        ("provenance.json", "usable_cores", HUGE, "less_than_equal"),
    ],
)
def test_records_have_bounds(
    cell: CellFolder, file: str, keys: str, value: object, code: str
) -> None:
    load: Callable[[], Any] = {
        "result.json": cell.load_result,
        "sweep.json": SweepFolder(cell.path.parent).load_plan,
        "provenance.json": cell.load_provenance,
    }[file]
    folder = cell.path.parent if file == "sweep.json" else cell.path
    load()
    changed(folder / file, keys, value)
    with pytest.raises(RecordError) as caught:
        load()
    assert isinstance(caught.value.__cause__, DataError)
    assert caught.value.__cause__.code == code
    assert str(caught.value).startswith(f"{folder / file}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500 + len(str(folder))


@pytest.mark.parametrize("version", [True, 1.0, 2.0, "1", None, HUGE])
def test_only_a_whole_number_is_a_version(cell: CellFolder, version: object) -> None:
    changed(cell.path / "result.json", "schema_version", version)
    with pytest.raises(RecordError, match=r"result\.json: schema version"):
        cell.load_result()


def test_brackets_in_what_has_no_type_are_counted(cell: CellFolder) -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    changed(cell.path / "provenance.json", "code.deep", deep)
    with pytest.raises(RecordError, match=r"provenance\.json: code\.deep: "):
        cell.load_provenance()


ALIASES = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 50))


@pytest.mark.parametrize(
    "text",
    [ALIASES, "deep: " + "[" * 100_000 + "]" * 100_000, f"a: {'9' * 6000}", "a: [", "- 1", "3"],
    ids=["aliases", "brackets", "digits", "torn", "list", "number"],
)
def test_a_configuration_stands_for_no_more_than_it_says(cell: CellFolder, text: str) -> None:
    (cell.path / "config.yaml").write_text(text)
    with pytest.raises(RecordError, match=r"config\.yaml: "):
        cell.load_config()


def test_a_record_has_a_largest_size(cell: CellFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    with pytest.raises(RecordError, match=r"result\.json: .*allowed: up to 100"):
        cell.load_result()


@pytest.mark.parametrize("shape", [(2**20,), (10**14,)])
def test_an_audit_unpacks_to_no_more_than_it_may(
    tmp_path: Path, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MOST_UNPACKED", 2**20)
    header = io.BytesIO()
    layout = {"descr": "<i8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, layout)
    zeros = b"\0" * (8 * 2**20 if shape == (2**20,) else 0)
    with zipfile.ZipFile(tmp_path / "rank0.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("indices.npy", header.getvalue() + zeros)
    with pytest.raises(RecordError, match=r"rank0\.npz: cannot be read: "):
        read_shard(tmp_path / "rank0.npz", 0)


@pytest.mark.parametrize(
    "change", [{"step": HUGE}, {"files": {"pipe": "0" * 64}}, {"files": {"../result.json": "0"}}]
)
def test_a_checkpoint_that_cannot_be_is_passed_over(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = tmp_path / "checkpoints" / "step-000000010"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    whole = {
        "schema_version": 1,
        "step": 10,
        "batch": 0,
        "world_size": 1,
        "samples": [1],
        "devices": [],
        "code": {},
        "files": {},
    }
    (folder / "checkpoint.json").write_text(json.dumps(whole))
    found = last_checkpoint(tmp_path)
    assert found is not None
    assert found[1].step == 10
    (folder / "checkpoint.json").write_text(json.dumps({**whole, **change}))
    assert last_checkpoint(tmp_path) is None

"""Records of impossible size or shape are refused in one line that names the file and the key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalewise.records import (
    CellFolder,
    DataError,
    RecordError,
    SweepFolder,
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
        ("result.json", "ranks.1.rank", 0, "value_error"),
        ("result.json", "world_size", 3, "value_error"),
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


@pytest.mark.parametrize("text", ["a: [", "- 1", "3"], ids=["torn", "list", "number"])
def test_a_configuration_of_another_kind_is_named(cell: CellFolder, text: str) -> None:
    (cell.path / "config.yaml").write_text(text)
    with pytest.raises(RecordError, match=r"config\.yaml: "):
        cell.load_config()

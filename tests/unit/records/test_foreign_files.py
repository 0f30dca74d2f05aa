"""Files that lie among records and are none, and records whose values are of another kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewise.records import (
    CellFolder,
    Ending,
    RecordError,
    load_json,
    read_device_series,
)

HEADER = {
    "schema_version": 1,
    "host": "a",
    "source": "process",
    "interval_s": 1.0,
    "devices": [],
    "unavailable": {},
}


def test_a_copy_beside_a_record_is_no_record(tmp_path: Path) -> None:
    cell = CellFolder(tmp_path)
    attempt = Ending("failed", "exit", "it left", None, 1, None, (), 2, 1.0, 2.0)
    cell.save_attempt(attempt)
    for name in ("notes.json", "2 (copy).json", "02.json", "\N{SUPERSCRIPT TWO}.json", ".json"):
        (tmp_path / "attempts" / name).write_text("mine")
    assert list(cell.attempts()) == [attempt]
    assert cell.next_attempt_number() == 3
    for folder, suffix in (("steps", "bin"), ("metrics", "jsonl")):
        (tmp_path / folder).mkdir()
        for rank in ("10", "9", "x", "0 (copy)", "09", ""):
            (tmp_path / folder / f"rank{rank}.{suffix}").touch()
    assert cell.ranks_with_steps() == cell.ranks_with_metrics() == [9, 10]


SAMPLE = {"time": 1.0, "devices": []}


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ([], SAMPLE),
        (3, SAMPLE),
        (HEADER | {"devices": 5}, SAMPLE),
        (HEADER | {"devices": [5]}, SAMPLE),
        (HEADER, {"time": 1.0, "devices": 5}),
        (HEADER, {"time": 1.0, "devices": [5]}),
        (HEADER, {"time": "noon", "devices": []}),
        (HEADER, {"time": 1.0, "devices": [{"id": "rank0", "energy_j": 1e308}]}),
    ],
)
def test_a_series_of_another_kind_is_named(tmp_path: Path, header: Any, line: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(header) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(RecordError, match=r"a\.jsonl"):
        read_device_series(path)


def test_brackets_without_end_are_damage(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("[" * 100_000)
    with pytest.raises(RecordError, match=r"record\.json: .*nested too deeply"):
        load_json(tmp_path / "record.json", Ending)

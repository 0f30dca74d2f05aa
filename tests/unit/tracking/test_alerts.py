"""Alerts among the lines of a device series."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.records import CellFolder, RecordError
from scalewise.tracking.rows import CellRows


def test_a_line_that_is_no_alert_is_named(tmp_path: Path) -> None:
    cell = CellFolder(tmp_path)
    path = cell.device_series_path("host")
    path.parent.mkdir()
    path.write_text('{"time": 1.0, "alert": {"time": 1.0, "level": "shout"}}\n')
    with pytest.raises(RecordError, match=r"host\.jsonl: line 1: level"):
        list(CellRows(cell, {}, 1.0).read())

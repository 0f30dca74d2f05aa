"""Imbalance is said once, when it lasts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.records import CellFolder, RecordError
from scalewise.tracking.row_sources import WindowRow
from scalewise.tracking.rows import CellRows, ImbalanceWatch


def window(cv: float | None, slow_ms: float = 70.0) -> WindowRow:
    values = {"balance/rank_0_arrival_ms": 30.0, "balance/rank_1_arrival_ms": slow_ms,
              "balance/rank_2_arrival_ms": 32.0}  # fmt: skip
    return WindowRow(10, 0, values if cv is None else {**values, "balance/arrival_cv_percent": cv})


def alerts_at(cvs: list[float | None]) -> list[int]:
    watch = ImbalanceWatch()
    return [i for i, cv in enumerate(cvs) if watch.check(float(i), window(cv)) is not None]


def test_a_poor_balance_is_said_once_if_it_lasts() -> None:
    assert alerts_at([40.0] * 10) == [2]
    assert alerts_at([40.0, 40.0, 19.9, 40.0, None, 40.0, 40.0]) == []


def test_the_alert_names_the_rank_and_its_delay() -> None:
    watch = ImbalanceWatch()
    alert = [watch.check(1.0, window(41.7)) for _ in range(3)][-1]
    assert alert is not None
    assert alert.title == "rank 1 holds the others back"
    assert "ready 39.00 ms a step after the mean of the others" in alert.text
    assert (alert.level, alert.condition, alert.device_id) == ("warn", "imbalance", "")


def test_a_line_that_is_no_alert_is_named(tmp_path: Path) -> None:
    cell = CellFolder(tmp_path)
    path = cell.device_series_path("host")
    path.parent.mkdir()
    path.write_text('{"time": 1.0, "alert": {"time": 1.0, "level": "shout"}}\n')
    with pytest.raises(RecordError, match=r"host\.jsonl: line 1: level"):
        list(CellRows(cell, {}, 1.0).read())

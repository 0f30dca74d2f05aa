"""Whatever record is written can be read again, with the same values."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scalewise.records import (
    DeviceInfo,
    Ending,
    MetricRow,
    MetricsWriter,
    PlannedCell,
    SweepPlan,
    load_json,
    read_metrics,
    save_json,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAMES = st.from_regex(r"[A-Za-z0-9_.]{0,20}-r[0-9]", fullmatch=True)
COUNTS = st.integers(0, 2**63)
TIMES = st.floats(0, 10**10)
RECORDS: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        DeviceInfo,
        name=TEXT,
        uuid=st.none() | TEXT,
        index=st.none() | COUNTS,
        cores=st.lists(COUNTS, max_size=4).map(tuple),
        memory_total_mib=st.none() | st.floats(0, 1e12),
    ),
    st.builds(
        Ending,
        rank=st.none() | st.integers(0, 999),
        message=TEXT,
        raised_at=st.none() | TEXT,
        last_lines=st.lists(TEXT, max_size=4).map(tuple),
        number=st.none() | st.integers(1, 999),
        started_at=TIMES,
        finished_at=TIMES,
        elapsed_s=st.none() | TIMES,
    ),
    st.builds(
        SweepPlan,
        created_at=TIMES,
        command=st.lists(TEXT, max_size=4).map(tuple),
        order_seed=COUNTS,
        policy=TEXT,
        slots=st.none() | COUNTS,
        cells=st.lists(
            st.builds(
                PlannedCell,
                cell_id=TEXT,
                config_id=TEXT,
                name=NAMES,
                overrides=st.lists(TEXT, max_size=4).map(tuple),
                repeat=COUNTS,
                devices=st.none() | st.integers(1, 2**16),
            ),
            max_size=3,
        ).map(tuple),
    ),
)


@settings(max_examples=60, deadline=None)
@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_json(Path(folder) / "record.json", record)
        assert load_json(Path(folder) / "record.json", type(record)) == record


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(TEXT, st.floats()))
def test_metrics_of_no_size_are_read_as_none(values: dict[str, float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = MetricsWriter(Path(folder) / "rank0.jsonl")
        writer.append(MetricRow(1.0, 2, 3, 4, values))
        writer.close()
        (row,) = read_metrics(Path(folder) / "rank0.jsonl")
    assert row.values == {k: v if abs(v) <= 1e40 else None for k, v in values.items()}

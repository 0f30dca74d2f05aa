"""Whatever record is written can be read again, with the same values."""

import json
import math
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import rank_summary
from scalewise import records

ODD = '\x00 \x1b[2J\n\u2028 \\ "ü" \U0001f600 null'


@pytest.mark.parametrize(
    "record",
    [
        records.DeviceInfo("cpu", ODD, None, 2**63, (0, 2**63), 1e12),
        records.DeviceInfo("cuda", "", ODD),
        records.Ending("failed", "exit", ODD, 999, -9, ODD, (ODD, ""), 999, 0.0, 1e10, 5e-324),
        records.Ending("done"), records.SweepPlan(1e10, (ODD, ""), 2**63, (), ODD, 2**63),
        records.SweepPlan(0.1, (), 0, (
            records.PlannedCell(ODD, "", "._aZ.9-r0", (ODD,), 2**63, 2**16),
            records.PlannedCell("", ODD, "-r9", (), 0, None))),
    ],
)  # fmt: skip
def test_a_record_is_read_as_it_was_written(tmp_path: Path, record: Any) -> None:
    records.save_json(tmp_path / "record.json", record)
    assert records.load_json(tmp_path / "record.json", type(record)) == record


def test_metrics_of_no_size_are_read_as_none(tmp_path: Path) -> None:
    values = {ODD: math.nan, "a": math.inf, "b": -math.inf, "c": 1.1e40, "d": -1e40, "e": 5e-324}
    with closing(records.MetricsWriter(tmp_path / "rank0.jsonl")) as writer:
        writer.append(records.MetricRow(1.0, 2, 3, 4, values))
    (row,) = records.read_metrics(tmp_path / "rank0.jsonl")
    assert row.values == {**dict.fromkeys([ODD, *"abc"]), "d": -1e40, "e": 5e-324}


# Records of impossible size or shape are refused in one line that names the file and the key.
KEPT = Path(__file__).parents[2] / "golden" / "stalled" / "h200x2_medium"
CELL = "medium-tabular-ddp-r0-e08c5c3b"
HUGE = 10**400


@pytest.fixture
def cell(tmp_path: Path) -> records.CellFolder:
    shutil.copytree(KEPT, tmp_path / "sweep")
    return records.SweepFolder(tmp_path / "sweep").cell(CELL)


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
        ("result.json", "world_size", 2**16 + 1, "less_than_equal"),
        ("result.json", "world_size", 0, "greater_than_equal"),
        ("result.json", "ranks", [], "too_short"),
        ("result.json", "ranks.0.rank", 2**16, "less_than"),
        ("result.json", "ranks.1.rank", 0, "value_error"),
        ("result.json", "world_size", 3, "value_error"),
        ("result.json", "ranks.0.flops_per_sample", 1e308, "less_than_equal"),
        ("result.json", "started_at", HUGE, "float_type"),
        ("result.json", "finished_at", 1e11 + 1, "less_than_equal"),
        ("result.json", "extra", 1, "value_error"),
        ("sweep.json", "cells.0.name", "x" * 256, "string_too_long"),
        ("sweep.json", "cells.0.name", "../../etc", "string_pattern_mismatch"),
        ("sweep.json", "cells.0.devices", 2**16 + 1, "less_than_equal"),
        ("sweep.json", "created_at", -1.0, "greater_than_equal"),
        ("provenance.json", "peak_tflops", {"bf16": 1e308}, "less_than_equal"),
        ("provenance.json", "usable_cores", HUGE, "less_than_equal"),
    ],
)
def test_records_have_bounds(
    cell: records.CellFolder, file: str, keys: str, value: object, code: str
) -> None:
    load: Callable[[], Any] = {
        "result.json": cell.load_result,
        "sweep.json": records.SweepFolder(cell.path.parent).load_plan,
        "provenance.json": cell.load_provenance,
    }[file]
    folder = cell.path.parent if file == "sweep.json" else cell.path
    load()
    changed(folder / file, keys, value)
    with pytest.raises(records.RecordError) as caught:
        load()
    assert isinstance(caught.value.__cause__, records.DataError)
    assert caught.value.__cause__.code == code
    assert str(caught.value).startswith(f"{folder / file}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500 + len(str(folder))


@pytest.mark.parametrize("version", [True, 1.0, 2.0, "1", None, HUGE])
def test_only_a_whole_number_is_a_version(cell: records.CellFolder, version: object) -> None:
    changed(cell.path / "result.json", "schema_version", version)
    with pytest.raises(records.RecordError, match=r"result\.json: schema version"):
        cell.load_result()


# How figures of several ranks become one.
def test_the_mean_is_weighted_and_not_finite_if_any_is_and_what_agrees_stays_what_it_is() -> None:
    agreed = 0.1 + 0.2
    assert records.mean_over_ranks([agreed] * 3, [1.0, 1.0, 7.0]) == agreed
    assert records.mean_over_ranks([agreed] * 3, None) == agreed
    assert records.mean_over_ranks([1.0, 4.0], [2.0, 1.0]) == 2.0
    assert records.mean_over_ranks([1.0, None], [2.0, 1.0]) is None
    for nothing in (None, [0.0, 0.0]):
        with pytest.raises(ValueError, match="values that differ"):
            records.mean_over_ranks([1.0, 2.0], nothing)


def test_a_loss_counts_by_the_samples_of_its_step_and_not_where_these_are_unknown() -> None:
    two, six, unknown = (records.MetricRow(0.0, 1, 0, 8, {}, samples) for samples in (2, 6, None))
    assert records.weights_of("train_loss", [two, six]) == (2.0, 6.0)
    assert records.weights_of("train_loss", [two, unknown]) is None
    assert records.weights_of("val_accuracy", [two, unknown]) == (1.0, 1.0)


def told(fed: int, **metrics: float) -> records.RankSummary:
    return rank_summary(
        0, records.DeviceInfo("cpu", "a CPU"), 1, fed, metrics=metrics, metric_rows=1
    )


def test_last_metrics_are_those_of_all_ranks() -> None:
    first = told(300, train_loss=2.0, val_loss=2.0, only_here=5.0)
    found = records.last_metrics([first, told(100, train_loss=1.0, val_loss=1.0)])
    assert found == {"train_loss": 1.75, "val_loss": 1.5, "only_here": 5.0}
    assert records.last_metrics([told(0, train_loss=2.0), told(0, train_loss=1.0)]) == {
        "train_loss": 1.5
    }


def test_the_interval_of_short_runs_stands_behind_the_rate() -> None:
    several = records.CandidateEvidence("ddp", 2, 2, 1343.0, 9.42, 1818.2)
    assert "ddp x2 1,343 (9.4-1,818) samples/s" in str(several)
    assert str(records.CandidateEvidence("ddp", 2, 1, 343.0)) == "ddp x2 343 samples/s (1 run)"


def test_what_each_link_carries() -> None:
    assert (records.bus_factor("all_reduce", 2), records.bus_factor("all_reduce", 8)) == (1.0, 1.75)
    assert (records.bus_factor("all_gather", 4), records.bus_factor("reduce_scatter", 8)) == (
        0.75,
        0.875,
    )
    assert records.bus_factor("broadcast", 8) == 1.0

"""Figures of steps that are kept beside a cell stand for its very rows, or for nothing."""

import os
from pathlib import Path

import numpy as np
import pytest

from fakes.recorded import DDP, write_sweep
from scalewise.analysis import load, load_sweep
from scalewise.analysis.load import KEPT_FILE
from scalewise.analysis.step_figures import StepFigures, extremes, figures_of
from scalewise.records import read_steps


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(load, "_LEAST_ROWS", 1)
    return write_sweep(tmp_path / "sweep", [DDP])


def figures(sweep: Path) -> StepFigures:
    return figures_of(load_sweep(sweep).cells[0])


def rows_read(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Step files that reading the sweep opens."""
    read: list[Path] = []

    def counted(path: Path, rank: int) -> object:
        read.append(path)
        return read_steps(path, rank)

    with monkeypatch.context() as patch:
        patch.setattr(load, "read_steps", counted)
        figures(sweep)
    return len(read)


def test_rows_are_read_once_and_say_the_same_again(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = figures(sweep)
    assert first.throughput is not None and first.path is not None and first.balance is not None
    assert (rows_read(sweep, monkeypatch), figures(sweep)) == (0, first)


@pytest.mark.parametrize("edit", ["cut", "one digit", "another key"])
def test_a_damaged_file_is_measured_anew(
    sweep: Path, edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = figures(sweep)
    (kept,) = sweep.glob(f"*/{KEPT_FILE}")
    data = kept.read_bytes()
    at = data.index(b"global_samples_per_s") + 23
    digit = b"1" if data[at : at + 1] != b"1" else b"2"
    kept.write_bytes(
        {
            "cut": data[: len(data) // 2],
            "one digit": data[:at] + digit + data[at + 1 :],
            "another key": b"0" * 64 + data[64:],
        }[edit]
    )
    assert (rows_read(sweep, monkeypatch), figures(sweep)) == (2, first)
    assert kept.read_bytes() == data


@pytest.mark.parametrize("changed", ["result", "rows", "rows, their time restored"])
def test_other_records_are_measured_anew(sweep: Path, changed: str) -> None:
    first = figures(sweep)
    (record,) = sweep.glob("*/result.json" if changed == "result" else "*/steps/rank1.bin")
    before, data = record.stat(), bytearray(record.read_bytes())
    if changed == "result":
        record.write_bytes(data.replace(b'"step_rows": 60', b'"step_rows": 61'))
    else:
        data[-1] ^= 1
        record.write_bytes(data)
        restored = "restored" in changed
        os.utime(record, ns=(before.st_atime_ns, before.st_mtime_ns) if restored else (1, 1))
    again = figures(sweep)
    assert not first.faults and again.faults


def test_a_folder_that_cannot_be_written_is_read(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, data: bytes) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(load, "write_atomically", refused)
    assert figures(sweep).throughput is not None
    assert not list(sweep.glob(f"*/{KEPT_FILE}"))


def test_of_many_points_the_extremes_of_each_bin_stay() -> None:
    y = np.zeros(1000)
    y[[333, 334, 871]] = 5.0, -4.0, 9.0
    at, kept = extremes(np.arange(1000.0), y, most=20)
    assert len(at) <= 20
    assert {(333.0, 5.0), (334.0, -4.0), (871.0, 9.0)} <= {*zip(at, kept, strict=True)}

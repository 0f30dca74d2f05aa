"""Step times that cannot all be true make a verdict invalid, also in files without checksums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from recorded import DDP, Spec, repeats, write_sweep

from fakes.step_files import steady_rows, write_old_rows
from scalewise.analysis import analyse, load_sweep
from scalewise.analysis.validity import contradiction
from scalewise.records import PHASES, WARMUP, RecordError, StepSeries, read_steps

Rows = npt.NDArray[np.void]
NEVER = {"validation": "never"}
ROOT = Path(__file__).resolve().parents[3]


def found(rows: Rows, config: Mapping[str, Any] | None = NEVER) -> str | None:
    return contradiction([StepSeries(0, rows, 0)], config)


def without_phases(rows: Rows) -> Rows:
    for line in ("host", "device"):
        for phase in PHASES:
            rows[f"{line}_{phase}_ms"] = np.nan
    return rows


def four_times(rows: Rows) -> None:
    for name in rows.dtype.names or ():
        if name.endswith("_ms"):
            rows[name] *= 4


def one_bit(column: str, bit: int) -> Callable[[Rows], None]:
    """Of the 8 exponent bits of a float32, the lowest is number 23."""

    def turn(rows: Rows) -> None:
        values = rows[column].copy()
        values.view(np.uint32)[len(rows) // 2] ^= np.uint32(1 << bit)
        rows[column] = values

    return turn


@pytest.mark.parametrize("rows", [steady_rows(50), without_phases(steady_rows(50))])
def test_sound_steps_contradict_nothing(rows: Rows) -> None:
    assert found(rows) is None
    assert found(rows[:1]) is found(rows[:0]) is None


@pytest.mark.parametrize("line", ["host", "device"])
@pytest.mark.parametrize("bit", range(23, 32))
def test_one_exponent_bit_in_an_old_file_is_caught(tmp_path: Path, line: str, bit: int) -> None:
    rows = steady_rows(50)
    one_bit(f"{line}_step_ms", bit)(rows)
    write_old_rows(tmp_path / "steps", rows)
    try:
        series = read_steps(tmp_path / "steps", 0)
    except RecordError:
        return
    assert contradiction([series], NEVER) is not None


@pytest.mark.parametrize("bit", range(14, 60))
def test_one_bit_of_a_start_is_caught(bit: int) -> None:
    rows = steady_rows(50)
    rows["start_ns"][25] ^= 1 << bit
    assert found(rows, None) is not None


@pytest.mark.parametrize(
    "config", [NEVER, None, {"validation": "epoch"}, {**NEVER, "checkpoint": {"every_s": 60.0}}]
)
def test_a_gap_is_for_what_may_be_left_out(config: Mapping[str, Any] | None) -> None:
    rows = steady_rows(50)
    rows["start_ns"][30:] += 10**9
    assert (found(rows, config) is None) == (config is not NEVER)
    rows["start_ns"][30:] -= 10**9 + 10**6
    assert found(rows, config) is not None, "a step cannot begin within another"


@pytest.mark.parametrize(
    ("share", "steps", "contradicts"),
    [(1.14, 1000, False), (1.16, 1000, True), (0.84, 1000, True), (1.4, 100, False)],
)
def test_the_device_is_held_to_the_host_over_the_window(
    share: float, steps: int, contradicts: bool
) -> None:
    rows = without_phases(steady_rows(steps))
    rows["device_step_ms"] *= share
    rows["flags"][0] = WARMUP
    rows["device_step_ms"][0] = 9e5
    assert (found(rows) is not None) == contradicts


def test_rows_of_both_lines_may_differ(tmp_path: Path) -> None:
    rows = without_phases(steady_rows(1000))
    rows["device_step_ms"][::2] += 5
    rows["device_step_ms"][1::2] -= 5
    assert found(rows) is None


@pytest.mark.parametrize("change", [four_times, one_bit("host_step_ms", 24)])
def test_the_verdict_is_invalid(tmp_path: Path, change: Callable[[Rows], None]) -> None:
    steady = [1.0, 1.01, 0.99]
    write_sweep(tmp_path, [*repeats(Spec(), steady), *repeats(DDP, steady)])
    assert analyse(load_sweep(tmp_path)).invalid == {}
    path = sorted(tmp_path.glob("*-ddp-*/steps/rank1.bin"))[0]
    rows = read_steps(path, 1).rows.copy()
    change(rows)
    write_old_rows(path, rows)
    analysis = analyse(load_sweep(tmp_path))
    _, ddp = analysis.measured
    assert [one.code for one in analysis.invalid[ddp.config_id]] == ["records_contradict"]
    assert len(analysis.invalid) == 1


def test_no_kept_step_file_contradicts_itself() -> None:
    """Nor does any of them have a gap."""
    kept = (ROOT / "docs" / "results", ROOT / "tests" / "golden")
    paths = [path for folder in kept for path in sorted(folder.rglob("steps/rank*.bin"))]
    assert len(paths) > 100
    for path in paths:
        assert contradiction([read_steps(path, 0)], NEVER) is None, path

"""Step times that cannot all be true make a verdict invalid, also in files without checksums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fakes.kept_sweep import kept_sweeps
from fakes.recorded import DDP, Spec, repeats, write_sweep
from fakes.step_files import steady_rows, write_rows
from scalewise.analysis import analyse, load_sweep
from scalewise.analysis.validity import contradiction
from scalewise.records import PHASES, WARMUP, StepSeries, read_steps

Rows = npt.NDArray[np.void]
ROOT = Path(__file__).resolve().parents[3]


def found(rows: Rows) -> str | None:
    return contradiction([StepSeries(0, rows, 0)])


def without_phases(rows: Rows) -> Rows:
    for line in ("host", "device"):
        for phase in PHASES:
            rows[f"{line}_{phase}_ms"] = np.nan
    return rows


def four_times(rows: Rows) -> None:
    for name in rows.dtype.names or ():
        if name.endswith("_ms"):
            rows[name] *= 4


def one_phase(rows: Rows) -> None:
    rows["host_forward_ms"][25] *= 2


def a_start_within_a_step(rows: Rows) -> None:
    rows["start_ns"][25:] -= 10**6


def a_pause(rows: Rows) -> None:
    rows["start_ns"][25:] += 10**9


@pytest.mark.parametrize(
    ("change", "contradicts"),
    [(four_times, True), (one_phase, True), (a_start_within_a_step, True), (a_pause, False)],
)
def test_steps_do_not_overlap_and_phases_add_up(
    change: Callable[[Rows], None], contradicts: bool
) -> None:
    rows = steady_rows(50)
    assert found(rows) is found(rows[:1]) is found(rows[:0]) is None
    change(rows)
    assert (found(rows) is not None) == contradicts


@pytest.mark.parametrize(
    ("share", "steps", "contradicts"),
    [(1.14, 1000, False), (1.16, 1000, True), (0.84, 1000, True), (1.4, 100, False)],
)
def test_the_device_is_compared_with_the_host_over_the_window(
    share: float, steps: int, contradicts: bool
) -> None:
    rows = without_phases(steady_rows(steps))
    rows["device_step_ms"] *= share
    rows["device_step_ms"][::2] += 5
    rows["device_step_ms"][1::2] -= 5
    rows["flags"][0] = WARMUP
    rows["device_step_ms"][0] = 9e5
    assert (found(rows) is not None) == contradicts


def test_the_verdict_is_invalid(tmp_path: Path) -> None:
    steady = [1.0, 1.01, 0.99]
    write_sweep(tmp_path, [*repeats(Spec(), steady), *repeats(DDP, steady)])
    path = sorted(tmp_path.glob("*-ddp-*/steps/rank1.bin"))[0]
    rows = read_steps(path, 1).rows.copy()
    four_times(rows)
    write_rows(path, rows)
    analysis = analyse(load_sweep(tmp_path))
    _, ddp = analysis.measured
    codes = {key: [one.code for one in found] for key, found in analysis.invalid.items()}
    assert codes == {ddp.config_id: ["records_contradict"]}


def test_no_kept_step_file_contradicts_itself() -> None:
    folders = (*kept_sweeps(), ROOT / "tests" / "golden")
    paths = [path for folder in folders for path in sorted(folder.rglob("steps/rank*.bin"))]
    assert len(paths) > 100
    assert contradiction([read_steps(path, 0) for path in paths]) is None

"""Step times that cannot all be true make a verdict invalid, also in files without checksums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fakes.kept_sweep import kept_sweeps
from fakes.recorded import DDP, Spec, repeats, write_sweep
from fakes.step_files import steady_rows, write_rows
from scalewise.analysis import analyse, load_sweep
from scalewise.analysis.validity import contradiction
from scalewise.records import PHASES, WARMUP, StepSeries, SweepFolder, read_steps

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


def scaled(times: float, starts: float) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        for name in rows.dtype.names or ():
            if name.endswith("_ms"):
                rows[name] *= times
        begin = rows["start_ns"][0]
        rows["start_ns"] = begin + ((rows["start_ns"] - begin) * starts).astype(np.int64)

    return change


def more_samples(rows: Rows) -> None:
    rows["samples"] *= 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (scaled(0.01, 1), "most of the time is in no step"),
        (scaled(100, 100), "in a run of"),
        (scaled(0.01, 0.01), "whose cores were watched for"),
        (more_samples, "samples a step, of a batch of 128"),
    ],
)
def test_rows_that_were_altered_with_their_checksums_are_not_believed(
    tmp_path: Path, change: Callable[[Rows], None], said: str
) -> None:
    write_sweep(tmp_path, [replace(Spec(), steps=1000, config={"validation": "end"})])
    assert not analyse(load_sweep(tmp_path)).invalid
    (path,) = tmp_path.glob("*/steps/rank0.bin")
    rows = read_steps(path, 0).rows.copy()
    change(rows)
    write_rows(path, rows)
    ((remark,),) = analyse(load_sweep(tmp_path)).invalid.values()
    assert remark.code == "records_contradict" and said in remark.text


def test_a_device_does_no_more_than_its_data_sheet_says(tmp_path: Path) -> None:
    write_sweep(tmp_path, [Spec()])
    ((_, cell),) = SweepFolder(tmp_path).cells()
    # 128 samples of 12 MFLOP in 10 ms.
    for peak, invalid in ((0.2, False), (0.1, True)):
        known = replace(cell.load_provenance(), peak_tflops={"fp32": peak / 2, "bf16": peak})
        cell.save_provenance(known)
        found = analyse(load_sweep(tmp_path)).invalid.values()
        assert ["TFLOP/s a device" in one.text for (one,) in found] == [True] * invalid


def test_no_kept_step_file_contradicts_itself() -> None:
    folders = (*kept_sweeps(), ROOT / "tests" / "golden")
    paths = [path for folder in folders for path in sorted(folder.rglob("steps/rank*.bin"))]
    assert len(paths) > 100
    assert contradiction([read_steps(path, 0) for path in paths]) is None

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from scalewise.records import STEP_DTYPE, WARMUP
from scalewise.tracking.rows import StepWindows


def steps(
    first: int,
    last: int,
    *,
    step_ms: float = 100.0,
    arrival_ms: float = 40.0,
    samples: int = 8,
    warmup: int = 0,
    device: bool = False,
) -> npt.NDArray[np.void]:
    rows = np.zeros(last - first + 1, STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        if name.endswith("_ms"):
            rows[name] = np.nan
    rows["step"] = np.arange(first, last + 1)
    rows["start_ns"] = (rows["step"] - 1) * int(step_ms * 1e6)
    rows["samples"] = samples
    rows["flags"] = np.where(rows["step"] <= warmup, WARMUP, 0)
    line = "device" if device else "host"
    rows[f"{line}_step_ms"] = step_ms
    rows[f"{line}_arrival_ms"] = arrival_ms
    rows[f"{line}_forward_ms"] = 7.0
    return rows


@pytest.mark.parametrize("device", [False, True])
def test_known_times_one_rank_and_no_phase_that_is_missing(device: bool) -> None:
    windows = StepWindows(every_n_steps=10, world_size=1)
    windows.add(0, steps(1, 10, device=device))
    (row,) = windows.cut(final=False)
    assert row.step == 10
    assert row.values == {
        "step_time_ms": pytest.approx(100),
        "global_samples_per_s": pytest.approx(80),
        "phases/forward_ms": pytest.approx(7),
    }


def test_known_times_two_ranks_the_slowest_counts() -> None:
    windows = StepWindows(every_n_steps=10, world_size=2)
    windows.add(0, steps(1, 10, step_ms=100, arrival_ms=30))
    windows.add(1, steps(1, 10, step_ms=125, arrival_ms=50))
    (row,) = windows.cut(final=False)
    assert row.values["step_time_ms"] == pytest.approx(125)
    assert row.values["global_samples_per_s"] == pytest.approx(2 * 8 / 0.125)
    assert row.values["balance/arrival_cv_percent"] == pytest.approx(25)
    assert not any(name.startswith("gpu_") for name in row.values), "it has no GPU"
    assert row.values["balance/rank_1_arrival_ms"] == pytest.approx(50)


def test_a_window_waits_for_every_rank() -> None:
    windows = StepWindows(every_n_steps=10, world_size=2)
    windows.add(0, steps(1, 20))
    assert list(windows.cut(final=False)) == []
    windows.add(1, steps(1, 9))
    assert list(windows.cut(final=False)) == []
    windows.add(1, steps(10, 20))
    assert [row.step for row in windows.cut(final=False)] == [10, 20]


def test_cuts_do_not_depend_on_when_rows_arrive() -> None:
    whole = StepWindows(every_n_steps=10, world_size=2)
    for rank in (0, 1):
        whole.add(rank, steps(1, 95))
    at_once = list(whole.cut(final=True))
    piecewise = StepWindows(every_n_steps=10, world_size=2)
    found = []
    for first in range(1, 95, 7):
        for rank in (0, 1):
            piecewise.add(rank, steps(first, min(first + 6, 95)))
        found += piecewise.cut(final=False)
    found += piecewise.cut(final=True)
    assert found == at_once
    assert [row.step for row in at_once] == [*range(10, 91, 10), 95]


def test_fast_steps_make_at_most_two_rows_a_second() -> None:
    windows = StepWindows(every_n_steps=10, world_size=1)
    windows.add(0, steps(1, 20_000, step_ms=0.1))
    rows = list(windows.cut(final=True))
    assert 3 <= len(rows) <= 5
    assert all(row.step % 10 == 0 for row in rows)


def test_warmup_is_left_out() -> None:
    windows = StepWindows(every_n_steps=10, world_size=1)
    windows.add(0, steps(1, 10, warmup=10, step_ms=5000))
    assert list(windows.cut(final=True)) == []
    assert windows.global_samples_per_s() is None
    windows.add(0, steps(11, 30, warmup=10))
    assert list(windows.cut(final=True))[-1].values["step_time_ms"] == pytest.approx(100)
    assert windows.global_samples_per_s() == pytest.approx(80)


def test_a_rank_that_broke_off_leaves_no_throughput() -> None:
    windows = StepWindows(every_n_steps=10, world_size=2)
    windows.add(0, steps(1, 10))
    windows.add(1, steps(1, 4))
    (row,) = windows.cut(final=True)
    assert "global_samples_per_s" not in row.values
    assert "balance/arrival_cv_percent" not in row.values
    assert row.values["step_time_ms"] == pytest.approx(100)

"""What the sampler's benchmarks judge: known times in, known ratios and losses out."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from scalewise.records import STEP_DTYPE

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

from sampler_judgement import Window, judge_readings, judge_windows
from sampler_soak import count_lost

_S = 1_000_000_000


def _steps(until_s: float, sampled: float = 1.0, after_reading_ms: float = 0.0) -> np.ndarray:
    """Steps of 1 ms: longer by a factor in odd seconds, or by some ms at each tenth of a second."""
    noise = np.random.default_rng(0)
    rows, now = [], 0.0
    while now < until_s:
        ms = (sampled if int(now) % 2 else 1.0) * float(noise.normal(1.0, 0.05))
        if int(10 * now) != int(10 * (now + ms / 1e3)):
            ms += after_reading_ms
        row = np.zeros(1, STEP_DTYPE)
        row["start_ns"], row["host_step_ms"], row["device_step_ms"] = int(now * _S), ms, ms
        rows.append(row)
        now += ms / 1e3
    return np.concatenate(rows)


def _windows(pairs: int) -> list[Window]:
    return [Window(n // 2, bool(n % 2), n * _S, (n + 1) * _S) for n in range(2 * pairs)]


def test_the_ratio_of_windows_is_that_of_the_step_times() -> None:
    found = judge_windows([_steps(12, sampled=1.02), _steps(12, sampled=1.01)], _windows(6))
    low, high = found["of_means"]["interval95"]
    assert low < 1.02 < high and high - low < 0.02
    assert (found["pairs"], found["world_size"], found["timeline"]) == (6, 2, "device")
    assert found["step_time_ms"] == pytest.approx(1.0, rel=0.01)


def test_nothing_between_windows_is_a_ratio_of_one() -> None:
    low, high = judge_windows([_steps(12)], _windows(6))["of_means"]["interval95"]
    assert low < 1 < high


def test_what_a_reading_adds_is_found_beside_it() -> None:
    readings = [int(tenth * _S / 10) for tenth in range(1, 100)]
    found = judge_readings([_steps(12, after_reading_ms=0.5)], readings)
    assert found is not None
    low, high = found["interval95"]
    assert found["excess_ms"] == pytest.approx(0.5, abs=0.05)
    assert found["ratio"] == pytest.approx(1.005, abs=0.0005)
    assert 1.003 < low < high < 1.007


def test_steps_longer_than_the_neighbourhood_tell_nothing_of_a_reading() -> None:
    slow = _steps(3)
    slow["start_ns"] *= 80
    slow["host_step_ms"] *= 80
    assert judge_readings([slow], [int(n * _S / 10) for n in range(1, 100)]) is None


def test_a_late_sample_is_not_a_lost_one() -> None:
    beats = np.arange(0, 60, 0.1)
    late = beats.copy()
    late[100] += 0.07
    assert [count_lost(times, 0.1) for times in (beats, late)] == [0, 0]
    assert count_lost(np.delete(beats, [100, 300, 301]), 0.1) == 3

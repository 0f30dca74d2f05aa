"""A sweep's view of its own end, as the clock goes on."""

from __future__ import annotations

import pytest

from scalewise.sweep.durations import Measured, Remaining
from scalewise.sweep.outlook import Outlook


def test_when_the_time_that_was_left_has_passed_the_sweep_looks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 0.0
    monkeypatch.setattr("scalewise.sweep.outlook.time.monotonic", lambda: clock)
    outlook, measured, asked = Outlook(), [Measured("a", 10.0)], []

    def remaining() -> list[Remaining]:
        asked.append(clock)
        return [Remaining("1", "a", 1, elapsed_s=8.0 + clock)]

    said = []
    for second in range(40):
        clock = float(second)
        said.append(outlook.seconds_left(measured, remaining, 1, False))
    assert all(one is not None and one > 0 for one in said), said
    assert 8 <= len(asked) < 40


def test_a_sweep_looks_again_before_it_has_counted_down_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start that takes 4 s, with a cell that never seems to leave it."""
    now = 1000.0
    monkeypatch.setattr("scalewise.sweep.outlook.time.monotonic", lambda: now)
    outlook = Outlook()
    measured = [Measured("single", 4.5, width=1, start_s=4.0)]
    said = []
    for tick in range(40):
        now = 1000.0 + tick / 2
        starting = Remaining("1", "ddp", 2, elapsed_s=tick / 2)
        said.append(outlook.seconds_left(measured, lambda c=starting: [c], 2, False))
    assert all(one is not None and one > 1.5 for one in said)


def test_an_estimate_that_took_long_stands_until_it_is_paid_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cells end twice a second, and each look at the estimate takes two seconds."""
    now = 1000.0
    monkeypatch.setattr("scalewise.sweep.outlook.time.monotonic", lambda: now)
    outlook, measured, asked = Outlook(), [Measured("a", 500.0)], []

    def remaining() -> list[Remaining]:
        nonlocal now
        asked.append(now)
        now += 2.0
        return [Remaining("1", "a", 1)]

    said = {}
    for _ in range(200):
        measured.append(Measured("a", 500.0))
        at = now
        said[at] = outlook.seconds_left(measured, remaining, 1, False)
        now += 0.5
    assert asked == [1000.0, 1040.0, 1080.0]
    assert said[1000.0] == 500.0
    assert said[1012.0] == pytest.approx(488.0), "the clock goes on between two estimates"


def test_an_estimate_that_stands_for_long_does_not_count_down_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("scalewise.sweep.outlook.time.monotonic", lambda: now)
    outlook, measured = Outlook(), [Measured("a", 8.0)]

    def remaining() -> list[Remaining]:
        nonlocal now
        now += 1.0
        return [Remaining("1", "a", 1)]

    outlook.seconds_left(measured, remaining, 1, False)
    now = 1019.0
    assert outlook.seconds_left(measured, remaining, 1, False) == 4.0
    now = 1020.0
    assert outlook.seconds_left(measured, remaining, 1, False) == 8.0

"""Run-queue delay from the kernel's count."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.host import RunQueue


@pytest.mark.parametrize(
    ("content", "steps", "ms"),
    [
        ("5000000 1000000 7\n", 30, 2.0),
        ("5000000 1000000 7\n", 0, None),
        (None, 10, None),
        ("", 10, None),
        ("5000\n", 10, None),
        ("a b c\n", 10, None),
    ],
)
def test_the_delay_is_told_per_step_or_missing_with_a_reason(
    tmp_path: Path, content: str | None, steps: int, ms: float | None
) -> None:
    path = tmp_path / "schedstat"
    readable = content is not None and len(content.split()) == 3 and content[0].isdigit()
    if content is not None:
        path.write_text(content)
    queue = RunQueue(path)
    queue.begin(20)
    if readable:
        path.write_text("9000000 61000000 9\n")
    delay_ms, _ = queue.ms_per_step(20 + steps)
    assert delay_ms == (ms if ms is None else pytest.approx(ms))
    assert (queue.missing is None) == readable


def test_cpu_time_of_the_other_threads_stands_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "schedstat"
    path.write_text("1 2 3\n")
    for clock, first_ns, then_ns in (
        ("process_time_ns", 50_000_000, 350_000_000),
        ("thread_time_ns", 40_000_000, 220_000_000),
    ):
        monkeypatch.setattr(f"time.{clock}", iter([first_ns, then_ns]).__next__)
    queue = RunQueue(path)
    queue.begin(20)
    delay_ms, others_ms = queue.ms_per_step(50)
    assert (delay_ms, others_ms) == (0.0, 120 / 30)

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
    assert queue.ms_per_step(20 + steps) == (ms if ms is None else pytest.approx(ms))
    assert (queue.missing is None) == readable


def test_cpu_time_of_the_other_threads_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("1 2 3\n")
    clocks = iter([(50_000_000, 40_000_000), (350_000_000, 220_000_000)])
    queue = RunQueue(path, lambda: next(clocks))
    queue.begin(20)
    assert queue.other_threads_cpu_ms_per_step(50) == pytest.approx(120 / 30)

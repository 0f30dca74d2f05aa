"""Run-queue delay from the kernel's count."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.host import RunQueue


def test_the_delay_is_told_per_step(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("5000000 1000000 7\n")
    queue = RunQueue(path)
    queue.begin(20)
    path.write_text("9000000 61000000 9\n")
    assert queue.ms_per_step(50) == pytest.approx(2.0)
    assert queue.missing is None


@pytest.mark.parametrize("content", [None, "", "5000\n", "a b c\n"])
def test_what_cannot_be_read_is_missing_with_a_reason(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "schedstat"
    if content is not None:
        path.write_text(content)
    queue = RunQueue(path)
    queue.begin(0)
    assert queue.ms_per_step(10) is None
    assert queue.missing is not None
    assert "schedstat" in queue.missing


def test_cpu_time_of_the_other_threads_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("1 2 3\n")
    clocks = iter([(50_000_000, 40_000_000), (350_000_000, 220_000_000)])
    queue = RunQueue(path, lambda: next(clocks))
    queue.begin(20)
    assert queue.other_threads_cpu_ms_per_step(50) == pytest.approx(120 / 30)


def test_no_step_no_mean(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("1 2 3\n")
    queue = RunQueue(path)
    queue.begin(4)
    assert queue.ms_per_step(4) is None

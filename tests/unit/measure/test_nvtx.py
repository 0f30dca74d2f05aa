"""NVTX ranges follow the marks, close in time, and also where autograd's thread marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.records import StepWriter
from scalewise.train.recording import Mark
from scalewise.train.recording.step_clock import FOLLOWS, NvtxClock


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened and closed, in order; handles are the names."""
    seen: list[str] = []

    def open_range(name: str) -> str:
        seen.append(f"+{name}")
        return name

    monkeypatch.setattr(NvtxClock, "open_range", staticmethod(open_range))
    monkeypatch.setattr(NvtxClock, "close_range", staticmethod(lambda h: seen.append(f"-{h}")))
    return seen


def test_every_mark_has_its_range() -> None:
    assert set(FOLLOWS) == set(Mark)


def test_a_step_draws_each_phase_once_and_leaves_nothing_open(
    tmp_path: Path, drawn: list[str]
) -> None:
    writer = StepWriter(tmp_path / "rank0.bin")
    clock = NvtxClock(writer, None)
    clock.begin()
    for number in range(2):
        for mark in (m for m in Mark if m is not Mark.REPLAY_BEGIN):
            clock.mark(mark)
        clock.finish_step(number, 0, 8, 0)
    clock.drain(wait=True)
    writer.close()
    phases = ["data_wait", "h2d", "forward", "backward", "exposed_comm", "optimizer"]
    assert [name for name in drawn if name[1:] in phases] == [
        sign + name for _ in range(2) for name in phases for sign in "+-"
    ]
    assert drawn[0] == "+step 0" and "+step 1" in drawn
    assert sorted(n[1:] for n in drawn if n[0] == "+") == sorted(
        n[1:] for n in drawn if n[0] == "-"
    )


def test_a_paused_clock_draws_nothing(tmp_path: Path, drawn: list[str]) -> None:
    writer = StepWriter(tmp_path / "rank0.bin")
    clock = NvtxClock(writer, None)
    clock.paused = True
    clock.mark(Mark.FORWARD_BEGIN)
    writer.close()
    assert drawn == []

"""Known marks in, known milliseconds out, on the host's time line."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from scalewise.measure.step_clock import Mark, StepClock, host_phases_ms
from scalewise.records import PHASES, StepWriter, read_steps

MS = 1_000_000


def marked_clock(writer: StepWriter, steps: int, first: int = 0) -> StepClock:
    """A clock without a device, with that many finished steps to write, from ``first`` on."""
    clock = StepClock(writer, None)
    clock.begin()
    for number in range(first, first + steps):
        for mark in list(Mark)[: Mark.REPLAY_BEGIN]:
            clock.mark(mark)
        clock.finish_step(number, 0, 1, 0)
    return clock


def marks(**moments_ms: float) -> list[int]:
    """One batch: the marks that occurred, in ms after 1 s."""
    host_ns = [0] * len(Mark)
    for name, at in moments_ms.items():
        host_ns[Mark[name]] = 1000 * MS + int(at * MS)
    return host_ns


WHOLE = marks(
    FETCH_BEGIN=1,
    FETCH_END=4,
    TRANSFER_END=5,
    FORWARD_BEGIN=6,
    FORWARD_END=16,
    BACKWARD_BEGIN=17,
    LAST_BUCKET=37,
    BACKWARD_END=42,
    OPTIMIZER_BEGIN=43,
    OPTIMIZER_END=50,
)


def test_the_phases_of_a_reduced_step() -> None:
    phases = host_phases_ms(1000 * MS, [WHOLE])
    assert phases == {
        "data_wait": 3,
        "h2d": 1,
        "forward": 10,
        "backward": 20,
        "exposed_comm": 5,
        "optimizer": 7,
        "other": 4,
        "step": 50,
        "arrival": 37,
    }


def test_without_a_reduction_nothing_is_exposed_and_backward_is_whole() -> None:
    alone = list(WHOLE)
    alone[Mark.LAST_BUCKET] = 0
    phases = host_phases_ms(1000 * MS, [alone])
    assert phases["exposed_comm"] is None
    assert phases["backward"] == 25
    assert phases["arrival"] == 42


@pytest.mark.parametrize("missing", [m for m in Mark if m is not Mark.OPTIMIZER_END])
def test_the_phases_add_up_whatever_was_not_marked(missing: Mark) -> None:
    partly = list(WHOLE)
    partly[missing] = 0
    phases = host_phases_ms(1000 * MS, [partly])
    present = [phases[name] for name in PHASES]
    assert sum(v for v in present if v is not None) == pytest.approx(50)
    assert all(v is None or v >= 0 for v in present)


def test_accumulated_batches_add_up_and_only_the_last_reduces() -> None:
    first = marks(
        FETCH_BEGIN=0,
        FETCH_END=2,
        TRANSFER_END=2,
        FORWARD_BEGIN=3,
        FORWARD_END=13,
        BACKWARD_BEGIN=13,
        BACKWARD_END=23,
        OPTIMIZER_END=24,
    )
    second = [ns + 24 * MS if ns else 0 for ns in WHOLE]
    phases = host_phases_ms(1000 * MS, [first, second])
    assert phases["data_wait"] == 5
    assert phases["forward"] == 20
    assert phases["backward"] == 30
    assert phases["exposed_comm"] == 5
    assert phases["step"] == 74
    assert phases["arrival"] == 61


def test_a_clock_writes_what_it_was_told(tmp_path: Path) -> None:
    path = tmp_path / "rank0.bin"
    writer = StepWriter(path)
    clock = StepClock(writer, None)
    clock.begin()
    for number in range(3):
        clock.mark(Mark.FETCH_BEGIN)
        time.sleep(0.005)
        clock.mark(Mark.FETCH_END)
        clock.mark(Mark.OPTIMIZER_END)
        clock.finish_step(number, 0, 16, flags=int(number == 0))
    time.sleep(0.02)
    clock.begin()  # an interruption, which belongs to no step
    clock.mark(Mark.OPTIMIZER_END)
    clock.finish_step(3, 1, 8, 0)
    clock.drain(wait=True)
    writer.close()
    series = read_steps(path, 0)
    assert series.timeline == "host"
    assert list(series.rows["step"]) == [0, 1, 2, 3]
    assert list(series.rows["samples"]) == [16, 16, 16, 8]
    assert len(series.timed()) == 3
    waits = series.column("data_wait")
    assert (waits[:3] >= 5).all()
    assert np.isnan(waits[3])
    assert series.column("step")[3] < 15
    starts, steps = series.rows["start_ns"], series.column("step")
    assert np.allclose(np.diff(starts[:3]) / MS, steps[:2], rtol=1e-4)
    assert np.isnan(series.column("step", "device")).all()


def test_the_recording_thread_lets_training_go_on_after_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with closing(StepWriter(tmp_path / "steps.bin")) as writer:
        clock = marked_clock(writer, 5)
        clock.drain()
        assert len(pauses) == 4 and all(pause > 0 for pause in pauses)
        clock = marked_clock(writer, 5, first=5)
        clock.drain(wait=True)  # training is over: nobody waits for the interpreter
        assert len(pauses) == 4
    assert len(read_steps(tmp_path / "steps.bin", 0)) == 10


def test_a_mark_is_one_call_of_python(tmp_path: Path) -> None:
    """What stands on the training path is counted, because its time depends on the neighbours."""
    moments = list(Mark)[: Mark.REPLAY_BEGIN]
    called: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called[frame.f_code.co_name] += 1

    with closing(StepWriter(tmp_path / "steps.bin")) as writer:
        clock = marked_clock(writer, 1)
        sys.setprofile(count)
        try:
            for mark in moments:
                clock.mark(mark)
            clock.finish_step(1, 0, 1, 0)
        finally:
            sys.setprofile(None)
    # Made anew: the finished step, and the batch that comes.
    assert called == {"mark": len(moments), "finish_step": 1, "__init__": 2}

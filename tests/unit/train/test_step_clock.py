"""Known marks in, known milliseconds out, on both time lines."""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from scalewise.records import PHASES, WARMUP, StepWriter, read_steps
from scalewise.train.recording import Mark, step_clock, step_phases
from scalewise.train.recording.step_clock import ALL_DIVIDED, DIVIDED_EVERY, NvtxClock, StepClock
from scalewise.train.recording.step_phases import DEVICE_MARKS, Replays, host_phases_ms, replay_rows

MS = 1_000_000


def marked_clock(writer: StepWriter, steps: int) -> StepClock:
    """A clock without a device, with that many finished steps to write."""
    clock = StepClock(writer, None)
    clock.begin()
    mark_steps(clock, steps)
    return clock


def mark_steps(clock: StepClock, steps: int, first: int = 0) -> None:
    for number in range(first, first + steps):
        for mark in list(Mark)[: Mark.REPLAY_BEGIN]:
            clock.mark(mark)
        clock.finish_step(number, 0, 1, 0)


def marks(**moments_ms: float) -> list[int]:
    """One batch: the marks that occurred, in ms after 1 s."""
    host_ns = [0] * len(Mark)
    for name, at in moments_ms.items():
        host_ns[Mark[name]] = 1000 * MS + int(at * MS)
    return host_ns


WHOLE = marks(
    FETCH_BEGIN=1, FETCH_END=4, TRANSFER_END=5, FORWARD_BEGIN=6, FORWARD_END=16, BACKWARD_BEGIN=17,
    LAST_BUCKET=37, BACKWARD_END=42, OPTIMIZER_BEGIN=43, OPTIMIZER_END=50,
)  # fmt: skip


def host(*batches: list[int]) -> dict[str, float | None]:
    """Phases of one step that began at 1 s, None where there is none."""
    return only(host_phases_ms(np.array([1000 * MS]), np.array([batches])))


def device(*batches: list[int]) -> dict[str, float | None]:
    """The same from events that lie where the marks do."""
    marks_ms = np.full((1, len(batches), len(Mark)), np.nan)
    for i, batch in enumerate(batches):
        for mark in DEVICE_MARKS:
            if batch[mark]:
                marks_ms[0, i, mark] = (batch[mark] - 1000 * MS) / MS
    return only(
        step_phases.device_phases_ms(marks_ms, np.array([batches[-1][Mark.REPLAY_BEGIN] != 0]))
    )


def only(phases: dict[str, np.ndarray]) -> dict[str, float | None]:
    return {name: None if np.isnan(ms[0]) else float(ms[0]) for name, ms in phases.items()}


ALONE = [0 if mark is Mark.LAST_BUCKET else ns for mark, ns in zip(Mark, WHOLE, strict=True)]
"""The same without a reduction."""
UNREDUCED = marks(
    FETCH_BEGIN=0, FETCH_END=2, TRANSFER_END=2, FORWARD_BEGIN=3, FORWARD_END=13,
    BACKWARD_BEGIN=13, BACKWARD_END=23, OPTIMIZER_END=24,
)  # fmt: skip
"""The first of two batches whose gradients are accumulated."""
LATER = [ns + 24 * MS if ns else 0 for ns in WHOLE]
NAMES = (*PHASES, "step", "arrival")


@pytest.mark.parametrize(
    ("batches", "on_host", "on_device"),
    [
        (
            [WHOLE],
            {"data_wait": 3, "h2d": 1, "forward": 10, "backward": 20, "exposed_comm": 5,
             "optimizer": 7, "other": 4, "step": 50, "arrival": 37},
            {"data_wait": 3, "h2d": 1, "forward": 11, "backward": 21, "exposed_comm": 5,
             "optimizer": 8, "other": 1, "step": 50, "arrival": 37},
        ),
        (  # nothing is exposed, and backward is whole
            [ALONE],
            {"data_wait": 3, "h2d": 1, "forward": 10, "backward": 25, "exposed_comm": None,
             "optimizer": 7, "other": 4, "step": 50, "arrival": 42},
            {"data_wait": 3, "h2d": 1, "forward": 11, "backward": 26, "exposed_comm": None,
             "optimizer": 8, "other": 1, "step": 50, "arrival": 42},
        ),
        (  # batches add up, and only the last reduces
            [UNREDUCED, LATER],
            {"data_wait": 5, "h2d": 1, "forward": 20, "backward": 30, "exposed_comm": 5,
             "optimizer": 7, "other": 6, "step": 74, "arrival": 61},
            {"data_wait": 5, "h2d": 1, "forward": 22, "backward": 31, "exposed_comm": 5,
             "optimizer": 9, "other": 1, "step": 74, "arrival": 61},
        ),
        (  # a replayed step fetches nothing and is one launch
            [marks(REPLAY_BEGIN=2, OPTIMIZER_END=9)],
            {"data_wait": 0, "h2d": 0, "other": 2, "step": 9},
            {"data_wait": 0, "h2d": 0, "step": 9},
        ),
    ],
    ids=["reduced", "alone", "accumulated", "replayed"],
)  # fmt: skip
def test_known_marks_give_known_phases(
    batches: list[list[int]], on_host: dict[str, Any], on_device: dict[str, Any]
) -> None:
    for found, expected in ((host(*batches), on_host), (device(*batches), on_device)):
        assert {name: found.get(name) for name in NAMES} == {**dict.fromkeys(NAMES), **expected}


@pytest.mark.parametrize("missing", [m for m in Mark if m is not Mark.OPTIMIZER_END])
def test_the_phases_add_up_whatever_was_not_marked(missing: Mark) -> None:
    partly = list(WHOLE)
    partly[missing] = 0
    for phases in (host(partly), device(partly)):
        present = [phases[name] for name in PHASES]
        assert sum(v for v in present if v is not None) == pytest.approx(50)
        assert all(v is None or v >= 0 for v in present)


class Event:
    """A CUDA event that completes when it is told to."""

    done = True

    def __init__(self, enable_timing: bool = False) -> None:
        self.at_ms = 0.0

    def record(self, stream: object) -> None:
        self.at_ms = time.perf_counter() * 1e3

    def query(self) -> bool:
        return Event.done

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """A GPU whose events are these, as they are made."""
    events: list[Event] = []

    def make(enable_timing: bool) -> Event:
        events.append(Event())
        return events[-1]

    monkeypatch.setattr(torch.cuda, "Event", make)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: object())
    return events


def test_rows_wait_for_the_device_and_events_are_used_again(
    tmp_path: Path, made: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(StepWriter(tmp_path / "rank0.bin")) as writer:
        clock = StepClock(writer, torch.device("cuda", 0))
        clock.begin()
        monkeypatch.setattr(Event, "done", False)
        mark_steps(clock, 3)
        clock.drain()
        assert writer.rows == 0, "the device is not there yet"
        monkeypatch.setattr(Event, "done", True)
        clock.drain()
        assert writer.rows == 3
        before = len(made)
        mark_steps(clock, 3, first=3)
        assert len(made) == before
        clock.continue_step()  # a step of two batches cannot share its rows' making
        mark_steps(clock, 1, first=6)
        clock.drain()
    rows = read_steps(tmp_path / "rank0.bin", 0).rows
    assert list(rows["step"]) == list(range(7))
    assert np.allclose(rows["device_step_ms"], rows["host_step_ms"], atol=1)
    whole = sum(rows[f"device_{name}_ms"] for name in PHASES)
    assert np.allclose(whole, rows["device_step_ms"], atol=1e-3)


@pytest.mark.parametrize("anatomy", [True, False])
def test_rows_of_several_batches_of_replays_are_made_together_as_one_by_one(
    tmp_path: Path, made: list[Event], anatomy: bool
) -> None:
    with closing(StepWriter(tmp_path / "rank0.bin")) as writer:
        clock = StepClock(writer, torch.device("cuda", 0), anatomy)
        clock.begin()
        for first, count in ((0, 3), (3, 1), (4, 5)):
            for mark in (Mark.FETCH_BEGIN, Mark.FETCH_END, Mark.TRANSFER_END):
                clock.mark(mark)
            replays = clock.begin_replays()
            for _ in range(count):
                replays.tick()
            clock.finish_replays(replays, first, first // 3, 8 + first, max(0, 4 - first))
        replayed = [one for one in clock._finished if isinstance(one, Replays)]
        spent = [one.spent_events() for one in replayed]
        assert [
            [end in of for end in one.ends] for one, of in zip(replayed, spent, strict=True)
        ] == [[*[True] * (count - 1), False] for count in (3, 1, 5)]
        together = replay_rows(replayed, True)
        one_by_one = np.concatenate([replay_rows([one], True) for one in replayed])
        assert together.tobytes() == one_by_one.tobytes()
        assert list(together["step"]) == list(range(9))
        assert list(together["flags"]) == [WARMUP] * 4 + [0] * 5
        assert list(together["samples"]) == [8] * 3 + [11] + [12] * 5
        fetching = np.isin(together["step"], (0, 3, 4))
        assert (together["device_data_wait_ms"][~fetching] == 0).all()
        assert (np.isnan(together["host_other_ms"][fetching]) == (not anatomy)).all()
        assert (together["host_step_ms"] > 0).all() and (together["device_step_ms"] > 0).all()
        assert np.isnan(together["host_forward_ms"]).all()


def test_of_many_steps_one_in_eight_is_divided(tmp_path: Path, made: list[Event]) -> None:
    steps, untimed = 4000, 20
    phases = [f"{line}_{name}_ms" for line in ("host", "device") for name in PHASES]
    ranks = []
    for rank in range(2):
        path = tmp_path / f"rank{rank}.bin"
        with closing(StepWriter(path)) as writer:
            clock = StepClock(writer, torch.device("cuda", 0), untimed=untimed)
            clock.begin()
            mark_steps(clock, steps)
            clock.drain()
        ranks.append(read_steps(path, rank).rows)
    rows, divided = ranks[0], ~np.isnan(ranks[0]["host_other_ms"])
    all_until = untimed + ALL_DIVIDED
    assert divided[: all_until + 1].all()
    drawn = np.flatnonzero(divided[all_until:])
    assert len(drawn) == pytest.approx((steps - all_until) / DIVIDED_EVERY, rel=0.05)
    # What comes every second, fourth or eighth step is in as many of the divided ones.
    for period in (2, 4, 8):
        share = np.bincount(drawn % period, minlength=period) / len(drawn)
        assert share == pytest.approx(np.full(period, 1 / period), rel=0.5), period
    assert (np.isnan(ranks[1]["host_other_ms"]) == ~divided).all()
    for name in (*phases, "host_arrival_ms", "device_arrival_ms"):
        assert (~np.isnan(rows[name]) == divided).all(), name
    assert (rows["host_step_ms"] > 0).all() and (rows["device_step_ms"] > 0).all()
    assert np.allclose(sum(rows[n] for n in phases[: len(PHASES)])[divided],
                       rows["host_step_ms"][divided])  # fmt: skip


def test_an_interruption_belongs_to_no_step(tmp_path: Path) -> None:
    with closing(StepWriter(tmp_path / "rank0.bin")) as writer:
        clock = StepClock(writer, None)
        clock.begin()
        for number in range(3):
            clock.mark(Mark.FETCH_BEGIN)
            time.sleep(0.005)
            clock.mark(Mark.FETCH_END)
            clock.mark(Mark.OPTIMIZER_END)
            clock.finish_step(number, 0, 16, flags=int(number == 0))
        time.sleep(0.02)
        clock.begin()
        for _ in range(2):  # a closure that is called twice for its batch runs it forward twice
            clock.begin_forward()
            time.sleep(0.005)
            clock.mark(Mark.FORWARD_END)
            clock.mark(Mark.OPTIMIZER_BEGIN)
            time.sleep(0.005)
        clock.mark(Mark.OPTIMIZER_END)
        clock.finish_step(3, 1, 8, 0)
        clock.drain(wait=True)
    series = read_steps(tmp_path / "rank0.bin", 0)
    assert (series.timeline, len(series.timed())) == ("host", 3)
    assert list(series.rows["samples"]) == [16, 16, 16, 8]
    waits, steps = series.column("data_wait"), series.column("step")
    assert (waits[:3] >= 5).all() and np.isnan(waits[3])
    assert series.column("forward")[3] >= 10 and series.column("optimizer")[3] >= 10
    between = np.diff(series.rows["start_ns"]) / MS - steps[:3]
    assert between[:2] == pytest.approx(0, abs=1e-3) and between[2] >= 20


def test_training_may_finish_steps_while_rows_are_made_and_between(
    tmp_path: Path, made: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    late, pauses = iter(range(3, 6)), list[int]()
    monkeypatch.setattr(step_clock, "_AT_ONCE", 2)
    with closing(StepWriter(tmp_path / "steps.bin")) as writer:
        clock = StepClock(writer, torch.device("cuda", 0))

        def query(event: Event) -> bool:
            if (number := next(late, None)) is not None:
                mark_steps(clock, 1, first=number)
            return True

        monkeypatch.setattr(Event, "query", query)
        clock.begin()
        mark_steps(clock, 3)
        clock.drain(give_way=lambda: pauses.append(writer.rows))
        assert pauses[:2] == [2, 4], "between two pieces of work it may go on"
    assert list(read_steps(tmp_path / "steps.bin", 0).rows["step"]) == list(range(6))


def test_a_mark_is_one_call_of_python(tmp_path: Path) -> None:
    """What stands on the training path is counted, because its time depends on the neighbours."""
    moments = list(Mark)[: Mark.REPLAY_BEGIN]
    called: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        # A library that others imported may be called by the garbage collector meanwhile.
        if event == "call" and frame.f_globals["__name__"].startswith("scalewise."):
            called[frame.f_code.co_name] += 1

    with closing(StepWriter(tmp_path / "steps.bin")) as writer:
        # Of the second the end alone is marked: what else it needs the recording thread makes.
        for clock, made in ((marked_clock(writer, 1), 2), (marked_clock(writer, 257), 0)):
            called.clear()
            sys.setprofile(count)
            try:
                for mark in moments:
                    clock.mark(mark)
                clock.finish_step(257, 0, 1, 0)
            finally:
                sys.setprofile(None)
            # Made anew: the finished step, and the batch that comes.
            assert +called == +Counter(mark=len(moments), finish_step=1, __init__=made)


@pytest.mark.parametrize(("divided", "on_gpu"), [(True, True), (False, True), (False, False)])
def test_what_interrupts_a_step_of_several_batches_belongs_to_none(
    tmp_path: Path, made: list[Event], monkeypatch: pytest.MonkeyPatch, divided: bool, on_gpu: bool
) -> None:
    now = [0]
    monkeypatch.setattr(step_clock.time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0] / 1e9)
    with closing(StepWriter(tmp_path / "rank0.bin")) as writer:
        clock = StepClock(writer, torch.device("cuda", 0) if on_gpu else None)
        clock.begin()
        clock.divides, clock._ends_alone = divided, not divided  # as the step before leaves it
        for batch in range(2):  # of 30 ms, 10 ms of which waiting for data, with 1 s between them
            if batch:
                clock.continue_step()
                now[0] += 1000 * MS
                clock.resume_step()
            for mark, after_ms in ((Mark.FETCH_BEGIN, 1), (Mark.FETCH_END, 10)):
                now[0] += after_ms * MS
                clock.mark(mark)
            now[0] += 19 * MS
            clock.mark(Mark.OPTIMIZER_END)
        clock.finish_step(0, 0, 2, 0)
        clock.drain(wait=True)
        pooled = len(clock._pool)
    (row,) = read_steps(tmp_path / "rank0.bin", 0).rows
    assert row["host_step_ms"] == 60
    assert row["device_step_ms"] == 60 if on_gpu else np.isnan(row["device_step_ms"])
    if divided:
        assert [row[f"host_{name}_ms"] for name in ("data_wait", "other")] == [20, 40]
        assert [row[f"device_{name}_ms"] for name in ("data_wait", "other")] == [20, 2]
    assert row["start_ns"] == 1000 * MS, "its batches so far moved to where it went on"
    # All are used again but the last, with which the next begins.
    assert pooled == max(0, len(made) - 1)


def test_a_step_draws_each_phase_once_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def draw(sign: str, name: str) -> str:
        drawn.append(sign + name)
        return name  # a handle

    for name, sign in (("open_range", "+"), ("close_range", "-")):
        monkeypatch.setattr(NvtxClock, name, staticmethod(functools.partial(draw, sign)))
    with closing(StepWriter(tmp_path / "rank0.bin")) as writer:
        clock = NvtxClock(writer, None)
        clock.begin()
        mark_steps(clock, 2)
        clock.paused = True
        clock.mark(Mark.FORWARD_BEGIN)  # draws nothing
        clock.drain(wait=True)
    once = [sign + name for name in PHASES[:-1] for sign in "+-"]
    assert drawn[:15] == ["+step 0", *once, "-step 0", "+step 1"]
    assert drawn[15:] == [*once, "-step 1", "+step 2", "-step 2"], "nothing is left open"

"""Retries and budgets in the engine of this host, with supervisors that only answer."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from fakes.requests import asked
from fakes.settings import job_in
from scalewise import records
from scalewise.gpu import Host, Lease, Leases, Occupancy
from scalewise.records import Cause, CellFolder, DeviceProcess, DeviceSample, Ending, RunningAttempt
from scalewise.supervisor import to_line
from scalewise.sweep import (
    Engine,
    LocalConfig,
    LocalExecutor,
    QueuedCell,
    SupervisorProcess,
    SweepReport,
    worker,
)
from scalewise.sweep.plan import Request, plan
from scalewise.sweep.status import StatusReader
from scalewise.sweep.status_view import Display

GPUS = tuple(records.DeviceInfo("cuda", "NVIDIA H200", f"GPU-{i}", i) for i in range(2))


@dataclass
class Supervisors:
    """Stands in for the start of a supervisor: a process that prints what the test has planned."""

    answers: list[Ending | Cause]
    """One a try: how the cell ends, or what a failed try is recorded to have died of."""
    seconds: float = 0.0
    started: list[tuple[str, tuple[str | None, ...]]] = field(default_factory=list)
    counted: list[dict[str, int]] = field(default_factory=list)
    """Cells in each state at each start, as others read them."""

    def start(self, queued: QueuedCell, lease: Lease) -> SupervisorProcess:
        folder = queued.folder
        self.started.append((queued.cell.planned.name, tuple(slot.uuid for slot in lease.slots)))
        self.counted.append(StatusReader(folder.path.parent).read().count())
        answer = self.answers.pop(0)
        if answer is LOST:
            folder.save_running(RunningAttempt(1, 1.0, lease.slots))
        if not isinstance(answer, Ending):
            number = folder.next_attempt_number()
            code = -9 if answer == "signal" else 1
            answer = folder.save_attempt(Ending("failed", answer, "gone", 0, code, number=number))
        process = subprocess.Popen(
            ["sh", "-c", 'sleep "$2"; printf "%s" "$1"', "_", to_line(answer), str(self.seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        return SupervisorProcess(job_in(folder.path), process)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("scalewise.sweep.preflight.discover", lambda hardware: Host(GPUS, None, {}))
    display = Display(Console(file=(tmp_path / "said").open("w"), width=200))
    return Engine(tmp_path / "sweep", LocalExecutor(LocalConfig(), Occupancy(read=dict)), display)


def run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, supervisors: Supervisors, *overrides: str,
    repeats: int = 1, seeds: Sequence[int] = (0,), more: Sequence[Request] = (),
) -> SweepReport:  # fmt: skip
    typed = ["tracking=none", f"repeats={repeats}", *overrides]
    cells = plan([*(asked(*typed, f"seed={seed}") for seed in seeds), *more], 0)
    monkeypatch.setattr(engine.executor, "start_supervisor", supervisors.start)
    try:
        return engine.run(cells)
    finally:
        engine.display._console.file.close()  # type: ignore[attr-defined]


def said(engine: Engine) -> str:
    return (engine.folder.path.parent / "said").read_text()


DONE = Ending("done")
LOST = Ending("failed", "supervisor_lost", "the supervisor was ended by SIGKILL")


def test_each_cell_that_was_killed_runs_again_after_the_others_of_its_round(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisors = Supervisors(["signal", "signal", *[DONE] * 4])
    assert run(engine, monkeypatch, supervisors, repeats=2, seeds=(1, 2)).count("done") == 4
    first, second, *again = (name for name, _ in supervisors.started)
    assert again[:2] == [first, second] and first != second and "-r0-" in second
    assert all("-r1-" in name for name in again[2:])
    assert supervisors.counted[2] == {"waiting": 4}, "two have failed and are queued again"
    assert "again " in said(engine)
    assert said(engine).count("gone (ended from outside; retry 1 of 1)") == 2


def test_a_cell_that_this_host_cannot_run_is_skipped_and_recorded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = asked("tracking=none", "repeats=1", "strategy=ddp", "strategy.devices=4")
    report = run(engine, monkeypatch, Supervisors([DONE]), more=[wide])
    assert (report.count("done"), report.count("skipped")) == (1, 1)
    ((attempt,),) = [found for _, cell in engine.folder.cells() if (found := [*cell.attempts()])]
    assert (attempt.outcome, attempt.cause) == ("skipped", "host")
    assert attempt.message.startswith("strategy.devices: found 4 with strategy=ddp; allowed: at mo")


@pytest.mark.parametrize(
    ("answers", "retries"),
    [(["signal", "signal"], 1), (["signal"], 0), (["exception"], 3), (["oom"], 3), ([LOST] * 2, 1)],
)
def test_it_fails_for_good_after_its_retries_or_if_none_can_mend_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, answers: list[Any], retries: int
) -> None:
    supervisors = Supervisors(list(answers))
    report = run(engine, monkeypatch, supervisors, f"sweep.retries={retries}")
    assert (report.count("failed"), len(supervisors.started)) == (1, len(answers))
    ((_, folder),) = engine.folder.cells()
    assert len([*folder.attempts()]) == len(answers), "what no supervisor recorded, the engine does"
    assert folder.find_running_attempt() is None
    monkeypatch.setattr(engine, "_loop", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(engine, monkeypatch, supervisors)
    assert engine.report.count("failed") == 1, "as status reads it, whatever ends the sweep"


def test_a_process_that_vanishes_holds_a_cell_up_for_a_moment_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver still lists a process of the last cell when the next one's turn comes."""
    looked: list[float] = []

    def read() -> dict[str, DeviceSample]:
        looked.append(time.monotonic())
        left = (DeviceProcess(4711, 900.0),) if len(looked) == 1 else ()
        return {str(gpu.uuid): DeviceSample(str(gpu.uuid), processes=left) for gpu in GPUS}

    monkeypatch.setattr(engine.executor, "_leases", Leases(Occupancy(read)))
    assert run(engine, monkeypatch, Supervisors([DONE])).count("done") == 1
    assert 0.1 <= looked[1] - looked[0] < 0.45


UNRECORDED = Ending("failed", "disk", "sweep/cell: No space left on device")


def test_what_a_full_disk_loses_is_said(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    began_at: list[float] = []

    def save(folder: CellFolder, ending: Ending) -> Ending:
        began_at.append(time.time() - ending.started_at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CellFolder, "save_attempt", save)
    report = run(engine, monkeypatch, Supervisors([UNRECORDED], seconds=0.9))
    assert 0.9 <= began_at[0] < 60
    assert said(engine).count("start  ") == 1, "once, however often it is looked at"
    assert report.count("failed") == 1
    assert f"failed   {report.cells[0].planned.name}" in said(engine)
    assert UNRECORDED.message in said(engine)


def test_a_cell_that_has_ended_counts_although_nobody_can_be_told(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.display, "ended", Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        run(engine, monkeypatch, Supervisors([DONE]))
    assert engine.report.count("done") == 1


@pytest.mark.parametrize("full", [False, True])
def test_a_rank_that_dies_records_why_and_tells_by_its_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], full: bool
) -> None:
    if full:
        error = OSError(28, "No space left on device")
        monkeypatch.setattr(CellFolder, "save_rank_error", Mock(side_effect=error))
    assert worker._report(CellFolder(tmp_path), 1, ValueError("mine")) == 1
    found = CellFolder(tmp_path).load_rank_error(1)
    assert (found is None) is full and (full or found.message.endswith("ValueError: mine"))
    said = capfd.readouterr().err
    assert "ValueError: mine" in said
    assert ("could not be recorded: [Errno 28]" in said) is full

"""The mirror through its seam to trackers: fakes that fail, hang and miscount."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, call

import pytest

from fakes.recorded import RecordedCell, plan_sweep
from scalewise.records import Alert, PlannedCell, SweepFolder, SweepPlan, TrackerState
from scalewise.tracking import answer, trackio, wandb
from scalewise.tracking.mirror import SweepMirror, open_tracker
from scalewise.tracking.tracker import (
    Row,
    RunInfo,
    RunSummary,
    SweepName,
    Tracker,
    TrackerError,
    TrackerRun,
    server_answers,
)


class ListTracker:
    """Keeps rows in lists; goes wrong where it is told to."""

    def __init__(self) -> None:
        self.runs: dict[str, ListRun] = {}
        self.fault: Callable[[str], None] = lambda call: None
        self.lost: int | None = 0

    def __call__(self, info: RunInfo) -> TrackerRun:
        self.fault("start")
        # By its cell and try: when the sweep began ends each.
        self.runs[info.name.rsplit(maxsplit=2)[0]] = run = ListRun(info, self)
        return run


class ListRun:
    def __init__(self, info: RunInfo, tracker: ListTracker) -> None:
        self.info = info
        self.rows: dict[str, Row] = {}
        self.summary: RunSummary | None = None
        self.alerts: list[Alert] = []
        self._tracker = tracker

    location = "a list"

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._tracker.fault(row.kind)
            if row.alert is not None:
                self.alerts.append(row.alert)
                continue
            assert row.id not in self.rows
            self.rows[row.id] = row

    def finish(self, summary: RunSummary) -> None:
        self._tracker.fault("finish")
        self.summary = summary

    def read_back(self) -> int | None:
        self._tracker.fault("read_back")
        lost = self._tracker.lost
        return None if lost is None else len(self.rows) + bool(self.summary.values) - lost


def fail_at(call: str) -> Callable[[str], None]:
    def fault(now: str) -> None:
        if now == call:
            raise OSError(f"cannot {call}")

    return fault


def poll(mirror: SweepMirror) -> None:
    for tracker in mirror.trackers:
        tracker.poll()


class Bench:
    """A sweep of finished or running cells and a mirror of it into two fakes."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.sweep = plan_sweep(path / "sweep", names)
        self.said: list[str] = []
        self.trackers = {"trackio": ListTracker(), "wandb": ListTracker()}
        self.opened: list[str] = []

    def open(self, name: str) -> Tracker:
        self.opened.append(name)
        return self.trackers[name]

    def mirror(self) -> SweepMirror:
        return SweepMirror(self.sweep.path, self.said.append, self.open)

    def finish(self, mirror: SweepMirror | None = None, timeout_s: float = 30) -> int:
        return (mirror or self.mirror()).run(lambda: timeout_s)

    def cell(self, name: str, steps: int) -> RecordedCell:
        return RecordedCell(self.sweep.cell(name), steps=steps)

    def states(self, name: str) -> dict[str, TrackerState]:
        return dict(self.sweep.cell(name).load_tracking().trackers)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, ["alpha", "beta"])


def test_all_of_a_cell_arrives(bench: Bench) -> None:
    cell = bench.cell("alpha", 40)
    mirror = bench.mirror()
    poll(mirror)
    cell.train(20)
    cell.succeed()
    assert (bench.finish(mirror), bench.said) == (0, [])
    run = bench.trackers["wandb"].runs["alpha"]
    assert len(run.rows) + 1 == cell.expected_rows()
    told = {name.removeprefix("summary/"): value for name, value in run.summary.values.items()}
    assert told == {  # the loss is not finite, so missing
        "global_samples_per_s": pytest.approx(320), "parameters_total": 54403,
        "parameters_trainable": 54403, "world_size": 2, "global_batch_size": 32,
        "per_device_batch_size": 16, "samples_fed": 1920, "steps_completed": 60,
        "duration_s": pytest.approx(6), "peak_allocated_mib": 101, "peak_rss_mib": 500,
    }  # fmt: skip
    began = time.strftime("%m-%d %H:%M", time.localtime(bench.sweep.load_plan().created_at))
    assert (run.info.name, run.info.group) == (f"alpha {began}", f"{began} alpha,beta")
    assert run.info.tags == ("medium", "tabular", "ddp", "fp32", "strong scaling")
    assert not (bench.sweep.cell("beta").path / "tracking.json").exists()


def test_a_tracker_that_does_not_take_the_answer_is_named_and_the_next_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = {"trackio": TrackerError("no server"), "wandb": OSError("it is full")}
    info = SimpleNamespace(tracking=SimpleNamespace(trackers=tuple(faults)))
    monkeypatch.setattr(answer.sys, "argv", ["answer", "sweep"])
    monkeypatch.setattr(answer, "read_answer", lambda _: (info, None))
    monkeypatch.setattr(answer, "open_tracker", lambda name: Mock(side_effect=faults[name]))
    assert answer.main() == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "trackio: no server (" in first and "wandb: OSError: it is full (" in second


@pytest.mark.parametrize(
    ("ended", "said"),
    [((0, b"wandb: noise\nscalewise: see the page\n"), ["see the page"]),
     ((1, b"noise\nscalewise: trackio: full\nnoise\n"), ["trackio: full"]),
     ((1, b"Traceback\nValueError: 7\n"), ["the answer was not handed over: ValueError: 7"]),
     ((-9, b""), ["the answer was not handed over: its process ended with -9"]),
     (None, ["the answer was not handed over within 90 s"])],
)  # fmt: skip
def test_an_answer_that_is_not_handed_over_is_said_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, ended: tuple[int, bytes] | None, said: list[str]
) -> None:
    def run(*_: Any, timeout: float, **__: Any) -> Any:
        if ended is None:
            raise answer.subprocess.TimeoutExpired("answer", timeout)
        return SimpleNamespace(returncode=ended[0], stderr=ended[1])

    heard: list[str] = []
    monkeypatch.setattr(answer.subprocess, "run", run)
    monkeypatch.setattr(answer, "say", heard.append)
    assert answer.hand_over_answer(Path("sweep")) is (ended is not None and ended[0] == 0)
    assert [one.removeprefix("tracking: ") for one in heard] == said


@pytest.mark.parametrize("call", ["start", "metrics", "system", "finish"])
def test_a_tracker_that_raises_fails_alone(bench: Bench, call: str) -> None:
    bench.trackers["wandb"].fault = fail_at(call)
    for name in ("alpha", "beta"):
        bench.cell(name, 30).succeed()
    assert bench.finish() == 1
    assert bench.said == [
        f"wandb: OSError: cannot {call} (training and the records are not affected)"
    ]
    for name in ("alpha", "beta"):
        states = bench.states(name)
        assert (states["trackio"].status, states["wandb"].status) == ("synced", "failed")
        assert states["wandb"].problem == f"OSError: cannot {call}"


@pytest.mark.parametrize(
    ("lost", "fault", "status", "problem"),
    [(0, "read_back", "incomplete", "OSError: cannot read_back"), (None, "", "synced", None),
     (3, "", "incomplete", "rows were handed over and")],
)  # fmt: skip
def test_rows_are_counted_by_the_tracker(
    bench: Bench, lost: int | None, fault: str, status: str, problem: str | None
) -> None:
    bench.trackers["wandb"].lost = lost
    bench.trackers["wandb"].fault = fail_at(fault)
    cell = bench.cell("alpha", 30)
    cell.succeed()
    assert bench.finish() == (status != "synced")
    state, rows = bench.states("alpha")["wandb"], cell.expected_rows()
    assert (state.status, state.handed_over) == (status, rows)
    assert state.read_back == (None if fault or lost is None else rows - lost)
    assert (problem or "") in (state.problem or "")
    assert bench.states("alpha")["trackio"].status == "synced"


def test_a_tracker_that_hangs_is_left_behind(bench: Bench) -> None:
    never = threading.Event()
    bench.trackers["wandb"].fault = lambda call: never.wait() and None
    bench.cell("alpha", 30).succeed()
    began = time.monotonic()
    assert bench.finish(timeout_s=1) == 1
    assert time.monotonic() - began < 5
    assert bench.said == ["wandb: did not take everything within 1 s"]
    states = bench.states("alpha")
    assert (states["trackio"].status, states["wandb"].status) == ("synced", "incomplete")
    never.set()


def test_only_the_tracker_that_lacks_something_is_done_again(bench: Bench) -> None:
    bench.trackers["wandb"].fault = fail_at("metrics")
    bench.cell("alpha", 30).succeed()
    assert bench.finish() == 1
    bench.trackers["wandb"].fault = lambda call: None
    bench.opened.clear()
    assert (bench.finish(), bench.opened) == (0, ["wandb"])
    assert {s.status for s in bench.states("alpha").values()} == {"synced"}
    bench.opened.clear()
    assert (bench.finish(), bench.opened) == (0, [])


def test_a_retry_is_another_run(bench: Bench) -> None:
    first = bench.cell("alpha", 30)
    mirror = bench.mirror()
    poll(mirror)
    first.fail()
    poll(mirror)
    second = bench.cell("alpha", 50)
    poll(mirror)
    second.succeed(attempt=2)
    assert bench.finish(mirror) == 0
    runs = bench.trackers["trackio"].runs
    assert sorted(runs) == ["alpha", "alpha try 2"]
    failed, retried = runs["alpha"], runs["alpha try 2"]
    assert failed.info.run_id != retried.info.run_id
    assert failed.summary is not None and retried.summary is not None
    assert (failed.summary.state, failed.summary.config["outcome"]["cause"]) == ("failed", "oom")
    assert len(failed.rows) + 1 == first.expected_rows()
    assert len(retried.rows) + 1 == second.expected_rows()


def planned(*typed: str, names: Sequence[str] = (), repeats: int = 1) -> tuple[PlannedCell, ...]:
    """Cells of ``net`` and of ``names``, each with what was typed."""
    return tuple(
        PlannedCell(f"{i:02x}{place:06x}ff", "c", f"{name}-r{repeat}-{i:02x}{place:06x}",
                    tuple(words.split()), repeat, 1)
        for place, name in enumerate(names or ["net-digits-single"])
        for repeat in range(repeats) for i, words in enumerate(typed)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "about", "runs"),
    [
        (planned("batch_size=8 optimizer=adam seed=1", "batch_size=8 optimizer=sgd seed=2"),
         "net by optimizer,seed", ["net optimizer=adam seed=1", "net optimizer=sgd seed=2"]),
        (planned("", names=["gpt2-stdlib-ddp2", "medium-tabular-single"], repeats=2),
         "gpt2,medium", ["gpt2 stdlib ddp2", "gpt2 stdlib ddp2 r1",
                         "medium tabular single", "medium tabular single r1"]),
        (planned("", names=[f"{one}-digits-ddp2" for one in "abcdef"]), "a,b,c,+3", [*"abcdef"]),
        # Nothing that was typed tells them apart.
        (planned("", ""), "net", ["net 00000000", "net 01000000"]),
    ],
)  # fmt: skip
def test_runs_are_called_by_what_was_swept(
    tmp_path: Path, cells: tuple[PlannedCell, ...], about: str, runs: list[str]
) -> None:
    sweep = SweepFolder(tmp_path / "2026-11-23_14-05-09-ab12")
    called = SweepName.of(sweep, SweepPlan(0.0, ("train.py",), 0, cells))
    assert str(called) == f"11-23 14:05 {about}"
    assert [called.run(cell.name, 1) for cell in cells] == [f"{one} 11-23 14:05" for one in runs]
    assert called.run(cells[0].name, 2) == f"{runs[0]} try 2 11-23 14:05"
    seeds = {called.rows[cell.name][0] for cell in cells}
    assert not any("seed" in row or " r1" in row for row in seeds)


def test_a_cell_run_again_has_a_run_of_another_name(bench: Bench) -> None:
    bench.cell("alpha", 30).succeed()
    assert bench.finish() == 0
    old = bench.trackers["wandb"].runs["alpha"].info
    bench.sweep.cell("alpha").set_aside()
    bench.cell("alpha", 40).succeed()
    assert bench.finish() == 0
    assert bench.trackers["wandb"].runs["alpha again 1"].info.run_id != old.run_id


def test_a_retry_that_overtakes_the_mirror_is_said(bench: Bench) -> None:
    first = bench.cell("alpha", 30)
    mirror = bench.mirror()
    poll(mirror)
    first.train(30)
    first.fail()
    second = bench.cell("alpha", 50)
    second.succeed(attempt=2)
    assert bench.finish(mirror) == 1
    assert any("a retry began before all its records were mirrored" in s for s in bench.said)
    assert len(bench.trackers["wandb"].runs["alpha try 2"].rows) + 1 == second.expected_rows()
    assert {s.status for s in bench.states("alpha").values()} == {"synced"}


def test_a_cell_that_never_ended_is_incomplete(bench: Bench) -> None:
    bench.cell("alpha", 30).close()
    assert bench.finish() == 1
    for state in bench.states("alpha").values():
        assert (state.status, state.handed_over) == ("incomplete", state.read_back)
        assert state.problem == "the cell had not ended when the mirror did"


def test_a_broken_record_is_said_once(bench: Bench) -> None:
    cell = bench.cell("alpha", 30)
    cell.close()
    (cell.folder.path / "result.json").write_text("{")
    bench.cell("beta", 30).succeed()
    mirror = bench.mirror()
    for _ in range(3):
        poll(mirror)
    assert (bench.finish(mirror), len(bench.said)) == (1, 1)
    assert "result.json: cannot be read as JSON" in bench.said[0]
    assert bench.states("beta")["wandb"].status == "synced"


def test_a_sweep_without_a_plan_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    assert (SweepMirror(tmp_path, said.append).run(lambda: 1), len(said)) == (1, 1)
    assert "sweep.json" in said[0]


def test_a_package_that_cannot_be_imported_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scalewise.tracking.wandb", None)
    with pytest.raises(TrackerError, match="the package cannot be imported"):
        open_tracker("wandb")


def test_trackio_gets_every_row_once_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackio, "_MOST_ROWS", 2)
    run = trackio.TrackioRun.__new__(trackio.TrackioRun)
    run._run = {"project": "p", "run": "n", "run_id": "r"}
    run._config, run._config_is_new, run._last_step = {"a": 1}, True, 0
    written: list[list[dict[str, Any]]] = []
    run._write = written.append
    alert = Alert(1.0, "error", "ecc", "GPU-0", "GPU 0: memory errors", "1 of them")
    run.log([
        Row("system", "0", 0.0, 0, {"x": 0}), Row("metrics", "1", 0.0, 1, {"x": 1}),
        Row("metrics", "2", 0.0, 2, {"x": 2}), Row("alert", "3", 0.0, 3, {}, alert),
        Row("metrics", "4", 0.0, 4, {"x": 4}),
    ])  # fmt: skip
    assert [len(one) for one in written] == [2, 2, 1]
    system, *metrics, warned, last = (row for one in written for row in one)
    assert (system["kind"], system["log_id"]) == ("system_metric", "r:0")
    told = [(row["step"], row["log_id"], row["config"]) for row in (*metrics, last)]
    assert told == [(1, "r:1", {"a": 1}), (2, "r:2", None), (4, "r:4", None)]
    assert (warned["alert_id"], warned["title"], warned["level"]) == ("r:3", alert.title, "error")


def wandb_run(**options: Any) -> tuple[Mock, wandb.WandbRun]:
    """What WandB's own run is told, and our side of it."""
    run = Mock(url="https://wandb/p/r", path="e/p/r")
    run.settings.sync_file = "/sweep/wandb/offline-run-r/run-r.wandb"
    return run, wandb.WandbRun(run, **{"mode": "online", **options})


def test_wandb_gets_each_series_on_its_own_axis_and_how_it_ended() -> None:
    alert = Alert(1.0, "error", "ecc", "GPU-0", "GPU 0: memory errors", "1 of them")
    run, ours = wandb_run()
    ours.log([
        Row("metrics", "1", 5.0, 3, {"loss": 1.0}), Row("system", "2", 6.0, 0, {"power_w": 9.0}),
        Row("alert", "3", 6.5, 3, {}, alert), Row("metrics", "4", 7.0, 2, {"loss": 0.5}),
    ])  # fmt: skip
    assert run.define_metric.call_args_list == [
        call("step", hidden=True), call("loss", step_metric="step"),
        call("gpu/time", hidden=True), call("power_w", step_metric="gpu/time"),
    ]  # fmt: skip
    run.alert.assert_called_once_with(alert.title, alert.text, "ERROR", wait_duration=0.001)
    for state, status in (("finished", 0), ("failed", 1)):
        ours.finish(RunSummary(cast(Any, state), {"summary/x": 2.0} if status else {}, {}))
        run.finish.assert_called_with(exit_code=status)
    logged = [one.args[0] for one in run.log.call_args_list]
    assert logged.pop().items() >= {"summary/x": 2.0, "step": 3.0}.items()
    assert logged == [
        {"loss": 1.0, "step": 3.0, "_timestamp": 5.0},
        {"power_w": 9.0, "gpu/time": 6.0, "_timestamp": 6.0},
        {"loss": 0.5, "step": 2.0, "_timestamp": 7.0},
    ]


@pytest.mark.parametrize(
    ("options", "last_rows", "found", "slept", "location"),
    [({}, (1, 1), 2, 0, "https://wandb/p/r"), ({}, (-1, 0, 1), 2, 2, "https://wandb/p/r"),
     ({}, (0,), 1, 50, "https://wandb/p/r"),  # lost: nobody waits longer than 10 s
     ({"mode": "offline"}, (), None, 0, "/sweep/wandb/offline-run-r"),
     ({"mode": "offline", "away": True}, (), "cannot be reached", 0, None)],
)  # fmt: skip
def test_wandbs_server_is_asked_until_it_has_the_rows(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], last_rows: tuple[int, ...],
    found: Any, slept: int, location: str | None,
) -> None:  # fmt: skip
    waits, told = list[float](), list(last_rows)
    monkeypatch.setattr(wandb, "now", lambda: round(sum(waits), 3))
    monkeypatch.setattr(wandb, "sleep", waits.append)
    server = Mock()
    server.run.side_effect = lambda path: SimpleNamespace(
        lastHistoryStep=told.pop(0) if len(told) > 1 else told[0]
    )
    monkeypatch.setattr(wandb.wandb, "Api", lambda timeout: server)
    _, ours = wandb_run(**options)
    ours.log([Row("metrics", str(i), 0.0, i, {"x": 1.0}) for i in range(2)])
    if isinstance(found, str):
        with pytest.raises(TrackerError, match=found):
            ours.read_back()
    else:
        assert (ours.read_back(), len(waits), ours.location) == (found, slept, location)


@pytest.mark.parametrize(
    ("url", "proxy", "asked"),
    [("http://own.org", None, ("own.org", 80)), ("https://own.org/path", None, ("own.org", 443)),
     ("http://own.org:8080", None, ("own.org", 8080)), ("https://own.org", "https_proxy", None)],
)  # fmt: skip
def test_a_server_is_asked_at_its_port_and_behind_a_proxy_not_at_all(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None, asked: Any
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if proxy is not None:
        monkeypatch.setenv(proxy, "http://proxy:3128")
    listens = Mock(return_value=False)
    monkeypatch.setattr("scalewise.tracking.tracker.listens", listens)
    assert server_answers(url, 1.0) is (proxy is not None)
    assert [one.args[:2] for one in listens.call_args_list] == ([] if asked is None else [asked])

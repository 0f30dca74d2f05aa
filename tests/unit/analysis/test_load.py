"""A damaged record is a problem in words, never a crash."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, swept, write_sweep
from fakes.sections import values
from fakes.step_files import BLOCK_BYTES
from scalewise import records
from scalewise.analysis import analyse, ending_lines, load_sweep
from scalewise.analysis.run import measure_run
from scalewise.records import CellFolder, Ending, RecordError, SweepFolder, write_archive
from scalewise.sweep.status import StatusReader

RECORDS = (
    "result.json", "provenance.json", "config.yaml", "tracking.json", "steps/rank1.bin",
    "metrics/rank0.jsonl", "audit/rank1.npz", "gpu/0123456789ab.jsonl",
)  # fmt: skip


def test_a_sound_cell_has_everything_and_no_problem(tmp_path: Path) -> None:
    sweep = swept(tmp_path, DDP)
    write_archive(tmp_path, packed := tmp_path / "a.zip")
    assert (sweep.archive, sweep.home) == (None, tmp_path)
    assert load_sweep(packed).home == tmp_path / "a"
    cell = sweep.cells[0]
    assert (cell.state, cell.problems) == ("done", ())
    assert ([s.rank for s in cell.steps], len(cell.shards)) == ([0, 1], 2)
    assert (cell.devices[0].source, cell.metrics[0][-1].step) == ("nvml", 60)


def test_states_come_from_the_records(tmp_path: Path) -> None:
    outcomes = ["done", "failed", "skipped", "interrupted", "waiting"]
    specs = [replace(DDP, repeat=i, outcome=o) for i, o in enumerate(outcomes)]
    cells = swept(tmp_path, *specs).cells
    assert [cell.state for cell in cells] == outcomes
    assert ("out of memory" in cells[1].ending.message, cells[0].ending.message) == (True, "")
    write_sweep(tmp_path, [replace(specs[1], outcome="done")])  # a retry that succeeds
    (cell,) = load_sweep(tmp_path).cells
    assert cell.state == "done"


@pytest.mark.parametrize("record", RECORDS)
def test_any_record_cut_or_garbled_anywhere_is_only_a_problem(tmp_path: Path, record: str) -> None:
    rng = random.Random(record)
    path = write_sweep(tmp_path, [Spec(), DDP])
    victim = next(path.glob("001-*")) / record
    data = victim.read_bytes()
    damaged = [data[:n] for n in (0, 1, 10, len(data) // 2, len(data) - 1)]
    damaged += [b"[]\n", b"\x00\xff\xfe" * 50, b'{"schema_version": 99}\n']
    for _ in range(4):
        garbled = bytearray(data)
        for _ in range(3):
            garbled[rng.randrange(len(data))] = rng.randrange(256)
        damaged.append(bytes(garbled))
    for content in damaged:
        victim.write_bytes(content)
        sweep = load_sweep(path)
        assert sweep.cells[0].problems == ()
        analyse(sweep)
    victim.write_bytes(b"\x00\n")
    assert load_sweep(path).cells[1].problems


@pytest.mark.parametrize("record", ["provenance.json", "config.yaml", "steps/rank1.bin"])
def test_a_missing_record_is_said(tmp_path: Path, record: str) -> None:
    path = write_sweep(tmp_path, [DDP])
    (next(path.glob("000-*")) / record).unlink()
    problems = " ".join(load_sweep(path).cells[0].problems)
    assert "rank 1" in problems if "rank1" in record else record in problems


def test_a_lost_plan_still_finds_the_cells(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP, replace(DDP, repeat=3, outcome="failed")])
    (path / "sweep.json").write_text("not json")
    sweep = load_sweep(path)
    *_, failed = sweep.cells
    name = failed.path.name
    assert len(sweep.cells) == 3
    assert failed.planned == records.PlannedCell(name, name, name, (), 0, None)
    assert "plan is lost" in " ".join(sweep.problems)
    assert len(analyse(sweep).pairs) == 1


def test_wrong_input_is_no_advice_any_more_once_it_is_done_with_more_typed(tmp_path: Path) -> None:
    anew = replace(DDP, typed=("strategy.x=1",), config={"x": 1})
    for cause, asked, is_mended in (("config", "x", 1), ("config", "y", 0), ("oom", "x", 0)):
        path = write_sweep(tmp_path / cause / asked, [replace(DDP, outcome="failed"), anew])
        (attempt,) = path.glob("*/attempts/1.json")
        ending = {"cause": cause, "message": f"strategy.{asked}: found 0"}
        attempt.write_text(json.dumps(json.loads(attempt.read_text()) | ending))
        failed, done = load_sweep(path).cells
        for told in (failed, StatusReader(path).read().cells[0]):
            assert (done.planned.name in told.ending.message) == is_mended


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_with_nothing_in_it_is_one_clear_error(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "empty"
    if exists:
        path.mkdir()
    with pytest.raises(RecordError, match="give the folder of a sweep"):
        load_sweep(path)


@pytest.mark.parametrize("packed", [False, True])
def test_of_several_sweeps_together_it_names_one_to_give(tmp_path: Path, packed: bool) -> None:
    given = tmp_path / "multirun"
    for name in ("first", "last"):
        write_sweep(given / name, [Spec()])
    if packed:
        given = Path(shutil.make_archive(str(tmp_path / "two"), "zip", given))
    with pytest.raises(RecordError, match=r"found 2 sweeps .* last;") as caught:
        load_sweep(given)
    assert str(given) in str(caught.value)
    assert ("unpack" in str(caught.value)) == packed


def test_a_damaged_attempt_keeps_the_ones_before_it(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [replace(DDP, outcome="failed")])
    (CellFolder(next(path.glob("000-*"))).path / "attempts" / "2.json").write_text("{")
    cell = load_sweep(path).cells[0]
    assert (cell.state, len(cell.attempts)) == ("interrupted", 1)
    assert "2.json" in cell.problems[0]


def test_lost_and_zeroed_step_rows_are_said_and_zeroed_ones_not_used(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [DDP])
    _, folder = next(SweepFolder(path).cells())
    lost, zeroed = folder.steps_path(0), folder.steps_path(1)
    lost.write_bytes(lost.read_bytes()[: -10 * BLOCK_BYTES])
    rows = bytearray(zeroed.read_bytes())
    rows[-3 * BLOCK_BYTES :] = bytes(3 * BLOCK_BYTES)
    zeroed.write_bytes(rows)
    cell = load_sweep(path).cells[0]
    assert any("50 of 60 step rows are there" in problem for problem in cell.problems)
    assert any("impossible length" in problem for problem in cell.problems)
    assert [series.rank for series in cell.steps] == [0]


def test_a_loss_of_too_few_or_too_many_rows_is_missing_and_says_why(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    (_, folder), _ = SweepFolder(path).cells()
    whole = measure_run(load_sweep(path).cells[0])
    assert whole.value("loss_reached") is not None
    rows = folder.metrics_path(0).read_text().splitlines(keepends=True)
    folder.metrics_path(0).write_text("".join(rows[:2]))
    sweep = load_sweep(path)
    said = "metrics/rank0.jsonl: 2 of 12 rows are there"
    assert sweep.cells[0].problems == (said,)
    run = measure_run(sweep.cells[0])
    assert (run.value("loss_reached"), run.missing["loss"]) == (None, said)
    assert run.samples_per_s == whole.samples_per_s
    folder.metrics_path(0).write_text("".join([*rows, rows[0]]))
    cell = load_sweep(path).cells[0]
    assert cell.problems == ("metrics/rank0.jsonl: 13 rows are there, of 12 that its rank wrote",)
    assert measure_run(cell).value("loss_reached") is None
    folder.metrics_path(0).unlink()
    assert "0 of 12 rows are there" in load_sweep(path).cells[0].problems[0]


def test_a_result_of_another_cell_is_a_fault_and_the_cell_not_done(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    (own, mine), (other, theirs) = SweepFolder(path).cells()
    shutil.copy(theirs.path / "result.json", mine.path / "result.json")
    shutil.copy(theirs.steps_path(0), mine.steps_path(0))
    cell = load_sweep(path).cells[0]
    fault = f"result.json: result of cell {other.cell_id}; that of cell {own.cell_id} was expected"
    assert ((cell.result, cell.state), cell.problems) == ((None, "interrupted"), (fault,))
    assert cell.ending.message == f"it ended, but its result cannot be used: {fault}"
    assert not mine.find_result(own.cell_id)


LINE = '{"time": 1, "step": 70, "epoch": 0, "samples": 9, "values": {"train_loss": %s}}\n'


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999"])
def test_a_number_not_finite_is_a_fault_of_its_cell_alone(tmp_path: Path, number: str) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    (_, first), (_, second) = SweepFolder(path).cells()
    with first.metrics_path(0).open("a") as file:
        file.write(LINE % number)
    sampled = second.device_series_paths()[0]
    sampled.write_text(
        sampled.read_text().replace('"temperature_c": 55.0', f'"temperature_c": {number}')
    )
    sweep = load_sweep(path)
    assert f"line 13: not JSON: found {number}" in sweep.cells[0].problems[0]
    assert f"found {number}; allowed: finite numbers" in sweep.cells[1].problems[0]
    shown = values(analyse(sweep), "resources", "resources", "configuration")
    assert shown == ["large single x1", "large ddp x2"]
    result = first.path / "result.json"
    for key in ("peak_rss_mib", "train_loss"):
        whole = result.read_text()
        result.write_text(re.sub(rf'("{key}": )[^,\n}}]+', rf"\g<1>{number}", whole))
        cell = load_sweep(path).cells[0]
        assert cell.result is None, key
        assert f"found {number}" in cell.problems[0]
        result.write_text(whole)


def test_half_a_configuration_is_a_fault_though_it_is_yaml(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    (_, folder), _ = SweepFolder(path).cells()
    config = folder.path / "config.yaml"
    text = config.read_text()
    config.write_text(text[: text.index("strategy:")])
    sweep = load_sweep(path)
    assert sweep.cells[0].config is None
    (said,) = sweep.cells[0].problems
    assert said.startswith("config.yaml: cut off: strategy, ")
    assert sweep.cells[1].problems == ()
    analyse(sweep)


# The line that raised, read from tracebacks, and the log beside it.
BOOM = Ending("failed", "exception", "boom", 1, 1, number=1)
THEIRS = '  File "/home/user/project/my_model.py", line 12, in training_step\n    loss = f(x)\n'
TORCH = (
    '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward\n'
)
OURS = '  File "/venv/lib/python3.11/site-packages/scalewise/train/fit.py", line 7, in run\n'
STOPPING = '  File "/site-packages/pytorch_lightning/callbacks/early_stopping.py", line 9, in f\n'
CHECKOUT = '  File "/opt/scalewise/src/scalewise/models/mlp.py", line 40, in forward\n'
HEAD = "Traceback (most recent call last):\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (HEAD + OURS + THEIRS + TORCH + "ValueError: boom", "/home/user/project/my_model.py:12"),
        (HEAD + OURS + "ValueError: boom", OURS.split('"')[1] + ":7"),
        (HEAD + OURS + CHECKOUT, "/opt/scalewise/src/scalewise/models/mlp.py:40"),
        (HEAD + CHECKOUT + TORCH + "ValueError: boom", None),
        (HEAD + THEIRS + CAUSED + HEAD + OURS + TORCH, "/home/user/project/my_model.py:12"),
        (HEAD + OURS + THEIRS + STOPPING, "/home/user/project/my_model.py:12"),
        (HEAD + OURS + STOPPING + "RuntimeError: no such metric", None),
        ("Killed", None),
    ],
)
def test_the_innermost_line_of_the_user_is_named(text: str, at: str | None) -> None:
    assert records.line_that_raised(text) == at


def test_the_log_is_found_where_a_later_try_has_moved_it(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    assert folder.find_log(BOOM) is None
    log = folder.log_path(1, "err")
    log.parent.mkdir()
    log.touch()
    assert folder.find_log(BOOM) == log
    folder.log_path(1, "out").write_text("it was said here")
    assert folder.find_log(BOOM) == folder.log_path(1, "out")
    moved = tmp_path / "attempts" / "1.logs" / "rank1.err"
    moved.parent.mkdir(parents=True)
    moved.touch()
    assert folder.find_log(BOOM) == moved
    assert folder.find_log(replace(BOOM, outcome="skipped")) is None


def test_cells_that_ended_alike_are_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    at = f"{tmp_path}/my_model.py"
    frames = (
        f'  File "{at}", line 3, in fit',
        "    step()",
        f'  File "{at}", line 12, in f',
        "    x.y",
    )
    ending = replace(BOOM, raised_at=f"{at}:12", last_lines=frames)
    log = tmp_path / "sweep" / "a" / "logs" / "rank1.err"
    skipped = Ending("skipped", "host", "no second device")
    cells = [*((name, ending, log) for name in ("a", "b", "c")), ("d", skipped, None)]
    assert list(ending_lines(cells)) == [
        "failed: a, b and 1 more: boom",
        "  raised at my_model.py:12: x.y",
        "  log: sweep/a/logs/rank1.err",
        "skipped: d: no second device",
    ]

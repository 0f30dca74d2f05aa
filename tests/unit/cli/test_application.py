"""What holds for every ``scalewise`` command, and every exit status."""

import dataclasses
import logging
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import scalewise.analysis
import scalewise.report
import scalewise.tracking
from fakes.kept_sweep import kept
from fakes.recorded import RecordedCell, Spec, plan_sweep, write_sweep
from scalewise.analysis.comparability import FACTORS
from scalewise.cli import hydra_main, main
from scalewise.cli.application import application
from scalewise.cli.exits import Exit
from scalewise.doctor import Plan
from scalewise.host import seal
from scalewise.records import CellFolder, Ending, State, SweepFolder, SweepPlan
from scalewise.sweep import SweepReport, sweep_folder

SMALL = kept("h200x2_small")
DOCS = Path(__file__).resolve().parents[3] / "docs"
CORPORA = ("fineweb_edu", "openwebtext", "tinystories")


def scalewise_process(words: Sequence[str], stdout: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scalewise", *words], stdout=stdout, stderr=subprocess.PIPE,
        text=True, check=False, timeout=60, env=os.environ | {"PYTHONUNBUFFERED": ""},
    )  # fmt: skip


@pytest.mark.parametrize("words", [["--help"], ["status", str(SMALL)], ["train", "--help"]])
def test_a_reader_that_has_seen_enough_is_no_error(words: list[str]) -> None:
    """click, rich and Hydra print, each in its own way."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = scalewise_process(words, writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.UNREAD, "")


@pytest.mark.parametrize("words", [["--version"], ["status", str(SMALL)]])
def test_output_without_room_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = scalewise_process(words, full.fileno())
    assert (done.returncode, done.stderr) == (Exit.NOT_SHOWN, "error: No space left on device\n")


def test_help_loads_nothing_that_takes_long() -> None:
    code = (
        "import sys; from scalewise.cli import main; main(['--help']); "
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('scalewise.')}; "
        "sys.exit(str(rooms & {'analysis', 'report', 'sweep', 'doctor', 'train'} or '') or "
        "('torch' in sys.modules or 'hydra' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("name", [name for name in application.commands if name != "train"])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == Exit.DONE
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: scalewise {name} ")
    for choice in {"compare": tuple(FACTORS), "tokenize": CORPORA}.get(name, ()):
        assert choice in said


def test_a_shell_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_SCALEWISE_COMPLETE", "bash_complete")
    for typed, place, completed in (
        ("scalewise re", "1", ["plain,resume", "plain,report"]),
        ("scalewise report --pr", "2", ["plain,--price"]),
    ):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", place)
        main([])
        assert sorted(capsys.readouterr().out.split()) == sorted(completed)
    monkeypatch.delenv("_SCALEWISE_COMPLETE")
    for name in ("COMP_POINT", "HYDRA_FULL_ERROR"):
        monkeypatch.setenv(name, "26")  # all of a line, and what Hydra's run sets goes again
    monkeypatch.setattr("sys.argv", [])
    for typed, found in (("train model=la", "model=large"), ("report model=la", "")):
        monkeypatch.setenv("COMP_LINE", f"scalewise {typed}")
        assert (main(["-sc", "query=bash"]), capsys.readouterr().out.strip()) == (Exit.DONE, found)


def test_what_a_script_may_use_is_what_tools_list() -> None:
    assert dir(scalewise) == ["Monitor", "load", "monitor"]
    found = (getattr(scalewise, name).__module__.split(".")[1] for name in dir(scalewise))
    assert [*found] == ["train", "report", "script"]
    assert scalewise.__version__ and not hasattr(scalewise, "loda")


def test_no_words_get_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == Exit.WRONG_INPUT
    said = capsys.readouterr().out
    places = [said.index(f"\n{job}:") for job in ("Run", "Answer", "Watch", "Trackers", "Data")]
    assert places == sorted(places)
    lines = said[places[0] :].splitlines()
    for name, one in application.commands.items():
        (line,) = (text for text in lines if text.startswith(f"  {name} "))
        assert len(line) <= 80 and line.endswith(one.get_short_help_str(60))
    assert "..." not in "".join(lines)


WRONG = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())["scalewise"]


@pytest.mark.parametrize(("typed", "message"), WRONG.items())
def test_wrong_use_is_one_line(
    typed: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "sweep.json").write_text('{"schema_ver')
    places = {"small": SMALL, "folder": tmp_path / "empty"}
    (tmp_path / "file").touch()
    places |= {name: tmp_path / name for name in ("loop", "torn", "file")}
    assert main(typed.format(**places).split()) == Exit.WRONG_INPUT
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert message.format(**places) in said
    assert not (tmp_path / "x").exists(), "what is refused wrote something before"


@pytest.fixture
def trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would train ends at once, and tells whether saved defaults count."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(hydra_main, "train", lambda defaults=True: Exit.INVALID * defaults)


def test_train_gets_its_words_as_they_are(trains: None) -> None:
    words = ["-m", "--help", "a=1", "--", "-cn", "x", "--dry-run"]
    assert (main(["train", *words]), sys.argv) == (Exit.INVALID, ["scalewise train", *words])


@pytest.mark.parametrize(
    ("words", "says"), [(["-m", "a=1"], True), (["--cfg", "job"], False), (["--dry-run"], False)]
)
def test_only_what_trains_says_what_it_begins_with(
    words: list[str], says: bool, trains: None, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", *words])
    assert capsys.readouterr().err.startswith("prepare ") == says


def recorded(folder: Path, *command: str) -> Path:
    sweep = SweepFolder(folder)
    sweep.save_plan(SweepPlan(1.0, command, 0, (), seal=seal(str(folder.resolve()), *command)))
    return folder


@pytest.fixture
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.usefixtures("own_key", "trains")
@pytest.mark.parametrize("change", ["moved", "other command", "other user", "writable", "no seal"])
def test_a_folder_of_somebody_else_is_no_program(
    tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep").mkdir()
    command = ("train.py", "-m", "hydra.launcher.wrap='touch pwned \x1b[2J'")
    folder = recorded(tmp_path / "sweep", *command)
    assert main(["resume", str(folder)]) == Exit.DONE
    capsys.readouterr()
    plan, key = SweepFolder(folder).load_plan(), tmp_path / "state" / "scalewise" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    if change == "moved":
        folder = folder.rename(tmp_path / "elsewhere")
    elif change == "writable":
        folder.chmod(0o777)
    elif change == "other user":
        key.write_bytes(b"x" * 32)
    elif change == "no seal":
        SweepFolder(folder).save_plan(dataclasses.replace(plan, seal=None))
    else:
        SweepFolder(folder).save_plan(dataclasses.replace(plan, command=(*command, "a=1")))
    assert main(["resume", str(folder)]) == Exit.WRONG_INPUT
    said = capsys.readouterr().err
    assert "it would run: train.py -m 'hydra.launcher.wrap=" in said and "--trust" in said
    assert "\x1b" not in said
    assert main(["resume", str(folder), "--trust"]) == Exit.DONE


@pytest.mark.parametrize(
    ("severities", "lost", "status"),
    [(["note", "warning"], (), 0), (["note", "fault"], (), Exit.FAILED), ([], (1,), Exit.FAILED)],
)
def test_a_fault_or_a_lost_rank_is_the_doctors_status(
    monkeypatch: pytest.MonkeyPatch, severities: list[str], lost: tuple[int, ...], status: int
) -> None:
    findings = [SimpleNamespace(severity=one) for one in severities]
    examine = Mock(return_value=SimpleNamespace(findings=findings, failed_ranks=lost))
    find = Mock(return_value=SimpleNamespace(slots=[1, 2, 3], driver="550"))
    for name, made in (("examine", examine), ("find_devices", find), ("leased", MagicMock())):
        monkeypatch.setattr(f"scalewise.doctor.{name}", made)
    monkeypatch.setattr("scalewise.report.show_doctor", Mock())
    for more in ([], ["--soak", "2", "--devices", "2"]):
        assert main(["doctor", *more]) == status
    asked = [call.args[:3] for call in examine.call_args_list]
    assert asked == [(Plan(), [1, 2, 3], "550"), (Plan(soak_s=2.0), [1, 2], "550")]


@pytest.mark.usefixtures("own_key", "trains")
def test_resume_runs_the_command_of_the_folder(tmp_path: Path) -> None:
    words = ("-m", "devices=1,2", "model.name='a b'", "sweep.extend=3", "sweep.resume=before")
    (tmp_path / "multirun" / "sweep").mkdir(parents=True)
    sweep = tmp_path / "multirun" / "sweep"
    folder = recorded(sweep, "/home/me/train.py", *words, "sweep.doctor=true")
    folder.chmod(0o775)  # its group is this user's
    assert main(["resume", str(folder), "sweep.rerun=failed"]) == 0, "no saved default counts"
    again = [*words[:3], "sweep.rerun=failed", f"sweep.resume={folder}"]
    assert sys.argv == ["/home/me/train.py", *again]
    assert sys.path.pop() == str(tmp_path), "where it was started, beside a user's own model"
    tmp_path.chmod(0o777)
    assert main(["resume", str(folder)]) == 0 and str(tmp_path) not in sys.path, "others' too"
    assert main(["resume", str(folder), "--dry-run"]) == 0
    assert sys.argv == ["/home/me/train.py", *words[:3], "sweep.dry_run=true", again[-1]]
    recorded(sweep, "train.py", "-m", "+model.token=REDACTED", "seed=1")
    assert main(["resume", str(folder), "seed=3"]) == Exit.WRONG_INPUT
    assert main(["resume", str(folder), "+model.token=new"]) == Exit.DONE
    assert sys.argv == ["train.py", "-m", "seed=1", "+model.token=new", f"sweep.resume={folder}"]


@pytest.mark.usefixtures("trains")
def test_a_script_is_resumed_where_it_was_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec(config={"script": {"command": "python t.py"}})
    sweep = str(write_sweep(tmp_path / "multirun/sweep", [spec]))
    assert main(["resume", sweep, "--trust"]) == Exit.WRONG_INPUT
    assert f"started in {tmp_path}; allowed: to resume it from there" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["resume", sweep, "--trust"]) == Exit.DONE


@pytest.mark.usefixtures("own_key", "trains")
@pytest.mark.parametrize("more", ["", "sweep.rerun=all", "hydra/sweeper=optuna"])
@pytest.mark.parametrize("asked", ["ab", "abc"])
def test_cells_of_an_earlier_command_are_counted_when_the_last_one_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    asked: str, more: str,
) -> None:  # fmt: skip
    (folder := tmp_path / "a,b").mkdir()
    plan = SweepFolder(recorded(folder, "train.py", "-m")).load_plan()
    cells = plan_sweep(tmp_path / "planned", "abc").load_plan().cells
    SweepFolder(folder).save_plan(dataclasses.replace(plan, cells=cells))
    swept = SweepReport(folder, {f"id-{name}": Ending("failed") for name in asked})
    monkeypatch.setattr(hydra_main, "sweep_reports", [swept])
    assert main(["resume", str(folder), *more.split()]) == Exit.DONE
    last = shlex.split(capsys.readouterr().err.splitlines()[-1])
    assert (last[:5] == ["1", "cell", "of", "an", "earlier"]) == (asked == "ab" and not more)
    assert last[-1] == f"sweep.resume='{folder}'"


@pytest.mark.usefixtures("own_key", "trains")
def test_a_sweep_whose_name_hydra_would_misread_is_resumed_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "tom's [1], x").mkdir()
    folder = recorded(tmp_path / "tom's [1], x", "train.py", "-m", "hydra.sweep.dir=before")
    assert main(["resume", str(folder)]) == Exit.DONE
    asked = OverridesParser.create().parse_override(sys.argv[-1])
    assert (sys.argv[:-1], asked.value()) == (["train.py", "-m"], str(folder))
    assert sweep_folder(sys.argv[1:]) == str(folder)


@pytest.mark.parametrize("command", [(), ("/home/me/script.py", "3"), ("scalewise", "doctor")])
def test_what_train_did_not_begin_is_not_resumed(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(recorded(tmp_path, *command))]) == Exit.WRONG_INPUT
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {tmp_path}: found the records of ")


def test_ctrl_c_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scalewise.analysis, "load_sweep", Mock(side_effect=KeyboardInterrupt))
    assert main(["report", "anywhere"]) == Exit.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


STATUSES: list[tuple[list[State], bool, Exit]] = [
    (["done"], False, Exit.DONE), (["done"], True, Exit.INVALID),
    (["done", "failed"], True, Exit.FAILED),
    (["done", "failed", "interrupted"], False, Exit.FAILED),
    (["done", "interrupted", "skipped"], False, Exit.INTERRUPTED),
    (["done", "skipped"], False, Exit.SKIPPED), (["done", "skipped"], True, Exit.INVALID),
]  # fmt: skip


@pytest.mark.parametrize(("states", "invalid", "status"), STATUSES)
def test_the_status_of_a_sweep(
    states: list[State], invalid: bool, status: Exit, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = plan_sweep(tmp_path / "sweep", ["alpha"]).path
    swept = SweepReport(path, {str(i): Ending(state) for i, state in enumerate(states)})
    files = SimpleNamespace(problems=(), html=Path("report.html"))
    monkeypatch.setattr(hydra_main, "sweep_reports", [swept])
    monkeypatch.setattr(hydra_main, "_say_where_runs_are", lambda _folder: None)
    monkeypatch.setattr(scalewise.analysis, "load_sweep", lambda folder: folder)
    analysed = SimpleNamespace(invalid=invalid)
    monkeypatch.setattr(scalewise.analysis, "analyse", lambda sweep: analysed)
    told: list[str] = []
    monkeypatch.setattr(scalewise.report, "print_console", lambda *_, **__: told.append("answer"))
    monkeypatch.setattr(scalewise.report, "build", lambda _analysis: files)
    assert hydra_main.report(answers=False) == status
    assert bool(told) == (states != ["done"]), "of what is all done, advise tells alone"
    assert hydra_main.report() == status
    again = {"failed", "interrupted"} & {*states}
    assert ("finish it: scalewise resume " in capsys.readouterr().err) == bool(again)
    hydra_main._interrupted("interrupted")
    assert f"; what is done: scalewise report {path}\n" in capsys.readouterr().err
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(scalewise.report, "build", Mock(side_effect=full))
    if status == Exit.DONE:
        assert hydra_main.report() == Exit.NOT_SHOWN
    monkeypatch.setattr(hydra_main, "sweep_reports", [])
    hydra_main._interrupted("interrupted")
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted", "what is done is unknown"


def test_the_page_lists_every_status() -> None:
    page = (DOCS / "sweeps.md").read_text(encoding="utf-8")
    table = page.partition("| exit status | |")[2].partition("\n\n")[0]
    assert [int(row.split("|")[1]) for row in table.splitlines()[2:]] == sorted(Exit)


def test_a_mirror_of_a_sweep_without_trackers_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)
    monkeypatch.setenv("WANDB_SILENT", "true")
    sweep = plan_sweep(tmp_path / "sweep", ["alpha"])
    none = {"tracking": {"name": "none", "trackers": []}}
    RecordedCell(sweep.cell("alpha"), config=none, steps=20).succeed()
    assert main(["mirror", str(sweep.path)]) == Exit.DONE
    assert "tracking=none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lacks", "has_answer", "status"), [(0, True, 0), (0, False, 1), (1, True, 1)]
)
def test_a_mirror_ends_well_only_where_records_and_answer_have_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: int, has_answer: bool, status: int
) -> None:
    sweep = plan_sweep(tmp_path / "sweep", ["alpha"])
    sweep.report_path.mkdir()
    (sweep.report_path / "results.json").touch()
    monkeypatch.setattr(CellFolder, "load_tracking", lambda cell: "a record")
    monkeypatch.setattr(scalewise.tracking, "main", lambda words: lacks)
    monkeypatch.setattr(scalewise.tracking, "hand_over_answer", lambda folder: has_answer)
    assert main(["mirror", str(sweep.path)]) == status

"""What holds for every subcommand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.cli import application

SMALL = Path(__file__).resolve().parents[2] / "docs" / "results" / "h200x2_small"


@pytest.mark.parametrize("words", [["--help"], ["status", str(SMALL)]])
def test_a_reader_that_has_seen_enough_is_no_error(words: list[str]) -> None:
    """``status`` prints through rich, the list of commands without."""
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; from scalewise.cli import main; sys.exit(main(sys.argv[1:]))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [["--version"], ["status", str(SMALL)]])
def test_output_without_room_is_one_line(words: list[str]) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -m scalewise "$@" >/dev/full', sys.executable, *words],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 74
    assert done.stderr == f"scalewise {words[0]}: No space left on device\n"


def test_the_command_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scalewise", "report", "/nonexist"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("scalewise report: /nonexist: no such folder")


@pytest.mark.parametrize("name", application.COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "train":
        assert callable(
            application.COMMANDS[name].load()
        )  # Hydra's --help is a process's own affair
        return
    with pytest.raises(SystemExit, match="0"):
        application.main([name, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: scalewise {name} ")


def test_a_torn_plan_without_cells_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.json").write_text('{"schema_ver')
    assert application.main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"scalewise report: {tmp_path}/sweep.json: cannot be read as JSON")
    assert error.endswith("; and no cell lies beside it\n")


def test_mirror_takes_the_folder_of_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert application.main(["mirror", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"scalewise mirror: {tmp_path}: found no sweep.json; allowed: the folder of a sweep\n"
    )

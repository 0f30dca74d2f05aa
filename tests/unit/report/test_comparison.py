"""``scalewise compare`` and its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest
from recorded import DDP, Spec, repeats, write_sweep

from scalewise.cli import main

STEADY = [1.0, 1.01, 0.99, 1.005, 0.995]


def sweep(path: Path, factor: float, commit: str) -> str:
    specs = [replace(s, commit=commit) for s in (Spec(), DDP)]
    each = [one for spec in specs for one in repeats(spec, [f * factor for f in STEADY])]
    return str(write_sweep(path, each))


@pytest.fixture
def before(tmp_path: Path) -> str:
    return sweep(tmp_path / "a", 1.0, "aaaaaaaaaaaa")


def test_a_slowdown_beyond_the_limit_exits_with_1_and_the_reason(
    tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    after = sweep(tmp_path / "b", 1.10, "bbbbbbbbbbbb")
    assert main(["compare", before, after, "--factor", "code", "--fail-if", "slower=3%"]) == 1
    said = capsys.readouterr()
    assert "slower by 9.1%" in said.err
    assert "large single x1: slower: 0.91 [0.90, 0.92] from 5 and 5 runs, p = " in said.out
    assert "gate failed" in said.out


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_failed_gate_is_told_where_its_figures_find_no_room(
    tmp_path: Path, before: str, unbuffered: str
) -> None:
    after = sweep(tmp_path / "b", 1.10, "bbbbbbbbbbbb")
    gate = ["compare", before, after, "--factor", "code", "--fail-if"]

    def compared(out: TextIO, limit: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "scalewise", *gate, limit],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )

    no_room = "scalewise compare: standard output: No space left on device\n"
    with Path("/dev/full").open("w") as full:
        failed, passed = compared(full, "slower=3%"), compared(full, "slower=50%")
    assert failed.returncode == 1
    assert failed.stderr.startswith(no_room)
    assert "slower by 9.1%" in failed.stderr
    assert (passed.returncode, passed.stderr) == (74, no_room)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        unread = compared(nobody, "slower=3%")
    assert unread.returncode == 1
    assert unread.stderr == failed.stderr.removeprefix(no_room)


def test_within_the_limit_and_without_a_gate_it_exits_with_0(
    tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    after = sweep(tmp_path / "b", 1.02, "bbbbbbbbbbbb")
    assert main(["compare", before, after, "--factor", "code", "--fail-if", "slower=5%"]) == 0
    assert "gate passed" in capsys.readouterr().out
    assert main(["compare", before, after, "--factor", "code"]) == 0
    assert "gate" not in capsys.readouterr().out


def test_nothing_to_compare_fails_the_gate(tmp_path: Path, before: str) -> None:
    after = sweep(tmp_path / "b", 1.0, "bbbbbbbbbbbb")
    assert main(["compare", before, after, "--factor", "gpu", "--fail-if", "slower=3%"]) == 1


def test_wrong_use_exits_with_2(
    tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", before, before, "--factor", "code", "--fail-if", "slow=3"]) == 2
    assert "allowed: slower=<percent>%" in capsys.readouterr().err
    assert main(["compare", before, str(tmp_path / "nowhere"), "--factor", "code"]) == 2
    assert "no such folder" in capsys.readouterr().err
    for words in ([], [before, before], [before, before, "--factor", "weather"]):
        with pytest.raises(SystemExit) as ended:
            main(["compare", *words])
        assert ended.value.code == 2

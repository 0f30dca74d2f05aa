"""Errors for users are one line each, whatever was typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.cli import main
from scalewise.config import ConfigError, first_line, in_one_line
from scalewise.host import escaped
from scalewise.records import RecordError


@pytest.mark.parametrize("kind", [ConfigError, RecordError])
def test_what_ends_a_line_is_written_as_an_escape(kind: type[Exception]) -> None:
    typed = "a\nb\r\x1b[31m\x00\x85\u2028c"
    assert str(kind(typed)) == r"a\nb\r\x1b[31m\x00\x85\u2028c"
    assert len(str(kind(typed)).splitlines()) == 1


def test_what_is_only_text_stays_as_it_is() -> None:
    text = "Größe — 幅\u3000\\n 'x'"
    assert escaped(text) == text


PAGE = "\n  CUDA error:\tmemory\nCUDA kernel errors might be reported late"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (in_one_line(ValueError("  found 1\n\n   allowed:\t2 ")), "found 1 allowed: 2"),
        (in_one_line(ValueError("found 1\n 2"), at_most=7, with_class=True), "ValueError: found 1"),
        (first_line(RuntimeError(PAGE)), "RuntimeError: CUDA error:\tmemory"),
        (first_line(RuntimeError(PAGE), with_class=False), "CUDA error:\tmemory"),
        (first_line(TimeoutError(" \n"), with_class=False), "TimeoutError"),
        (in_one_line(TimeoutError(" \n"), with_class=True), "TimeoutError"),
    ],
)
def test_what_another_library_says_is_put_on_one_line(said: str, expected: str) -> None:
    assert said == expected


def test_a_path_with_a_newline_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["report"], ["status"]):
        assert main([*command, f"{tmp_path}/no\nsweep"]) == 2
        said = capsys.readouterr().err
        assert said == (
            f"scalewise {command[0]}: {tmp_path}/no\\nsweep: no such folder; give the folder of a "
            "sweep\n"
        )

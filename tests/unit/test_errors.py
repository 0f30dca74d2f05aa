"""Errors for users are one line each, whatever was typed."""

from __future__ import annotations

from collections.abc import Callable
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


def test_what_another_library_says_in_lines_is_put_on_one() -> None:
    error = ValueError("  found 1\n\n   allowed:\t2 ")
    assert in_one_line(error) == "found 1 allowed: 2"
    assert in_one_line(error, at_most=7) == "found 1"
    assert in_one_line(error, at_most=7, with_class=True) == "ValueError: found 1"


def test_of_a_page_of_calls_the_first_line_is_kept() -> None:
    error = RuntimeError("\nCUDA error: out of memory\nCUDA kernel errors might be reported late")
    assert first_line(error) == "RuntimeError: CUDA error: out of memory"
    assert first_line(error, with_class=False) == "CUDA error: out of memory"


@pytest.mark.parametrize("words", [in_one_line, first_line])
@pytest.mark.parametrize("with_class", [True, False])
def test_an_error_that_says_nothing_is_called_by_its_class(
    words: Callable[..., str], with_class: bool
) -> None:
    assert words(TimeoutError(" \n"), with_class=with_class) == "TimeoutError"


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

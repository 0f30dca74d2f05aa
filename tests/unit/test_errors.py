"""Errors for users are one line each, whatever was typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.cli import main
from scalewise.errors import ConfigError, one_line
from scalewise.records import RecordError


@pytest.mark.parametrize("kind", [ConfigError, RecordError])
def test_what_ends_a_line_is_written_as_an_escape(kind: type[Exception]) -> None:
    typed = "a\nb\r\x1b[31m\x00\x85\u2028c"
    assert str(kind(typed)) == r"a\nb\r\x1b[31m\x00\x85\u2028c"
    assert len(str(kind(typed)).splitlines()) == 1


def test_what_is_only_text_stays_as_it_is() -> None:
    text = "Größe — 幅\u3000\\n 'x'"
    assert one_line(text) == text


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

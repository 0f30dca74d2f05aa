"""A pipe has no width; a terminal and ``COLUMNS`` have one."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from scalewise.host import open_console


def test_nothing_is_cut_or_broken_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    pipe = StringIO()
    table = Table()
    table.add_column("configuration")
    table.add_row("a label " * 40)
    console = open_console(pipe)
    console.print(table)
    console.print("word " * 100)
    lines = pipe.getvalue().splitlines()
    assert "a label " * 39 in lines[3]
    assert len(lines) == 6
    assert max(map(len, lines)) < 600  # as long as what they say, not padded to the limit


@pytest.mark.parametrize(("columns", "width"), [("100", 100), ("0", 10_000)])
def test_columns_say_how_wide_a_pipe_is(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert open_console(StringIO()).width == width
    monkeypatch.setattr(Console, "is_terminal", True)
    terminal = StringIO()
    open_console(terminal).print("a word")
    assert terminal.getvalue().startswith("a word")

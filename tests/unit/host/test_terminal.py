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


def test_a_given_width_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert open_console(StringIO()).width == 100


def test_no_columns_at_all_are_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    pipe = StringIO()
    open_console(pipe).print("word " * 100)
    assert len(pipe.getvalue()) >= 499
    monkeypatch.setattr(Console, "is_terminal", True)
    terminal = StringIO()
    open_console(terminal).print("a word")
    assert terminal.getvalue().startswith("a word")

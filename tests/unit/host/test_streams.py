"""Readers, terminals and streams that are gone, and signals that ask politely."""

import os
import pty
import signal
import subprocess
import sys
import time
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scalewise.host import is_unread, open_console, say, tell

LOOP = """
import sys, time
from scalewise.host import interrupt_on_polite_signals
interrupt_on_polite_signals()
try:
    print("ready", flush=True)
    time.sleep(20)
except KeyboardInterrupt:
    time.sleep(0.5)  # what is cleaned up must not be disturbed by a second signal
    {say}
    sys.exit(130)
"""


def loop(say: str = "print('interrupted', flush=True)") -> list[str]:
    return [sys.executable, "-c", LOOP.format(say=say)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_polite_signals_interrupt_once(number: signal.Signals) -> None:
    with subprocess.Popen(loop(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        time.sleep(0.1)
        process.send_signal(number)
        assert process.stdout.read() == "interrupted\n"
    assert process.returncode == 130


def test_nohup_is_heeded() -> None:
    with subprocess.Popen(["nohup", *loop()], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.kill()


def test_a_terminal_that_closes_can_be_written_to() -> None:
    """As it may happen after a session ends: the words go nowhere, the rest is done."""
    read, write = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        end = f"sys.stderr.write('x'); sys.stderr.flush(); __import__('os').write({write}, b'done')"
        os.set_inheritable(write, True)
        os.execv(sys.executable, loop(end))
    os.close(write)
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert os.read(read, 100) == b"done"
    os.close(read)
    assert not is_unread(OSError(5, "a disk's error"))  # somebody reads: it is no stream's


# A pipe has no width; a terminal and ``COLUMNS`` have one.
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
def test_columns_tell_the_width(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert open_console(StringIO()).width == width
    monkeypatch.setattr(Console, "is_terminal", True)
    terminal = StringIO()
    open_console(terminal).print("a word")
    assert terminal.getvalue().startswith("a word")


HOSTILE = "a name\x1b[2J\x1b]0;owned\x07\r\u202e, \x9b31m"


@pytest.mark.parametrize("door", ["say", "tell", "console", "table", "terminal"])
def test_no_door_lets_a_control_character_through(
    door: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text of a record, a lock's holder or an exception; colours of our own stay."""
    stream = StringIO()
    monkeypatch.setattr(Console, "is_terminal", door == "terminal")
    monkeypatch.setenv("TERM", "xterm")
    if door in ("say", "tell"):
        (say if door == "say" else tell)(f"{HOSTILE}\nnext")
    elif door == "table":
        table = Table()
        table.add_column(HOSTILE)
        table.add_row(HOSTILE)
        open_console(stream).print(table)
    else:
        open_console(stream).print(Text(f"{HOSTILE}\nnext", style="red"), soft_wrap=True)
    out = capsys.readouterr()
    shown = stream.getvalue() + out.out + out.err
    assert "a name\\x1b" in shown and "\n" in shown
    ours = shown.replace("\x1b[31m", "").replace("\x1b[0m", "") if door == "terminal" else shown
    assert not set("\x1b\x07\r\u202e\x9b") & set(ours)
    assert door != "terminal" or "\x1b[31m" in shown


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_error_is_broken_where_a_terminal_ends_and_one_line_in_a_pipe(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    path = f"/a/{'b' * 40}"
    say(f"error: batch_size: found 3 beside a module; allowed: 4\n  log: {path}")
    ends = "\n  " if is_terminal else " "
    said = f"error: batch_size: found 3{ends}beside a module; allowed: 4\n  log:{ends}{path}\n"
    assert capsys.readouterr().err == said

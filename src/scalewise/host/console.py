"""Text that is safe to print, and a command whose reader or terminal has gone."""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_BREAKS_THE_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, what else ends a line, and what turns its direction: none of them is meant to
reach a terminal."""


def escaped(text: str) -> str:
    """``text`` with its control characters written as Python does: a newline is ``\\n``."""
    return _BREAKS_THE_LINE.sub(lambda found: repr(found[0])[1:-1], text)


def _escaped_lines(text: str) -> str:
    """As :func:`escaped`, but for its newlines."""
    return "\n".join(map(escaped, text.split("\n")))


def from_here(path: str | Path) -> str:
    """``path`` as it is typed in the working folder, whole where it lies outside."""
    typed, here = Path(path), Path.cwd()
    return str(typed.relative_to(here) if typed.is_relative_to(here) else typed)


def plural(number: int, noun: str) -> str:
    """``noun`` as it stands after ``number``: ``cell`` after 1, else ``cells``."""
    return noun if number == 1 else f"{noun}s"


_POLITE = (signal.SIGTERM, signal.SIGHUP)


def interrupt_on_polite_signals() -> None:
    """Let SIGTERM and SIGHUP do once what Ctrl-C does; ``nohup`` is heeded.

    A terminal that closes is told by its shell and by the kernel: the second signal must not
    disturb what the first one began.
    """
    for number in _POLITE:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in _POLITE:
        # Not SIG_IGN: Python writes an error for a signal that came before and is ignored now.
        signal.signal(number, lambda *_: None)
    silence_unread()
    raise KeyboardInterrupt


def is_unread(error: BaseException) -> bool:
    """Whether it says that whoever read what is printed, or the terminal, is gone."""
    if not isinstance(error, OSError) or error.errno not in (errno.EPIPE, errno.EIO):
        return False
    return any(map(_is_gone, (1, 2)))  # disks and other pipes fail like this too


def silence_unread() -> None:
    """Let standard output and standard error go nowhere, each if nobody reads it any longer."""
    for number in filter(_is_gone, (1, 2)):
        discard(number)


def discard(number: int) -> None:
    """Let a standard stream go nowhere: what it still holds would fail again at the end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def _is_gone(number: int) -> bool:
    poll = select.poll()
    poll.register(number, 0)
    gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return any(event & gone for _, event in poll.poll(0))


_CLAUSE = re.compile(r"(?<=[.,;])(?<!Next,) (?=\S)|(?<=\S) (?=\(|scalewise r\w+ )|(?<=  log:) ")
_PASTED = re.compile(r"^ *(Next|log): |scalewise r(esume|un|eport) ")
_WHOLE = re.compile(r" *(Run|Report|Trackio|WandB|resumes): ")


def rows(text: str, width: int, indent: str = "") -> list[str]:
    """``text`` broken between its clauses, or between words where a clause fits no row.

    What is to be pasted, and the path of a log, stays in one piece. ``indent`` is that of further
    rows; without one, it is what ``text`` has, and two columns at least.
    """
    if _WHOLE.match(text):
        return [text]
    indent = indent or " " * max(2, len(text) - len(text.lstrip()))
    clauses = _CLAUSE.split(text.rstrip())
    if not _PASTED.search(text) and max(map(len, clauses)) > width - len(indent):
        return textwrap.wrap(
            text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    found = clauses[:1]
    for clause in clauses[1:]:
        if len(found[-1]) + 1 + len(clause) <= width:
            found[-1] += f" {clause}"
        else:
            found.append(indent + clause)
    return found


def say(text: str) -> None:
    """Write lines to standard error; where that fails there is nowhere left to say so."""
    try:
        width = shutil.get_terminal_size().columns if sys.stderr.isatty() else _NO_WIDTH
        told = (row for line in text.split("\n") for row in rows(escaped(line), width))
        sys.stderr.write("".join(f"{row}\n" for row in told))
        sys.stderr.flush()
    except OSError:
        discard(2)


def tell(text: str) -> None:
    """Write lines to standard output. Raises OSError where that fails."""
    sys.stdout.write(f"{_escaped_lines(text)}\n")
    sys.stdout.flush()


class _PlainTextConsole(Console):
    """Shows control characters in what it prints, and obeys none; its own colours stay."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "nobody reads")  # rich's own is an exit

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            plain = segment.text if segment.control else _escaped_lines(segment.text)
            yield Segment(plain, segment.style, segment.control)


_NO_WIDTH = 10_000
"""Columns where nothing limits them: lines are as long as what they say."""


def open_console(stream: TextIO | None = None, otherwise: int = _NO_WIDTH) -> Console:
    """A console as wide as the terminal behind ``stream`` (standard output), ``otherwise`` so wide.

    :func:`say`, :func:`tell` and these are the doors through which text is printed: much of it is
    not ours, so its control characters are escaped.

    rich takes a pipe to be 80 columns wide and would break or cut what is longer. ``COLUMNS``
    says how wide it is; 0, as some shells and containers say, is no width.
    """
    console = _PlainTextConsole(file=stream or sys.stdout, highlight=False)
    if console.is_terminal:
        # A width that is set stays when the window is resized.
        if not console.width:
            console.width = shutil.get_terminal_size().columns
    elif not os.environ.get("COLUMNS", "").isdecimal() or not console.width:
        console.width = otherwise
    return console

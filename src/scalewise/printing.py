"""What is printed when there is no room for it: a full disk behind standard output or error."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from scalewise.streams import open_closed_streams

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_NOT_SHOWN = os.EX_IOERR
"""All was done, but standard output could not be written: 74, as sysexits.h has it."""
_READER_GONE = (errno.EPIPE, errno.EIO)


class NotShownError(OSError):
    """Standard output cannot be written; a reader who is gone is a BrokenPipeError as ever."""

    def __str__(self) -> str:
        return f"standard output: {self.strerror}"


class _Output(io.FileIO):
    """Standard output, whose errors say so: the system's name no file."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in _READER_GONE:
                raise
            return self._without_room(data, error)

    def _without_room(self, data: ReadableBuffer, error: OSError) -> int:
        raise NotShownError(error.errno, error.strerror) from error


class _Messages(_Output):
    """Standard error, which stops nothing: there is nowhere left to say that it is full."""

    def _without_room(self, data: ReadableBuffer, error: OSError) -> int:
        return memoryview(data).nbytes  # lost; the next may find room again


def prepare_streams() -> None:
    """Open what is closed, and let standard output and error fail as this module says."""
    open_closed_streams()
    # Other objects stand there where a test or a notebook takes what is printed.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is sys.__stdout__:
        sys.stdout = _reopened(sys.stdout, _Output)
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        sys.stderr = _reopened(sys.stderr, _Messages)


def _reopened(stream: io.TextIOWrapper, raw: type[io.FileIO]) -> io.TextIOWrapper:
    """The same file, encoding and buffering (``python -u``) over another lowest layer."""
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering or stream.write_through,
        write_through=stream.write_through,
    )


def run_and_flush(run: Callable[[], int]) -> int:
    """``run()``, and everything that it printed written.

    ``--help`` ends in a SystemExit, which is raised again. Raises NotShownError or BrokenPipeError
    here, not from the interpreter's last flush.
    """
    try:
        status = run()
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return status


def discard_output() -> None:
    """Let standard output go nowhere from now on: what it holds would fail again at the end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)

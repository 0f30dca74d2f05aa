"""Readers, terminals and streams that are gone, and signals that ask politely."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from scalewise.host import is_unread

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
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        time.sleep(0.1)
        process.send_signal(number)
        assert process.stdout.read() == "interrupted\n"
    assert process.returncode == 130


def test_nohup_is_heeded() -> None:
    with subprocess.Popen(["nohup", *loop()], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
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
        done = (
            f"sys.stderr.write('x'); sys.stderr.flush(); __import__('os').write({write}, b'done')"
        )
        os.set_inheritable(write, True)
        os.execv(sys.executable, loop(done))
    os.close(write)
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert os.read(read, 100) == b"done"
    os.close(read)


def test_what_says_that_nobody_reads() -> None:
    rich = SystemExit(1)
    rich.__context__ = BrokenPipeError()
    assert is_unread(rich)
    assert not is_unread(SystemExit(1))
    assert not is_unread(OSError(5, "a disk's error"))  # somebody reads: it is no stream's

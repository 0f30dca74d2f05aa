"""One connection to one host: the process of a command such as ssh, and its standard streams."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scalewise.sweep.job import Outcome
from scalewise.sweep.order import Order, answer_in, from_line, to_line
from scalewise.sweep.process_tree import end_orphans
from scalewise.sweep.remote_cell import Lost
from scalewise.sweep.ssh import last_said

_END_S = 2.0


class CommandLink:
    """Runs ``command``, gives it an order, and waits for its answer."""

    def __init__(self, host: str, command: Sequence[str], order: Order) -> None:
        self.host = host
        number = "" if order.index == 0 else str(order.index)
        self._errors = Path(order.folder) / f"supervisor{number}.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is the sweep's to handle
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._read = b""
        self._write(to_line(order))

    def answer(self) -> Outcome | Lost | None:
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self._read += self._process.stdout.read() or b""
        told = answer_in(self._read)
        if told is not None:
            return from_line(Outcome, told)
        if self._process.poll() is None:
            return None
        self._read += self._process.stdout.read() or b""
        told = answer_in(self._read)
        if told is not None:
            return from_line(Outcome, told)
        return self._lost(self._process.returncode)

    def _lost(self, code: int) -> Lost:
        """255 is ssh's own: the host cannot be reached. Any other status is of what ran there.

        A shell on that host adds 128 to the number of the signal that ended the supervisor.
        """
        last = last_said(self._errors.read_text(errors="replace"))
        said = f": {last}" if last else ""
        if code == 255:
            return Lost(f"the connection to {self.host} broke{said}")
        number = -code if code < 0 else code - 128
        ended = number in set(signal.Signals)
        how = f"was ended by {signal.Signals(number).name}" if ended else f"exited with {code}"
        return Lost(f"the supervisor on {self.host} {how}{said}", is_host=False)

    def tell(self, line: str) -> None:
        self._write(f"{line}\n".encode())

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def drop(self) -> None:
        assert self._process.stdout is not None
        self.stop()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Where the command runs on this host, as in a container, it may have left ranks.
        end_orphans(self._process.pid)
        self._process.stdout.close()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # it has ended: its answer says how
            self._process.stdin.write(data)
            self._process.stdin.flush()

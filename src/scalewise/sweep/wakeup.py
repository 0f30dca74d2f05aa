"""What a supervisor is told through standard input, and what it sleeps on."""

from __future__ import annotations

import os
import select
import signal


def read_line() -> tuple[bytes, bytes]:
    """The first line of standard input, and what has already come after it."""
    read = b""
    while b"\n" not in read:
        part = os.read(0, 65536)
        if not part:
            raise SystemExit("supervisor: standard input closed before the job was read")
        read += part
    line, _, rest = read.partition(b"\n")
    return line + b"\n", rest


class Wakeup:
    """Waits for a child to end, a SIGTERM, the end of standard input, or a time-out."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's to handle
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.stop_asked = False
        self.sweep_gone = False
        self._told = b""

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Cells that the sweep started beside this one, in the order in which it told of them."""
        # An empty line only says that the sweep is there.
        return tuple(name.decode() for name in self._told.split(b"\n")[:-1] if name)

    def tell(self, data: bytes) -> None:
        """What came through standard input after the job: names of cells, one a line."""
        self._told += data

    def catch_up(self) -> None:
        """Read what the sweep has told by now."""
        while not self.sweep_gone and select.select([0], [], [], 0)[0]:
            self._hear()

    def wait(self, timeout_s: float) -> None:
        watched = [self._read] if self.sweep_gone else [self._read, 0]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if self._read in ready:
            os.read(self._read, 4096)
        if 0 in ready:
            self._hear()

    def _hear(self) -> None:
        data = os.read(0, 65536)
        self.tell(data)
        self.sweep_gone = not data

    def _stop(self, number: int, frame: object) -> None:
        self.stop_asked = True

"""The one process of a sweep that mirrors its records into the trackers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_FINISH_S = 90.0


class Mirror:
    """Runs ``scalewise.tracking.mirror`` beside a sweep.

    It takes idle processor time only, ends with this process whatever happens to it, and every
    line it says about a problem is passed on.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scalewise.tracking.mirror", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._pass_on, name="mirror-stderr", daemon=True)
        self._reader.start()

    def finish(self, timeout_s: float = _FINISH_S) -> None:
        """Let it hand over what is left; says so if it cannot within ``timeout_s``."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"finish\n")
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it is gone already; its exit status says how
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self._say(
                f"tracking: not everything was mirrored within {timeout_s:g} s; "
                "scalewise mirror FOLDER finishes it"
            )
        else:
            if status < 0:
                self._say(
                    f"tracking: the mirror was ended by signal {-status}; "
                    "scalewise mirror FOLDER finishes it"
                )
        self._reader.join(timeout=2)

    def let_go(self) -> None:
        """The sweep was interrupted: it hands over what it can within seconds, and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def abandon(self, deadline: float) -> None:
        """Wait for its end until ``deadline`` of ``time.monotonic``, then end it."""
        try:
            self._process.wait(max(0.5, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=2)

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._say(text)

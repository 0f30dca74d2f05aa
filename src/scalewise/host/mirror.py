"""The process that hands records to trackers while cells or a script of a user's own train."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_FINISH_S = 90.0


class Mirror:
    """Runs ``scalewise.tracking.mirror`` beside this process.

    It takes idle processor time only, ends with this process whatever happens to it, and every
    line it says about a problem is passed on.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._process = subprocess.Popen(
            # -P: a queue.py where the user stands must not replace the library's.
            [sys.executable, "-P", "-m", "scalewise.tracking.mirror", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._pass_on, name="mirror-stderr", daemon=True)
        self._reader.start()

    def finish(self) -> None:
        """Let it hand over what is left; says so if it cannot within :data:`_FINISH_S`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone already; its exit status says how
            self._process.stdin.write(b"finish\n")
            self._process.stdin.close()
        why = f"tracking: not everything was mirrored within {_FINISH_S:g} s"
        if self._ends_within(_FINISH_S):
            why = f"tracking: the mirror was ended by signal {-self._process.returncode}"
        if self._process.returncode < 0:
            self._say(f"{why}; scalewise mirror FOLDER finishes it")

    def let_go(self) -> None:
        """What is recorded broke off: it hands over what it can within seconds, and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def abandon(self, deadline: float) -> None:
        """Wait for its end until ``deadline`` of ``time.monotonic``, then end it."""
        self._ends_within(max(0.5, deadline - time.monotonic()))

    def _ends_within(self, timeout_s: float) -> bool:
        """Whether it ends in time; otherwise it is killed."""
        try:
            self._process.wait(timeout_s)
            return True
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            self._reader.join(timeout=2)

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._say(text)

"""The process that mirrors a monitored run into the trackers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FINISH_S = 90.0


class MirrorProcess:
    """Runs ``scalewise.tracking.mirror`` beside the training, and ends with this process."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            # -P: a queue.py where the user stands must not replace the library's.
            [sys.executable, "-P", "-m", "scalewise.tracking.mirror", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def finish(self) -> bool:
        """Let it hand over what is left; whether it did in time."""
        try:
            self._process.communicate(b"finish\n", timeout=_FINISH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True

    def let_go(self) -> None:
        """The training broke off: it hands over what it can within seconds, and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

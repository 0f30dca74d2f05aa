"""Key presses in a terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType


class Keys:
    """Single key presses, without echo and without Enter."""

    def __enter__(self) -> Keys:
        self._descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def read(self, timeout_s: float) -> str | None:
        """A key pressed within ``timeout_s``; ``q`` when the terminal is gone."""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return None
        return os.read(self._descriptor, 1).decode(errors="replace").lower() or "q"

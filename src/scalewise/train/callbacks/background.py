"""A thread that turns what training left behind into records, off the training path."""

from __future__ import annotations

import threading
from collections.abc import Callable

Drain = Callable[[bool], None]
"""Writes what is ready; with True, waits for what is not."""


class BackgroundDrain:
    """Calls each drain twice a second and when stopped, then once more with ``wait=True``.

    An error in a drain (a full disk, say) stops the thread and is raised by :meth:`check`, on
    the training thread: records that cannot be kept are not silently lost.
    """

    def __init__(self, drains: list[Drain], interval_s: float = 0.5) -> None:
        self._drains = drains
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._draining = threading.Lock()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="scalewise-records", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        if self._error is not None:
            raise self._error

    def flush(self) -> None:
        """Write everything there is by now, and raise what went wrong."""
        self.check()
        with self._draining:
            for drain in self._drains:
                drain(True)

    def stop(self) -> None:
        """Write everything that is left and raise what went wrong."""
        self._stopping.set()
        self._thread.join()
        self.check()
        for drain in self._drains:
            drain(True)

    def abandon(self) -> None:
        """Write what is ready and wait for nothing: training ended by an error of its own."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(self._interval_s)
            try:
                with self._draining:
                    for drain in self._drains:
                        drain(False)
            except BaseException as error:  # handed to the training thread by check()
                self._error = error
                return

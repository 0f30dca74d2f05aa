"""A thread that turns what training left behind into records, off the training path."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import torch


@contextlib.contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Run on ``stream``, with its device current, and restore both afterwards."""
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


GiveWay = Callable[[], None]
"""To be called between two pieces of work, each of which keeps the interpreter from training."""
Drain = Callable[[bool, GiveWay | None], None]
"""Writes what is ready; with True, waits for what is not."""

INTERVAL_S = 0.25  # Between two looks of the thread that writes a rank's records.
_REST = 3.0
"""After each piece the thread rests so many times as long as the piece took. Written in one go, the
rows of half a second of short steps kept a host that launches ahead of its GPU until it was behind:
120 us a step instead of 115. A quarter of the time is enough for the rows of the shortest steps."""
_LEAST_REST_S = 5e-5


class BackgroundDrain:
    """Calls each drain four times a second and when stopped, then once more with ``wait=True``.

    Before them it looks around, if it is told to, however long the drains take.

    The thread's current CUDA device is the rank's own: on a new thread's, 0, it would create a
    second context, which takes 520 MiB, and 0.2 to 0.5 s in which all ranks stand still. An error
    in a drain stops the thread and is raised by :meth:`check`, on the training thread.

    ``device`` is None where no drain reads tensors or events. ``look`` must not take long.
    """

    def __init__(
        self,
        drains: list[Drain],
        interval_s: float = INTERVAL_S,
        device: torch.device | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        self._drains = drains
        self._interval_s = interval_s
        self._look = look
        self._looked_at = 0.0
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        """Somebody waits for the records: no rests now."""
        self._error: BaseException | None = None
        self._worked_s = 0.0  # CPU time of the thread when its present piece of work began
        self._device = device
        self._thread = threading.Thread(target=self._run, name="scalewise-records", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Write everything that is left and raise what went wrong."""
        self.abandon()
        self.check()
        for drain in self._drains:
            drain(True, None)

    def abandon(self) -> None:
        """Write what is ready and wait for nothing: training ended by an error of its own."""
        self._hurry.set()
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(self._interval_s)
            try:
                self._look_around()
                self._worked_s = time.thread_time()
                for drain in self._drains:
                    drain(False, self._give_way)
            except BaseException as error:  # handed to the training thread by check()
                self._error = error
                return

    def _give_way(self) -> None:
        """Leave the interpreter to training for a while, unless it waits for the records."""
        self._look_around()
        self._hurry.wait(max(_LEAST_REST_S, _REST * (time.thread_time() - self._worked_s)))
        self._worked_s = time.thread_time()

    def _look_around(self) -> None:
        now = time.monotonic()
        # Not once training is over: what it looks at may be gone.
        due = now - self._looked_at >= self._interval_s and not self._stopping.is_set()
        if self._look is not None and due:
            self._looked_at = now
            self._look()

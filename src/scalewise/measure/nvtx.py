"""Step and phase ranges for Nsight Systems, from the marks that the step clock takes anyway.

Ranges are opened and closed by handle and not pushed on a stack: the mark of the last gradient
bucket is taken on autograd's thread, and a stack belongs to the thread that pushed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from scalewise.measure.step_clock import StepClock
from scalewise.measure.step_phases import Mark

FOLLOWS: Final[Mapping[Mark, str | None]] = {
    Mark.FETCH_BEGIN: "data_wait",
    Mark.FETCH_END: "h2d",
    Mark.TRANSFER_END: None,
    Mark.FORWARD_BEGIN: "forward",
    Mark.FORWARD_END: None,
    Mark.BACKWARD_BEGIN: "backward",
    Mark.LAST_BUCKET: "exposed_comm",
    Mark.BACKWARD_END: None,
    Mark.OPTIMIZER_BEGIN: "optimizer",
    Mark.OPTIMIZER_END: None,
    Mark.REPLAY_BEGIN: "replay",
}
"""The phase that begins with each mark; None for what counts as ``other``."""


class NvtxClock(StepClock):
    """A step clock that also draws each step and each phase as an NVTX range.

    ``open_range`` and ``close_range`` are torch's; tests pass their own.
    """

    open_range: Callable[[str], Any] = staticmethod(torch.cuda.nvtx.range_start)
    close_range: Callable[[Any], None] = staticmethod(torch.cuda.nvtx.range_end)
    _phase: Any = None
    _whole: Any = None
    _number = 0

    def begin(self) -> None:
        """The next step starts now, and with it its range."""
        super().begin()
        self._close()
        self._whole = self.open_range(f"step {self._number}")

    def mark(self, mark: Mark) -> None:
        """Close the range of the phase that ends here and open that of the next."""
        super().mark(mark)
        if self.paused:
            return
        if self._phase is not None:
            self.close_range(self._phase)
        name = FOLLOWS[mark]
        self._phase = None if name is None else self.open_range(name)

    def finish_step(self, number: int, epoch: int, samples: int, flags: int) -> None:
        """Close the range of this step and open that of the next."""
        super().finish_step(number, epoch, samples, flags)
        self._number = number + 1
        self._close()
        self._whole = self.open_range(f"step {self._number}")

    def drain(self, wait: bool = False, give_way: Callable[[], None] | None = None) -> None:
        """As the clock's; at the end of training the open ranges are closed."""
        super().drain(wait, give_way)
        if wait:
            self._close()

    def _close(self) -> None:
        for handle in (self._phase, self._whole):
            if handle is not None:
                self.close_range(handle)
        self._phase = self._whole = None

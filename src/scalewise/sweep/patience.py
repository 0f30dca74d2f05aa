"""How long a cell waits for devices that others have: ``sweep.foreign_processes``."""

from __future__ import annotations

import time
from collections.abc import Callable

from scalewise.sweep.job import Outcome
from scalewise.sweep.lease import Leases
from scalewise.sweep.plan import Cell


class DeviceWait:
    """Decides about a cell whose devices could not be leased.

    Args:
        note: told once what is waited for.
        clock: seconds.
    """

    def __init__(
        self, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._note = note
        self._clock = clock
        self._since: float | None = None
        self._said = False

    def end(self) -> None:
        """Something could be leased."""
        self._since, self._said = None, False

    def with_(self, cell: Cell, leases: Leases, others_run: bool) -> bool | Outcome:
        """True to wait, False to let others go first, or how the cell ends without a try.

        ``others_run`` tells whether cells of this sweep hold devices that they will give back.
        """
        who = "; ".join(leases.foreign.values())
        if not who:
            if not others_run:
                self._say("waiting: another sweep holds this host's devices")
            return True
        if not leases.foreign_lasts:
            return True
        sweep = cell.request.cell.sweep
        if sweep.foreign_processes != "wait":
            why = f"{who} (sweep.foreign_processes={sweep.foreign_processes})"
            return Outcome("skipped" if sweep.foreign_processes == "skip" else "failed", why)
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since > sweep.foreign_wait_s:
            self.end()
            return Outcome(
                "skipped",
                f"{who}, for longer than sweep.foreign_wait_s={sweep.foreign_wait_s:g}",
            )
        self._say(f"waiting: {who}; sweep.foreign_processes=skip or fail would not wait")
        # Narrower cells may use what others leave.
        return False

    def _say(self, text: str) -> None:
        if not self._said:
            self._said = True
            self._note(text)

"""Alerts for the trackers: those that the sampler recorded, and imbalance across ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scalewise.records import Alert, RecordError
from scalewise.tracking.windows import WindowRow
from scalewise.validation import DataError, build

POOR_CV_PERCENT: Final = 20.0
"""From here on the grade of a balance is poor."""
_PATIENCE: Final = 3
"""Windows in a row (half a second or more each): a checkpoint makes a rank late once."""


class ImbalanceWatch:
    """Says once that the arrival of the ranks stays poorly balanced."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._said = False

    def check(self, when: float, window: WindowRow) -> Alert | None:
        """The alert that this window, ending at Unix time ``when``, gives rise to."""
        cv = window.values.get("balance/arrival_cv_percent")
        self._in_a_row = self._in_a_row + 1 if cv is not None and cv >= POOR_CV_PERCENT else 0
        if cv is None or self._said or self._in_a_row < _PATIENCE:
            return None
        self._said = True
        arrivals = {
            name.removeprefix("balance/rank_").removesuffix("_arrival_ms"): ms
            for name, ms in window.values.items()
            if name.startswith("balance/rank_")
        }
        slowest = max(arrivals, key=lambda rank: arrivals[rank])
        others = [ms for rank, ms in arrivals.items() if rank != slowest]
        late_ms = arrivals[slowest] - sum(others) / len(others)
        return Alert(
            when,
            "warn",
            "imbalance",
            "",
            f"rank {slowest} holds the others back",
            f"arrival CV {cv:.1f} % (poor) over {_PATIENCE} windows in a row: rank {slowest} is "
            f"ready {late_ms:.2f} ms a step after the mean of the others",
        )


def build_alert(path: Path, line: Mapping[str, Any]) -> Alert:
    """The alert in a line of a device series. Raises :class:`RecordError`."""
    try:
        return build(Alert, line["alert"])
    except DataError as error:
        raise RecordError(f"{path}: {error}") from error

"""The cells of a sweep that have ended with a result, as they come."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.sweep.durations import Durations, Measured


class History:
    """Durations of a folder's done cells, and what they tell of others."""

    def __init__(self) -> None:
        self._measured: list[Measured] = []
        self._durations: Durations | None = None

    def add(self, one: Measured) -> None:
        """Another cell has ended."""
        self._measured.append(one)
        self._durations = None

    @property
    def measured(self) -> Sequence[Measured]:
        """Earlier ones first."""
        return self._measured

    @property
    def durations(self) -> Durations:
        """Worked out once for all who ask between the ends of two cells."""
        if self._durations is None:
            self._durations = Durations(self._measured)
        return self._durations

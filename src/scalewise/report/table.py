"""Rows and columns of text, before anybody lays them out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scalewise.analysis.figures import MISSING


@dataclass(frozen=True)
class Table:
    """Headers and rows of text; every row is as long as the headers."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    """Columns to align to the right."""

    def without(self, columns: Iterable[int]) -> Table:
        """The same without some columns."""
        dropped = set(columns)
        kept = [i for i in range(len(self.headers)) if i not in dropped]
        return Table(
            tuple(self.headers[i] for i in kept),
            tuple(tuple(row[i] for i in kept) for row in self.rows),
            frozenset(new for new, old in enumerate(kept) if old in self.numeric),
        )

    def only(self, columns: Iterable[int]) -> Table:
        """The same with the first column, which names the rows, and these."""
        kept = {0, *columns}
        return self.without(i for i in range(len(self.headers)) if i not in kept)

    def without_empty_columns(self) -> Table:
        """The same without columns in which every row is missing."""
        empty = [i for i in range(len(self.headers)) if all(r[i] == MISSING for r in self.rows)]
        return self.without(empty if self.rows else ())

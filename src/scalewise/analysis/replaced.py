"""Runs that took the place of finished ones: ``sweep.rerun`` may pick, and a reader must see it.

A run that is made again, or whose result cannot be read, is not lost: the sweep moves it to
``earlier/<n>`` in the folder of its cell. Nobody can tell from the figures that are left whether
the first ones were disturbed or merely unwelcome, so that they were replaced is said beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.analysis.cells import Cell, Sweep
from scalewise.records import CellFolder

_WHERE = "earlier results lie in earlier/ of their folders"
_WHY = "(sweep.rerun, or a result that could not be read)"
_MOST_NAMED = 6


def replaced_runs(sweep: Sweep) -> list[str]:
    """A line on the runs that replaced finished ones, and one on those that were only removed."""
    again = [(cell, count) for cell in sweep.cells if (count := _earlier_results(cell))]
    new = [_named(cell, count) for cell, count in again if cell.state == "done"]
    none = [_named(cell, count) for cell, count in again if cell.state != "done"]
    found = []
    if new:
        several = f"{len(new)} runs replaced finished ones"
        what = "1 run replaced a finished one" if len(new) == 1 else several
        found.append(f"{what} {_WHY}: {_listed(new)}; {_WHERE}")
    if none:
        several = f"{len(none)} finished runs were set aside {_WHY} and have no new result"
        one = f"1 finished run was set aside {_WHY} and has no new result"
        found.append(f"{one if len(none) == 1 else several}: {_listed(none)}; {_WHERE}")
    return found


def _earlier_results(cell: Cell) -> int:
    folders = (CellFolder(path) for path in (cell.path / "earlier").glob("*"))
    return sum(folder.has_result_file() for folder in folders if folder.name.isdecimal())


def _named(cell: Cell, count: int) -> str:
    return cell.planned.name if count == 1 else f"{cell.planned.name} ({count} times)"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")

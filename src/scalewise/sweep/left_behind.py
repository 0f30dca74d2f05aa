"""What a resumed sweep's command asks for against what its folder has planned.

With other choices than before, a command adds cells to a folder and leaves others of it unfinished.
Both are said before anything runs, and what has no result then is said again at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from scalewise.plurals import plural
from scalewise.records import CellFolder, PlannedCell, SweepFolder
from scalewise.records.batch_search import load_batch_search
from scalewise.records.decision import load_decision
from scalewise.sweep.plan import Cell
from scalewise.sweep.resume import is_done

_NAMED = 5
"""Cells that a line names before it only counts."""


@dataclass(frozen=True)
class LeftCell:
    """A cell of the folder that nobody asked for."""

    planned: PlannedCell
    state: str
    """``done``, how its last try ended, or ``unstarted``."""

    @property
    def unfinished(self) -> bool:
        """Whether it was to run and has come to no end."""
        return self.state in ("interrupted", "unstarted")


def left_behind(folder: SweepFolder, asked: Collection[str]) -> tuple[LeftCell, ...]:
    """The planned cells of ``folder`` whose ids are not ``asked``. Raises RecordError."""
    if not folder.plan_path.exists():
        return ()
    others = [p for p in folder.load_plan().cells if p.cell_id not in asked]
    return tuple(LeftCell(p, _state(folder, p)) for p in others)


def _state(folder: SweepFolder, planned: PlannedCell) -> str:
    cell = folder.cell(planned.name)
    if is_done(folder, planned):
        return "done"
    outcomes = [attempt.outcome for attempt in cell.attempts()]
    if outcomes:
        return str(outcomes[-1])
    # Where the whole sweep was killed, nobody was left to write down how the try ended.
    return "interrupted" if cell.load_running() is not None else "unstarted"


def differences(folder: SweepFolder, cells: Sequence[Cell], staged: bool) -> Iterator[str]:
    """How ``cells`` differ from the plan of a folder that is resumed, a line each; none if not.

    ``staged``: more cells follow from what these show (``strategy`` or ``batch_size=auto``); those
    of an earlier run are then no cells that were left out.
    """
    if not folder.plan_path.exists():
        return
    asked = {cell.planned.cell_id for cell in cells}
    known = {planned.cell_id for planned in folder.load_plan().cells}
    new = [cell.planned.name for cell in cells if cell.planned.cell_id not in known]
    if new:
        total = f"{len(cells)} {plural(len(cells), 'cell')}"
        yield f"new to {folder.path.name}: {len(new)} of {total}: {_names(new)}"
    others = left_behind(folder, asked)
    if staged:
        others = tuple(o for o in others if not _follows(folder.cell(o.planned.name)))
    if others:
        counts = Counter(_words(other) for other in others)
        found = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        total = f"{len(others)} {plural(len(others), 'cell')}"
        yield f"not asked for: {total} of {folder.path.name} ({found})"
    for state in ("interrupted", "failed"):
        named = [other.planned.name for other in others if other.state == state]
        if named:
            yield f"{state} and not asked for: {_names(named)}"


def _follows(cell: CellFolder) -> bool:
    return load_decision(cell.path) is not None or load_batch_search(cell.path) is not None


def _words(other: LeftCell) -> str:
    return "never begun" if other.state == "unstarted" else other.state


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def unfinished(folder: SweepFolder, asked: Collection[str]) -> tuple[str, ...]:
    """What ``folder`` still has to finish although it was not ``asked`` for, with the overrides
    that do; empty where nothing is left."""
    left = [other for other in left_behind(folder, asked) if other.unfinished]
    if not left:
        return ()
    lines = [
        f"left behind: {len(left)} {plural(len(left), 'cell')} of {folder.path} that this command "
        f"did not ask for {'has' if len(left) == 1 else 'have'} no result; finish each with "
        "sweep.resume and what it was planned with:"
    ]
    for other in left[:_NAMED]:
        given = " ".join(other.planned.overrides) or "no override"
        lines.append(f"  {other.planned.name} ({_words(other)}): {given}")
    if len(left) > _NAMED:
        lines.append(f"  and {len(left) - _NAMED} more: scalewise status {folder.path}")
    return tuple(lines)

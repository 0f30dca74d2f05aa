"""Where the mirrors of a sweep's runs stand: in a service, or only in files of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Literal

from scalewise.analysis.cells import Cell
from scalewise.analysis.summary import Analysis
from scalewise.plurals import plural
from scalewise.records import TrackerState
from scalewise.report.gathered import by_text

Where = Literal["online", "offline", "uploaded later", "this machine"]

_WORDS: dict[Where, str] = {
    "online": "on the server, read back from there",
    "offline": "recorded offline, in files of this machine; not uploaded "
    "(scalewise wandb-sync SWEEP_FOLDER uploads them)",
    "uploaded later": "recorded offline and uploaded since",
    "this machine": "in Trackio's files of this machine, read back from there",
}


def standing(analysis: Analysis) -> list[str]:
    """One line for each tracker and place of its runs; those with a problem are not among them."""
    counted: dict[tuple[str, Where], int] = {}
    for cell in analysis.sweep.cells:
        for name, state in _states(cell):
            if state.status == "synced":
                key = (name, where(cell, name, state))
                counted[key] = counted.get(key, 0) + 1
    return [
        f"{name}: {count} {plural(count, 'run')} {_WORDS[place]}"
        for (name, place), count in counted.items()
    ]


def problems(analysis: Analysis) -> list[str]:
    """Mirrors that do not hold what the records hold."""
    found = []
    for cell in analysis.sweep.cells:
        for name, state in _states(cell):
            if state.status != "synced":
                back = "none could be" if state.read_back is None else f"{state.read_back:,}"
                text = (
                    f"{name} {state.status}: {state.handed_over:,} rows handed over, {back} "
                    f"read back; {state.problem or 'no reason given'}"
                )
                found.append((cell.planned.name, text))
    return by_text(found)


def where(cell: Cell, tracker: str, state: TrackerState) -> Where:
    """``synced`` in a record says that every row was read back, not from where."""
    if tracker == "trackio":
        return "this machine"
    if "://" in state.location:
        return "online"
    name = PurePath(state.location).name
    # Beside the cells, wherever the sweep has been moved to; WandB marks what it has uploaded.
    folders = (Path(state.location), cell.path.parent / "wandb" / name)
    sent = any(list(folder.glob("*.wandb.synced")) for folder in folders if folder.is_dir())
    return "uploaded later" if sent else "offline"


def _states(cell: Cell) -> Iterator[tuple[str, TrackerState]]:
    if cell.tracking is not None:
        yield from cell.tracking.trackers.items()

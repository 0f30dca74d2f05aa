"""How long finished cells took, and what of it was start and end, read from their records."""

from __future__ import annotations

from scalewise.records import CellFolder, CellResult, PlannedCell, RecordError, read_heartbeat
from scalewise.sweep.durations import Measured


def duration_of(folder: CellFolder, result: CellResult, workload: str) -> Measured:
    """How long a finished cell took, and how much of it was start and end by its heartbeats."""
    seconds = result.took_s
    start_s, end_s = None, None
    try:
        beats = [read_heartbeat(folder.heartbeat_path(rank)) for rank in range(result.world_size)]
    except RecordError:
        beats = []  # the whole is known all the same
    live = [beat for beat in beats if beat is not None and beat.started_at]
    if live and len(live) == len(beats):
        start_s = _within(max(b.started_at for b in live) - result.started_at, seconds)
        end_s = _within(result.finished_at - max(b.time for b in live), seconds)
    return Measured(result.config_id, seconds, workload, result.world_size, start_s, end_s)


def time_taken(folder: CellFolder, cell: PlannedCell, seconds: float) -> Measured:
    """The same of a cell that has just ended well, which took ``seconds`` by the sweep's clock.

    That is all there is to go by where its folder no longer has the result.
    """
    result = folder.result_of(cell.cell_id)
    if result is None:
        return Measured(cell.config_id, seconds, cell.workload)
    return duration_of(folder, result, cell.workload)


def _within(part_s: float, whole_s: float) -> float | None:
    """None for what the clocks of two hosts cannot tell."""
    return part_s if 0 <= part_s <= whole_s else None

"""How long finished cells took, and what of it was start and end, read from their records."""

from __future__ import annotations

from scalewise.records import CellFolder, CellResult, RecordError, read_heartbeat
from scalewise.sweep.estimate import Measured


def duration_of(folder: CellFolder, result: CellResult, workload: str) -> Measured:
    """How long a finished cell took, and how much of it was start and end by its heartbeats."""
    seconds = result.finished_at - result.started_at
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


def _within(part_s: float, whole_s: float) -> float | None:
    """None for what the clocks of two hosts cannot tell."""
    return part_s if 0 <= part_s <= whole_s else None

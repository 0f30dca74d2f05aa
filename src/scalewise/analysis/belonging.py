"""Whether the records in a cell's folder are its own, and lie under the rank that wrote them.

A file that was copied from another cell or rank is whole and can be read, and its numbers are
wrong. What the ranks counted in the result tells: each function gives the contradiction in words,
empty where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalewise.records import CellResult, MetricRow, Provenance, RankSummary, StepSeries

CLOCK_TOLERANCE_S = 2.0
"""Hosts' clocks differ by less, unless nobody sets them; cells of a sweep lie further apart."""


def foreign_steps(series: StepSeries, rank: RankSummary) -> str:
    """Why these steps are not those this rank counted.

    Of a rank that went on from a checkpoint only its own steps are there, and how many samples
    were fed before is in no record: it can have fed more, never less.
    """
    fed, last = int(series.rows["samples"].sum()), int(series.rows["step"][-1]) + 1
    if last != rank.steps_completed:
        return f"its last step is number {last}, but its rank ended with {rank.steps_completed}"
    resumed = rank.resumed_at_step is not None
    if fed > rank.samples_fed or (fed != rank.samples_fed and not resumed):
        return f"its steps fed {fed:,} samples, but its rank counted {rank.samples_fed:,}"
    return ""


def same_rows(series: Sequence[StepSeries]) -> list[tuple[StepSeries, StepSeries]]:
    """Ranks with the very same rows: no two processes have the same times to the nanosecond."""
    found: list[tuple[StepSeries, StepSeries]] = []
    first: dict[bytes, StepSeries] = {}
    for one in series:
        other = first.setdefault(one.rows.tobytes(), one)
        if other is not one and len(one):
            found.append((other, one))
    return found


def foreign_metrics(rows: Sequence[MetricRow], rank: RankSummary) -> str:
    """Why these metrics are not those this rank ended with. Not finite ones tell nothing."""
    last: dict[str, float | None] = {}
    for row in rows:
        last.update(row.values)
    for name, value in last.items():
        told = rank.metrics.get(name, "none")
        if told is not None and value is not None and told != value:
            said = told if isinstance(told, str) else f"{told:.6g}"
            return f"its last {name} is {value:.6g}, but its rank ended with {said}"
    return ""


def steps_at_another_time(series: StepSeries, result: CellResult) -> str:
    """That its steps lie outside the time in which the cell ran: another's, or a clock was set."""
    starts = (series.rows["start_ns"][[0, -1]] + series.epoch_offset_ns) / 1e9
    return _outside(float(starts[0]), float(starts[1]), "steps", result)


def metrics_at_another_time(
    rows: Sequence[MetricRow], result: CellResult, rank: RankSummary
) -> str:
    """As :func:`steps_at_another_time`. A rank that went on has kept the rows of earlier tries."""
    last = rows[-1].time
    first = last if rank.resumed_at_step is not None else rows[0].time
    return _outside(first, last, "rows", result)


def foreign_config(config: Mapping[str, Any], result: CellResult) -> str:
    """Why this is not the configuration the cell ran with."""
    strategy = config.get("strategy")
    if not isinstance(strategy, Mapping):
        return ""
    name, devices = strategy.get("name"), strategy.get("devices")
    if isinstance(name, str) and name != result.strategy:
        return f"strategy is {name}, but the cell ran with {result.strategy}"
    if isinstance(devices, int) and devices != result.world_size:
        return f"strategy.devices is {devices}, but the cell ran on {result.world_size}"
    return ""


def foreign_provenance(provenance: Provenance, result: CellResult) -> str:
    """Why this was not written by the host of rank 0 for this cell."""
    own = [rank.device for rank in _on_first_host(result.ranks)]
    if len(own) != len(provenance.devices):
        return f"it tells of {len(provenance.devices)} devices, but the cell had {len(own)} there"
    for mine, told in zip(own, provenance.devices, strict=True):
        if (mine.name, mine.uuid) != (told.name, told.uuid):
            found, used = (device.uuid or device.name for device in (told, mine))
            return f"it tells of {found}, but the cell ran on {used}"
    return ""


def _on_first_host(ranks: Sequence[RankSummary]) -> list[RankSummary]:
    """Local ranks count from 0 again on the next host."""
    ordered = sorted(ranks, key=lambda one: one.rank)
    next_host = (i for i, one in enumerate(ordered) if i and one.local_rank == 0)
    return ordered[: next(next_host, len(ordered))]


def _outside(first: float, last: float, what: str, result: CellResult) -> str:
    """``first`` and ``last``: Unix time, as those of the result."""
    early, late = result.started_at - first, last - result.finished_at
    if max(early, late) <= CLOCK_TOLERANCE_S:
        return ""
    apart = f"{early:,.1f} s before it began" if early > late else f"{late:,.1f} s after its end"
    return f"its {what} lie up to {apart}: they are another cell's, or a clock was set"

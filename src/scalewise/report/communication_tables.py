"""What the gradients cost: exposed, overlapped and total, against the doctor's curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scalewise.analysis import (
    Analysis,
    BoundedFigure,
    CellRecords,
    Communication,
    Configuration,
    measured_serial_fraction,
    number,
)
from scalewise.records import CommunicationRecord, RankSummary, to_plain
from scalewise.report.sections import (
    Column,
    Note,
    Read,
    Section,
    Table,
    by_text,
    cut,
    lines,
    section,
    table,
    words,
)
from scalewise.report.study_tables import bounded

_EXPLAINED = {
    "exposed_ms": "*Exposed* is measured in every step of the timed cells: from the last gradient "
    "bucket ready to the end of backward.",
    "total_ms": "*Total* and *overlapped* are measured by a profiler in a cell of its own, whose "
    "times are in no other table. Intervals of collectives are merged, so that streams are not "
    "counted twice; waiting inside a collective is included.",
    "on_against_off_ms": "*On against off* is how much longer a step with reduction takes than one "
    "without, in the profiled cell. It is the exposed part and what comes *before the last "
    "gradient*: computation that runs slower beside a collective, and DDP's scaling and copying of "
    "gradients.",
    "expected_ms": "*Expected* is what the doctor's all-reduce takes for the same buckets with "
    "nothing beside them.",
    "achieved_bus": "Bus bandwidth is bytes x 2(n-1)/n over time: achieved during the *transfer*, "
    "which is each collective on the rank that came to it last (where ranks ran different "
    "ones: all of the rank that waits least), beside computation.",
    "doctor_bus": "The *doctor's* is that of its all-reduce at the mean size of a bucket, alone.",
    "ratio": "*Compute over communication* is forward, backward and optimizer over all of it, by "
    "the profiler's window or the doctor's curve; over what is exposed it is an upper bound.",
    "serial": "*Amdahl's serial fraction* is Karp and Flatt's, of the speedup.",
}

_LONGEST_NAME = 60
"""Letters of a kernel's name: it may have hundreds, most of them types of its arguments."""
_MIB = 2**20


def communication(analysis: Analysis) -> Section:
    costs = _cost_table(analysis)
    said = [text for key, text in _EXPLAINED.items() if key in {c.key for c in costs.columns}]
    return section(
        "communication",
        "Communication",
        costs,
        Note(" ".join(said) if costs.rows else ""),
        lines(_missing_lines(analysis)),
    )


def _cost_table(analysis: Analysis) -> Table:
    def exposed(figure: str) -> Read:
        return lambda row: getattr(row[1].exposed, figure, None)

    def window(figure: str) -> Read:
        return lambda row: getattr(row[1].window, figure, None)

    def mib(row: tuple[Configuration, Communication]) -> float | None:
        return None if row[1].gradient_bytes is None else row[1].gradient_bytes / _MIB

    def serial_fraction(row: tuple[Configuration, Communication]) -> BoundedFigure | None:
        pair = analysis.pair(row[0])
        found = measured_serial_fraction(pair) if pair else None
        return found if isinstance(found, BoundedFigure) else None

    columns = (
        words("configuration", "configuration", lambda row: row[0].label),
        Column("gradients", "gradients", "MiB", mib),
        Column("buckets", "buckets", "", lambda row: row[1].buckets),
        Column("exposed_ms", "exposed", "ms", exposed("mean_ms")),
        Column("waiting_ms", "of it waiting", "ms", exposed("wait_ms")),
        Column("on_against_off_ms", "on against off", "ms", window("cost_ms")),
        Column("slower_ms", "of it before the last gradient", "ms", window("slower_ms")),
        Column("overlapped_ms", "overlapped", "ms", window("overlapped_ms")),
        Column("total_ms", "total", "ms", window("total_ms")),
        Column("transfer_ms", "transfer", "ms", window("transfer_ms")),
        Column("expected_ms", "expected", "ms", lambda row: row[1].expected_ms),
        Column("achieved_bus", "achieved bus", "GB/s", lambda row: row[1].achieved_bus_gb_s),
        Column("doctor_bus", "doctor's bus", "GB/s", lambda row: row[1].doctor_bus_gb_s),
        Column("ratio", "compute over communication", "",
               lambda row: row[1].compute_to_communication),
        words("ratio_of", "of which", lambda row: row[1].against),
        Column("serial", "Amdahl's serial fraction", "", serial_fraction, bounded),
    )  # fmt: skip
    return table("communication", columns, _costs(analysis))


def _costs(analysis: Analysis) -> Iterator[tuple[Configuration, Communication]]:
    for config in analysis.measured:
        if cost := analysis.communication.get(config.config_id):
            yield config, cost


def _missing_lines(analysis: Analysis) -> Iterator[str]:
    missing = [
        (config.label, f"no {name}: {why}")
        for config, cost in _costs(analysis)
        for name, why in cost.missing.items()
    ]
    yield from by_text(missing, "configuration")


def communication_as_plain(analysis: Analysis, config: Configuration) -> dict[str, object] | None:
    cost = analysis.communication.get(config.config_id)
    if cost is None:
        return None
    pair = analysis.pair(config)
    return {
        **to_plain(cost),
        "amdahl_serial_fraction": to_plain(measured_serial_fraction(pair)) if pair else None,
    }


def profiles(analysis: Analysis) -> Section:
    """Where the windows and the traces of profiled cells lie, with the longest operations."""
    return section("profiles", "Under the profiler", lines(_profile_lines(analysis)))


def _profile_lines(analysis: Analysis) -> Iterator[str]:
    doubted = _doubted_windows(analysis)
    for config in (c for c in analysis.configurations if not c.is_timed and c.runs):
        cell = config.runs[-1].cell
        if not cell.profiles:
            yield f"{cell.planned.name}: the profiler's window was not recorded"
            continue
        first = cell.profiles[0]
        is_doubted = cell.planned.name in doubted
        known = [one for one in first.operations if not (is_doubted and one.communication)]
        longest = sorted(known, key=lambda one: -one.ms_per_step)[:3]
        each = (f"{cut(o.name, _LONGEST_NAME)} {number(o.ms_per_step)} ms" for o in longest)
        names, cell_name = ", ".join(each) or "none", cell.planned.name
        trace = f"; trace: {cell_name}/profile/{first.trace}" if first.trace else ""
        yield f"{cell_name}: {first.steps} steps, longest of rank 0 a step: {names}{trace}"
        yield from (f"{cell_name}: {name}: {why}" for name, why in first.missing.items())


def profiles_as_plain(analysis: Analysis, cell: CellRecords) -> list[dict[str, Any]]:
    """What the profiler saw of each rank, without the collectives of a window that is doubted."""
    ranks: list[dict[str, Any]] = to_plain(cell.profiles)
    reason = _doubted_windows(analysis).get(cell.planned.name)
    for rank in ranks if reason else ():
        rank["communication_ms"] = rank["overlapped_ms"] = None
        rank["operations"] = [one for one in rank["operations"] if not one["communication"]]
        rank["missing"]["communication_ms"] = reason
    return ranks


def _doubted_windows(analysis: Analysis) -> dict[str, str]:
    """Cell to the reason why the communication of its profiler's window is no figure."""
    return {
        cost.window.cell: cost.missing["total and overlapped"]
        for cost in analysis.communication.values()
        if cost.window is not None and "total and overlapped" in cost.missing
    }


def sent(analysis: Analysis) -> Section:
    """Rounds and bytes of an optimizer step as counted, for configurations that counted them."""
    found = []
    for config in analysis.measured:
        result = config.result
        most = busiest(result.ranks) if result else None
        if result is not None and most is not None:
            found.append(f"{config.label}: {_sent_line(most, result.ranks)}")
    return section("sent", "What was sent", lines(found))


def busiest(ranks: Sequence[RankSummary]) -> CommunicationRecord | None:
    """The record of the rank that sent most; None where none was counted."""
    counted = [rank.communication for rank in ranks if rank.communication is not None]
    return max(counted, key=lambda c: c.payload_bytes_per_step, default=None)


def _sent_line(most: CommunicationRecord, ranks: Sequence[RankSummary]) -> str:
    payload = most.payload_bytes_per_step
    text = (
        f"{most.what} averaged {number(most.rounds_per_step)} times a step, "
        f"{number(payload / _MIB)} MiB a rank handed to the all-reduce"
    )
    sizes = [r.gradient_bytes for r in ranks if r.communication and r.gradient_bytes]
    whole = sizes[0] * most.rounds_per_step if sizes else 0
    if most.what == "gradients" and whole and payload < whole * 0.99:
        share = payload / whole
        text += f"; compressed to {share:.0%} of the gradients' {number(sizes[0] / _MIB)} MiB"
    if most.ms_per_step is not None:
        text += f"; {number(most.ms_per_step)} ms a step on average"
    return text

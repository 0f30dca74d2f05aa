"""What the gradients cost, in tables: exposed, overlapped and total, against the doctor's curve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalewise.analysis.cells import Cell
from scalewise.analysis.communication import Communication, measured_serial_fraction
from scalewise.analysis.figures import MISSING, number
from scalewise.analysis.runs import Configuration
from scalewise.analysis.seed_breakdown import seed_rows
from scalewise.analysis.summary import Analysis
from scalewise.report.gathered import by_text
from scalewise.report.table import Table
from scalewise.validation import to_plain

_EXPLAINED = {
    "exposed (ms)": "*Exposed* is measured in every step of the timed cells: from the last "
    "gradient bucket ready to the end of backward.",
    "total (ms)": "*Total* and *overlapped* are measured by a profiler in a cell of its own, whose "
    "times are in no other table (intervals of collectives merged, so that streams are not counted "
    "twice; waiting inside a collective included).",
    "on against off (ms)": "*On against off* is how much longer a step with reduction takes than "
    "one without, in the profiled cell: the exposed part, and what comes *before the last "
    "gradient*: computation that runs slower beside a collective, and DDP's scaling and copying of "
    "gradients.",
    "expected (ms)": "*Expected* is what the doctor's all-reduce takes for the same buckets with "
    "nothing beside them.",
    "achieved bus (GB/s)": "Bus bandwidth is bytes * 2(n-1)/n over time: achieved during the "
    "*transfer*, which is each collective on the rank that came to it last (older records: all of "
    "the rank that waits least), beside computation.",
    "doctor's bus (GB/s)": "The *doctor's* is that of its all-reduce at the mean size of a bucket, "
    "alone.",
}
_NAME = 60
SEED_NOTE = (
    "The rows of the TensorFlow study's communication table, and what exists of them in "
    "DistributedDataParallel:"
)


def communication_table(analysis: Analysis) -> Table:
    """Times and bandwidths of every multi-device configuration."""
    headers = (
        "configuration", "gradients (MiB)", "buckets", "exposed (ms)", "of it waiting (ms)",
        "on against off (ms)", "of it before the last gradient (ms)", "overlapped (ms)",
        "total (ms)", "transfer (ms)", "expected (ms)", "achieved bus (GB/s)",
        "doctor's bus (GB/s)",
    )  # fmt: skip
    rows = tuple(_row(config, cost) for config, cost in _costs(analysis))
    return Table(headers, rows, frozenset(range(1, len(headers)))).without_empty_columns()


def how_to_read(table: Table) -> str:
    """Of the columns that the table has."""
    return " ".join(text for header, text in _EXPLAINED.items() if header in table.headers)


def _row(config: Configuration, cost: Communication) -> tuple[str, ...]:
    exposed, window = cost.exposed, cost.window
    mib = None if cost.gradient_bytes is None else cost.gradient_bytes / 2**20
    return (
        config.label,
        number(mib),
        MISSING if cost.buckets is None else str(cost.buckets),
        number(exposed.mean_ms if exposed else None),
        number(exposed.wait_ms if exposed else None),
        number(window.cost_ms if window else None),
        number(window.slower_ms if window else None),
        number(window.overlapped_ms if window else None),
        number(window.total_ms if window else None),
        number(window.transfer_ms if window else None),
        number(cost.expected_ms),
        number(cost.achieved_bus_gb_s),
        number(cost.doctor_bus_gb_s),
    )


def ratio_lines(analysis: Analysis) -> Iterator[str]:
    """Compute-to-communication ratio and Amdahl's serial fraction, or why there are none."""
    for config, cost in _costs(analysis):
        yield from _ratio(config, cost)
        yield from _fraction(analysis, config)
    yield from by_text(
        [
            (config.label, f"no {name}: {why}")
            for config, cost in _costs(analysis)
            for name, why in cost.missing.items()
        ],
        "configuration",
    )


def _ratio(config: Configuration, cost: Communication) -> Iterator[str]:
    if cost.compute_to_communication is None:
        return
    ratio, compute = number(cost.compute_to_communication), number(cost.compute_ms)
    at_most = "at most " if cost.against == "exposed only" else ""
    of = {
        "profiler window": "all of its communication, by the profiler window",
        "doctor's curve": "what the doctor's curve gives for its communication",
        "exposed only": "its exposed communication alone",
    }
    yield (
        f"{config.label}: compute-to-communication ratio {at_most}{ratio}: forward, backward and "
        f"optimizer take {compute} ms a step, over {of[cost.against or 'exposed only']}"
    )


def _fraction(analysis: Analysis, config: Configuration) -> Iterator[str]:
    pair = analysis.pair(config)
    if pair is None:
        return
    found = measured_serial_fraction(pair)
    if isinstance(found, str):
        yield f"{config.label}: no serial fraction: {found}"
        return
    span = "" if found.low is None else f" [{number(found.low)}, {number(found.high)}]"
    yield (
        f"{config.label}: Amdahl's serial fraction {number(found.value)}{span} (Karp-Flatt, from "
        "the speedup)"
    )


def seed_table(analysis: Analysis) -> Table:
    """The five rows of the study's table: those that DDP has for each configuration, the rest once.

    Empty where no configuration averaged gradients in buckets: of no other strategy is it true.
    """
    ours = [(config, seed_rows(cost)) for config, cost in _costs(analysis) if _has_buckets(cost)]
    rows = [
        (config.label, row.name, number(row.ms), row.meaning)
        for config, found in ours
        for row in found
        if row.exists
    ]
    for _, found in ours[:1]:
        rows += [("each", row.name, "absent", row.meaning) for row in found if not row.exists]
    return Table(("configuration", "row", "ms a step", "here"), tuple(rows), frozenset({2}))


def _has_buckets(cost: Communication) -> bool:
    return cost.buckets is not None or cost.exposed is not None


def profile_lines(analysis: Analysis) -> Iterator[str]:
    """Where the windows and the traces of profiled cells lie, with the longest operations."""
    for config in analysis.profiled:
        cell = config.runs[-1].cell
        if not cell.profiles:
            yield f"{cell.planned.name}: the profiler's window was not recorded"
            continue
        first = cell.profiles[0]
        doubted = cell.planned.name in _doubted_windows(analysis)
        known = [o for o in first.operations if not (doubted and o.communication)]
        longest = sorted(known, key=lambda o: -o.ms_per_step)[:3]
        names = ", ".join(f"{_cut(o.name)} {number(o.ms_per_step)} ms" for o in longest) or "none"
        trace = f"; trace: {cell.planned.name}/profile/{first.trace}" if first.trace else ""
        yield (
            f"{cell.planned.name}: {first.steps} steps, longest of rank 0 a step: {names}{trace}"
        )
        yield from (f"{cell.planned.name}: {name}: {why}" for name, why in first.missing.items())


def _cut(name: str) -> str:
    """A kernel's name may have hundreds of letters, most of them types of its arguments."""
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


def profiles_as_plain(analysis: Analysis, cell: Cell) -> list[dict[str, Any]]:
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


def as_plain(analysis: Analysis, config: Configuration) -> dict[str, object] | None:
    """For ``results.json``."""
    cost = analysis.communication.get(config.config_id)
    if cost is None:
        return None
    pair = analysis.pair(config)
    return {
        **to_plain(cost),
        "amdahl_serial_fraction": to_plain(measured_serial_fraction(pair)) if pair else None,
        "seed_rows": to_plain(seed_rows(cost)) if _has_buckets(cost) else [],
    }


def _costs(analysis: Analysis) -> Iterator[tuple[Configuration, Communication]]:
    for config in analysis.measured:
        cost = analysis.communication.get(config.config_id)
        if cost is not None:
            yield config, cost

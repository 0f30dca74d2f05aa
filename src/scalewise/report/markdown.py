"""The report as one Markdown page beside its plots."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from scalewise.analysis.asking import for_several_devices
from scalewise.analysis.balance import what_says_nothing
from scalewise.analysis.kinds import is_monitored
from scalewise.analysis.summary import Analysis
from scalewise.report import (
    alike,
    allocator,
    balance_runs,
    communication,
    cost,
    device_memory,
    devices,
    disturbances,
    doubts,
    energy,
    examined,
    faults,
    findings,
    provenance,
    swept,
    tables,
    target,
    trackers,
    traffic,
    unfinished,
    widths,
)
from scalewise.report.divided import divided_lines
from scalewise.report.layout import bullets, grid, section
from scalewise.report.pictures import pictures


def render(analysis: Analysis, plots: Sequence[str], samples: int | None = None) -> str:
    """The page; ``plots`` are the file names that were drawn.

    ``samples`` is how many somebody means to train: their time and cost are shown.
    """
    parts = (
        _head(analysis),
        section("Answer", _answers(analysis)),
        _widths(analysis),
        _target(analysis, samples) if samples is not None else (),
        _cost(analysis),
        _why(analysis),
        _scaling(analysis, plots),
        _disturbances(analysis, plots),
        _anatomy(analysis, plots),
        _communication(analysis),
        bullets("Under the profiler", list(communication.profile_lines(analysis))),
        _examined(analysis),
        bullets("Models divided over devices", divided_lines(analysis)),
        bullets("Model FLOPs utilisation", findings.mfu(analysis)),
        _balance(analysis, plots),
        _devices(analysis, plots),
        _energy(analysis),
        _unfinished(analysis),
        bullets("Faults found", faults.lines(analysis)),
        bullets("Doubts", doubts.warnings(analysis)),
        bullets("Trackers", [*trackers.standing(analysis), *trackers.problems(analysis)]),
        bullets("Provenance", provenance.provenance_lines(analysis)),
    )
    return "\n".join(line for part in parts for line in part) + "\n"


def _head(analysis: Analysis) -> Iterator[str]:
    yield "# Do more devices pay?"
    yield ""
    yield f"{findings.counts(analysis)}. {_when(analysis)}"
    if analysis.sweep.command:
        yield f"\n`{findings.command(analysis)}`"
    yield from (f"\n**{label}.**" for label in provenance.labels(analysis))


def _widths(analysis: Analysis) -> Iterator[str]:
    found = widths.widths_table(analysis)
    if found.rows:
        yield from section("Numbers of devices side by side", [grid(found), "", widths.HOW_TO_READ])
        yield from ("", *(f"- {line}" for line in widths.lines(analysis)))


def _target(analysis: Analysis, samples: int) -> Iterator[str]:
    found = target.target_table(analysis, samples)
    prices = [f"- {line}" for line in target.price_lines(analysis)]
    if found.rows:
        lines = [*prices, "", grid(found), "", target.HOW_TO_READ]
        yield from section(target.title(samples), lines)


def _why(analysis: Analysis) -> Iterator[str]:
    limits = findings.limits(analysis)
    yield from bullets("What limits them", limits)
    if any(": compute-bound (" in line for line in limits):
        yield f"\n{findings.BUSY}"
    yield from bullets("Strategy chosen by measurement", findings.decisions(analysis))
    yield from bullets("Batch size found by search", findings.batch_sizes(analysis))
    yield from bullets("Repeats", findings.repeats(analysis))
    yield from bullets("What was sent", traffic.lines(analysis))


def _scaling(analysis: Analysis, plots: Sequence[str]) -> Iterator[str]:
    if not analysis.measured:
        return
    constant = alike.same_in_every_row(analysis)
    yield from section("Scaling", [f"{constant[:1].upper()}{constant[1:]}.\n"] if constant else [])
    yield from (grid(tables.scaling_table(analysis)), "", tables.HOW_TO_READ)
    yield from pictures(("throughput.png", "speedup_efficiency.png"), plots)
    yield from section("Time and resources", [grid(tables.resource_table(analysis))])
    peaks = allocator.allocator_table(analysis)
    if peaks.rows:
        yield f"\n{grid(peaks)}\n\n{allocator.NOTE}"
    yield from pictures(("loss.png",), plots)


def _disturbances(analysis: Analysis, plots: Sequence[str]) -> Iterator[str]:
    if any(cell.result is not None for cell in analysis.sweep.cells):
        yield from bullets(disturbances.TITLE, list(disturbances.all_lines(analysis)))
        yield f"\n{disturbances.HOW_TO_READ}"
        yield from pictures(("step_times.png",), plots)


def _anatomy(analysis: Analysis, plots: Sequence[str]) -> Iterator[str]:
    anatomy = tables.anatomy_table(analysis)
    if anatomy.rows:
        yield from section("Anatomy of a step (mean ms)", [grid(anatomy), "", tables.ANATOMY])
        yield from pictures(("step_anatomy.png",), plots)


def _when(analysis: Analysis) -> str:
    created = analysis.sweep.created_at
    if created is None:
        return ""
    when = datetime.datetime.fromtimestamp(created, datetime.UTC)
    return f"Planned {when:%Y-%m-%d %H:%M} UTC."


def _answers(analysis: Analysis) -> Iterator[str]:
    found = findings.answers(analysis)
    for label, verdict, reason in found:
        yield f"- **{label}: {verdict}.** {reason}"
    if not found:
        yield no_answer(analysis)
    # A line of its own, also after what is no list.
    yield from (f"\n{line[:1].upper()}{line[1:]}." for line in swept.fastest(analysis))


def no_answer(analysis: Analysis) -> str:
    """Why there is no verdict at all, and what to do."""
    if not analysis.measured and any(c.runs for c in analysis.configurations):
        return (
            "No cell was timed: they examined the devices, tried batch sizes, or ran under a "
            "profiler."
        )
    if not analysis.measured:
        return "No cell finished, so nothing was measured: see the reasons below."
    if all(c.devices == 1 for c in analysis.measured):
        monitored = is_monitored(analysis.measured[0].cells[0].config)
        return (
            "Nothing ran on several devices, so there is nothing to compare: "
            f"{for_several_devices(monitored)}."
        )
    return "No verdict."


def _balance(analysis: Analysis, plots: Sequence[str]) -> Iterator[str]:
    """The means, then every run in the order in which they began, then what to do."""
    balance = tables.balance_table(analysis)
    if not balance.rows:
        return
    nothing = what_says_nothing(on_cpu=all(c.is_cpu for c in analysis.measured))
    yield from section("Load balance", [grid(balance), "", f"{tables.GRADE_WORDS} {nothing}"])
    yield from pictures(("balance.png",), plots)
    runs = grid(balance_runs.runs_table(analysis))
    yield f"\nRun by run, in the order in which they began:\n\n{runs}"
    more = balance_runs.left_out(analysis)
    if more:
        yield f"\n{more} more runs are in results.json."
    yield ""
    yield from (f"- {line}" for line in balance_runs.advice_lines(analysis))
    yield from pictures((balance_runs.NAME,), plots)


def _devices(analysis: Analysis, plots: Sequence[str]) -> Iterator[str]:
    memory = device_memory.summary_text(analysis)
    if memory:
        yield from section("Devices", ["```text", memory.rstrip(), "```", "", device_memory.NOTE])
        yield from pictures(devices.NAMES, plots)


def _energy(analysis: Analysis) -> Iterator[str]:
    joules = energy.energy_table(analysis)
    if joules.rows:
        yield from section("Energy", [grid(joules), "", energy.HOW_TO_READ])
        yield from [f"\n- {line}" for line in energy.missing(analysis)]


def _communication(analysis: Analysis) -> Iterator[str]:
    costs = communication.communication_table(analysis)
    if not costs.rows:
        return
    yield from section("Communication", [grid(costs), "", communication.how_to_read(costs), ""])
    yield from (f"- {line}" for line in communication.ratio_lines(analysis))
    seed = communication.seed_table(analysis)
    if seed.rows:
        yield f"\n{communication.SEED_NOTE}\n\n{grid(seed)}"


def _cost(analysis: Analysis) -> Iterator[str]:
    """The reasons alone where no price is known."""
    costs = cost.cost_table(analysis)
    yield from bullets("Cost", cost.price_lines(analysis))
    if costs.rows:
        yield from ("", grid(costs), "", cost.HOW_TO_READ)


def _examined(analysis: Analysis) -> Iterator[str]:
    yield from bullets("What the doctor found", list(examined.doctor_lines(analysis)))
    for table in examined.examined_tables(analysis):
        yield f"\n{grid(table)}"
        if "spread" in table.headers:
            yield f"\n{examined.SPREAD}"


def _unfinished(analysis: Analysis) -> Iterator[str]:
    if analysis.unfinished:
        yield from section("Without a result", [grid(unfinished.table(analysis))])
    for cell in analysis.unfinished:
        lines = cell.attempts[-1].last_lines if cell.attempts else ()
        if lines:
            yield f"\n{cell.planned.name}, rank {cell.attempts[-1].rank}:\n"
            yield "\n".join(["```text", *lines, "```"])

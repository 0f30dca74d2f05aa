"""The report as one Markdown page beside its plots."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Sequence

from scalewise.analysis.asking import for_several_devices
from scalewise.analysis.balance import GRADES, what_says_nothing
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
    energy,
    examined,
    findings,
    provenance,
    swept,
    tables,
    timeline,
    trackers,
    traffic,
    unfinished,
)
from scalewise.report.divided import divided_lines
from scalewise.report.table import Table

_CAPTIONS = {
    "throughput.png": "Throughput with 95 % intervals over runs",
    "speedup_efficiency.png": "Speedup and efficiency with 95 % intervals",
    "step_anatomy.png": "Where the time of a step goes",
    "loss.png": "Loss over samples fed",
    "balance.png": "Arrival of each rank, and CVs across ranks",
    "per_gpu_memory_breakdown.png": "Memory of each device over time",
    "gpu_load_balance_analysis.png": "Memory of each device, and the CVs of memory and arrival",
    "gpu_memory_comparison.png": "Memory of all devices together",
    timeline.NAME: "What every device did over time",
    balance_runs.NAME: "Balance over time, and against training speed",
}


def render(analysis: Analysis, plots: Sequence[str]) -> str:
    """The page; ``plots`` are the file names that were drawn."""
    return "\n".join(_lines(analysis, plots)) + "\n"


def _lines(analysis: Analysis, plots: Sequence[str]) -> Iterator[str]:
    yield "# Do more devices pay?"
    yield ""
    yield f"{findings.counts(analysis)}. {_when(analysis)}"
    if analysis.sweep.command:
        yield f"\n`{findings.command(analysis)}`"
    yield from (f"\n**{label}.**" for label in provenance.labels(analysis))
    yield from _section("Answer", _answers(analysis))
    yield from _cost(analysis)
    limits = findings.limits(analysis)
    yield from _bullets("What limits them", limits)
    if any(": compute-bound (" in line for line in limits):
        yield f"\n{_BUSY}"
    yield from _bullets("Strategy chosen by measurement", findings.decisions(analysis))
    yield from _bullets("Batch size found by search", findings.batch_sizes(analysis))
    yield from _bullets("Repeats", findings.repeats(analysis))
    yield from _bullets("What was sent", traffic.lines(analysis))
    if analysis.measured:
        constant = alike.same_in_every_row(analysis)
        yield from _section(
            "Scaling", [f"{constant[:1].upper()}{constant[1:]}.\n"] if constant else []
        )
        yield from (_table(tables.scaling_table(analysis)), "", _HOW_TO_READ)
        yield from _pictures(("throughput.png", "speedup_efficiency.png"), plots)
        yield from _section("Time and resources", [_table(tables.resource_table(analysis))])
        yield from _memory(analysis)
        yield from _pictures(("loss.png",), plots)
    anatomy = tables.anatomy_table(analysis)
    if anatomy.rows:
        yield from _section("Anatomy of a step (mean ms)", [_table(anatomy), "", _ANATOMY])
        yield from _pictures(("step_anatomy.png",), plots)
    yield from _communication(analysis)
    yield from _bullets("Under the profiler", list(communication.profile_lines(analysis)))
    yield from _examined(analysis)
    yield from _bullets("Models divided over devices", divided_lines(analysis))
    yield from _bullets("Model FLOPs utilisation", findings.mfu(analysis))
    balance = tables.balance_table(analysis)
    if balance.rows:
        on_cpu = all(c.is_cpu for c in analysis.measured)
        says_nothing = what_says_nothing(on_cpu=on_cpu)
        yield from _section("Load balance", [_table(balance), "", f"{_GRADES} {says_nothing}"])
        yield from _pictures(("balance.png",), plots)
        yield from _balance_runs(analysis)
        yield from _pictures((balance_runs.NAME,), plots)
    memory = device_memory.summary_text(analysis)
    if memory:
        yield from _section("Devices", ["```text", memory.rstrip(), "```", "", device_memory.NOTE])
        yield from _pictures(devices.NAMES, plots)
    joules = energy.energy_table(analysis)
    if joules.rows:
        yield from _section("Energy", [_table(joules), "", energy.HOW_TO_READ])
        yield from [f"\n- {line}" for line in energy.missing(analysis)]
    if analysis.unfinished:
        yield from _section("Without a result", [_table(unfinished.table(analysis))])
        yield from _last_lines(analysis)
    yield from _bullets("Faults found", findings.faults(analysis))
    yield from _bullets("Doubts", findings.warnings(analysis))
    yield from _bullets("Trackers", [*trackers.standing(analysis), *trackers.problems(analysis)])
    yield from _bullets("Provenance", provenance.provenance_lines(analysis))


_HOW_TO_READ = (
    "Samples/s are global, over the time of the slowest rank, warm-up left out, the geometric "
    "mean of runs; ± is half the width of a 95 % interval over runs (Student's t on logarithms), "
    "in brackets where its halves differ; those of ratios are Welch's, on logarithms too. Runs "
    "that are *equal* may owe that to a shared seed, and bound nothing. "
    "*Beneficial* needs a lower bound of the speedup over 1.1 and an efficiency of at least 0.5; a "
    "verdict needs its whole interval. The *study's label*, of the published study that scalewise "
    "began with, looks at the point alone: beneficial from 1.1, marginal from 0.95, else single."
)
_BUSY = (
    "*Compute-bound* is a GPU that is busy, not one that is efficient: its SMs have work also "
    "while their kernels wait for memory. MFU says how much of the peak is reached."
)
_ANATOMY = (
    "Exposed communication runs from the last gradient bucket ready to the end of backward, "
    "waiting for the slowest rank included. Host and device clocks are never added together. These "
    "are arithmetic means over runs and ranks, whose parts add up to the step; *step (ms)* above "
    "is of the slowest rank, and the geometric mean of runs."
)
_GRADES = (
    "*Grade* is of the mean over runs ("
    + ", ".join(f"{name} below {below:g} %" for name, below in GRADES.items() if below < math.inf)
    + ", else poor); the slowest rank, and how far it is behind, are of the worst run."
)


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


def _table(table: Table) -> str:
    rule = ["---:" if i in table.numeric else "---" for i in range(len(table.headers))]
    rows = [table.headers, tuple(rule), *table.rows]
    return "\n".join(f"| {' | '.join(map(_escape, row))} |" for row in rows)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _balance_runs(analysis: Analysis) -> Iterator[str]:
    """Every run in the order in which they began, then what to do."""
    runs = _table(balance_runs.runs_table(analysis))
    yield f"\nRun by run, in the order in which they began:\n\n{runs}"
    more = balance_runs.left_out(analysis)
    if more:
        yield f"\n{more} more runs are in results.json."
    yield ""
    yield from (f"- {line}" for line in balance_runs.advice_lines(analysis))


def _communication(analysis: Analysis) -> Iterator[str]:
    costs = communication.communication_table(analysis)
    if not costs.rows:
        return
    yield from _section("Communication", [_table(costs), "", communication.how_to_read(costs), ""])
    yield from (f"- {line}" for line in communication.ratio_lines(analysis))
    seed = communication.seed_table(analysis)
    if seed.rows:
        yield f"\n{communication.SEED_NOTE}\n\n{_table(seed)}"


def _cost(analysis: Analysis) -> Iterator[str]:
    """The reasons alone where no price is known."""
    costs = cost.cost_table(analysis)
    yield from _bullets("Cost", cost.price_lines(analysis))
    if costs.rows:
        yield from ("", _table(costs), "", cost.HOW_TO_READ)


def _examined(analysis: Analysis) -> Iterator[str]:
    yield from _bullets("What the doctor found", list(examined.doctor_lines(analysis)))
    for table in examined.examined_tables(analysis):
        yield f"\n{_table(table)}"
        if "spread" in table.headers:
            yield f"\n{examined.SPREAD}"


def _memory(analysis: Analysis) -> Iterator[str]:
    peaks = allocator.allocator_table(analysis)
    if peaks.rows:
        yield f"\n{_table(peaks)}\n\n{allocator.NOTE}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield from lines


def _bullets(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from _section(title, [f"- {line}" for line in lines])


def _pictures(names: Sequence[str], drawn: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name in drawn:
            yield f"\n![{_CAPTIONS[name]}]({name})"


def _last_lines(analysis: Analysis) -> Iterator[str]:
    for cell in analysis.unfinished:
        lines = cell.attempts[-1].last_lines if cell.attempts else ()
        if lines:
            yield f"\n{cell.planned.name}, rank {cell.attempts[-1].rank}:\n"
            yield "\n".join(["```text", *lines, "```"])

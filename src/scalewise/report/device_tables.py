"""What each device and rank took, how far apart the ranks arrive, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scalewise.analysis import (
    Analysis,
    Configuration,
    DeviceUsage,
    LoadBalance,
    Row,
    Run,
    estimate,
    estimate_runs,
    mean_of_known,
    measured_rows,
)
from scalewise.records import GRADES, advice, cv_percent, cv_text, grade
from scalewise.report.sections import (
    Column,
    Note,
    Read,
    Section,
    Table,
    Verbatim,
    figure_columns,
    lines,
    section,
    table,
    words,
)

_MEMORY_NOTE = (
    "MiB are means over the samples inside a run, and ± is their standard deviation there, both "
    "means over runs; neither is a doubt over runs. *Balance* is the memory CV of the devices' "
    "means over runs, and says nothing of load. Where runs differ in which device holds more, it "
    "lies below the memory CV under *Load balance*, the mean of the runs' own CVs."
)


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device of a configuration, over its runs."""

    label: str
    mean_mib: float
    sd_mib: float | None
    """Over the samples inside a run, mean of the runs."""


def device_memory(config: Configuration) -> tuple[DeviceMemory, ...]:
    """Memory of each device in the order of ranks, geometric mean of runs; empty where a device is
    unknown."""

    def order(usage: DeviceUsage) -> tuple[int, int]:
        rank, index = usage.device.rank, usage.device.index
        return (index if rank is None else rank, index)

    runs = [sorted(run.usage.devices, key=order) for run in config.runs if run.usage]
    if not runs or len({len(devices) for devices in runs}) != 1:
        return ()
    found = []
    for devices in zip(*runs, strict=True):
        first, means = devices[0], [m for d in devices if (m := d.memory_used_mib) is not None]
        if not means:
            return ()
        sd = mean_of_known([d.memory_sd_mib for d in devices])
        label = first.label if first.label.startswith("GPU") else f"rank {first.device.index}"
        found.append(DeviceMemory(label, estimate_runs(means).value, sd))
    return tuple(found)


def devices(analysis: Analysis) -> Section:
    """Memory of each device, as ``gpu_summary.txt`` has it."""
    return section(
        "devices", "Devices", Verbatim(memory_summary(analysis).rstrip()), Note(_MEMORY_NOTE)
    )


def memory_summary(analysis: Analysis) -> str:
    """``GPU i: mean MiB (±sd)``, total and balance of every configuration.

    Empty where no device was sampled.
    """
    blocks = []
    for config in analysis.measured:
        if not (memory := device_memory(config)):
            continue
        text = [f"{config.label} - memory per device:"]
        for device in memory:
            sd = "" if device.sd_mib is None else f" (±{device.sd_mib:.1f})"
            text.append(f"    {device.label}: {device.mean_mib:.1f} MiB{sd}")
        text.append(f"    Total:  {sum(d.mean_mib for d in memory):.1f} MiB")
        if len(memory) > 1:
            cv = _equals(cv_percent([d.mean_mib for d in memory]))
            text.append(f"    Balance: memory CV {cv}%, of the means over runs")
        arrival = config.estimate("arrival_cv_percent")
        if arrival:
            cv = _equals(arrival.value)
            text.append(f"    Load: arrival CV {cv}% ({grade(arrival.value)}), mean over runs")
        blocks.append("\n".join(text))
    return "\n\n".join(blocks) + ("\n" if blocks else "")


def _equals(cv: float) -> str:
    text = cv_text(cv)
    return text if text.startswith("<") else f"= {text}"


_MOST_RUNS = 40
"""Runs with a row of their own."""

_GRADES_NOTE = (
    "*Grade* is of the mean over runs ("
    + ", ".join(f"{name} below {below:g} %" for name, below in GRADES.items() if below < math.inf)
    + ", else poor). The slowest rank, and how far it is behind, are of the worst run. "
    "Memory balance says nothing about load under DDP: every replica holds the same parameters, "
    "gradients and optimizer state, so memory is equal even while one rank keeps the others "
    "waiting. "
)
_NOR_DOES = {
    True: "Nor does CPU time: it is lower wherever a rank waits, be it for another rank, for its "
    "loader or for a core.",
    False: "Utilisation does not show it either: a rank that waits in a collective reads 100 %.",
}
"""Why the CVs beside that of arrival do not judge load; by whether all rows ran on CPUs."""


def load_balance(analysis: Analysis) -> Section:
    """The means, then every run in the order in which they began, then what to do."""
    more = len(_balanced_runs(analysis)) - _MOST_RUNS
    return section(
        "load_balance",
        "Load balance",
        _balance_table(analysis),
        _runs_table(analysis),
        lines([f"{more} more runs are in results.json."] if more > 0 else (), "plain"),
        lines(_advice(analysis)),
    )


def _balance_table(analysis: Analysis) -> Table:
    """CV across ranks of arrival, and beside it of memory, utilisation and power.

    The first column and its grade are of the mean over runs; the rank and how far it is behind
    are of the worst run, whose own CV stands beside them.
    """
    cpu = all(c.is_cpu for c in analysis.measured)

    name, memory, utilization, power, arrival = figure_columns("balance")

    def graded(row: Row) -> str | None:
        found = arrival.read(row)
        return grade(found.value) if found else None

    def worst(figure: str) -> Read:
        return lambda row: getattr(_worst_balance(row.config), figure)

    columns = (
        name,
        replace(arrival, format=estimate),
        words("grade", "grade", graded),
        Column("worst_cv", "worst run", "%", worst("cv_percent"), cv_text),
        Column("slowest_rank", "its slowest rank", "", worst("slowest_rank")),
        Column("behind_ms", "behind", "ms", worst("behind_ms")),
        memory,
        utilization,
        power,
    )  # fmt: skip
    balanced = [row for row in measured_rows(analysis) if _worst_balance(row.config)]
    return table("balance", columns, balanced, _GRADES_NOTE + _NOR_DOES[cpu])


def _worst_balance(config: Configuration) -> LoadBalance | None:
    """That of the run whose ranks were furthest apart."""
    found = [run.balance for run in config.runs if run.balance]
    return max(found, key=lambda b: b.cv_percent, default=None)


def _runs_table(analysis: Analysis) -> Table:
    """One row a run on several devices, in the order in which the runs began."""

    def stretch(row: BalancedRun) -> str | None:
        worst = max(row[2].history, key=lambda w: w.cv_percent, default=None)
        if worst is None:
            return None
        return f"{cv_text(worst.cv_percent)}, steps {worst.first_step} to {worst.last_step}"

    columns = (
        words("run", "run", lambda row: f"{row[0].label}, repeat {row[1].cell.planned.repeat}"),
        Column("arrival_cv", "arrival CV", "%", lambda row: row[2].cv_percent, cv_text),
        words("grade", "grade", lambda row: row[2].grade),
        Column("slowest_rank", "slowest rank", "", lambda row: row[2].slowest_rank),
        Column("behind_ms", "behind", "ms", lambda row: row[2].behind_ms),
        Column("last_in", "last in", "% of steps", lambda row: 100 * row[2].slowest_share),
        Column("worst_stretch", "worst stretch", "CV %", stretch),
        Column("samples_per_s", "samples/s", "global", lambda row: row[1].samples_per_s),
    )  # fmt: skip
    title = "Run by run, in the order in which they began"
    return table("balance_runs", columns, _balanced_runs(analysis)[:_MOST_RUNS], title=title)


BalancedRun = tuple[Configuration, Run, LoadBalance]


def _balanced_runs(analysis: Analysis) -> list[BalancedRun]:
    """Runs whose balance was measured, in the order in which they began."""
    found = [(c, run, run.balance) for c in analysis.measured for run in c.runs if run.balance]
    return sorted(found, key=lambda one: one[1].cell.result.started_at if one[1].cell.result else 0)


def _advice(analysis: Analysis) -> Iterator[str]:
    """What to do about each configuration; the rank that is named is that of its worst run.

    Ranks that launch in turns arrive as far apart as one that is slow: a grade alone accuses none.
    """
    for config in analysis.measured:
        worst, arrival = _worst_balance(config), config.estimate("arrival_cv_percent")
        if worst is not None and arrival is not None:
            graded = grade(arrival.value)
            said = advice(graded, worst.slowest_rank)
            budget = analysis.budgets.get(config.config_id)
            if graded in ("fair", "poor") and (budget is None or budget.late_rank is None):
                said = "no rank is slow by itself: see where the time goes"
            yield f"{config.label} ({graded}): {said}"

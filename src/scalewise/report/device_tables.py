"""What each device and rank took and sent, how far apart ranks arrive, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalewise.analysis import (
    Analysis,
    BoundedFigure,
    CellRecords,
    Communication,
    Configuration,
    DeviceUsage,
    LoadBalance,
    Row,
    Run,
    estimate,
    estimate_runs,
    mean_of_known,
    measured_rows,
    number,
)
from scalewise.records import (
    GRADES,
    CommunicationRecord,
    RankSummary,
    advice,
    cv_percent,
    cv_text,
    grade,
    to_plain,
)
from scalewise.report.sections import (
    NOTES,
    Column,
    Note,
    Read,
    Section,
    Table,
    Verbatim,
    by_text,
    cut,
    explained,
    figure_columns,
    lines,
    section,
    table,
    words,
)


def of_devices(analysis: Analysis) -> list[Section]:
    return [part(analysis) for part in (sent, communication, profiles, load_balance, devices)]


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
        "devices", "Devices", Verbatim(memory_summary(analysis).rstrip()), Note(NOTES["devices"])
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
    """CV across ranks of arrival with its grade, the worst run, and CVs of what does not tell."""
    on_cpu = all(c.is_cpu for c in analysis.measured)
    grades = [f"{name} below {below:g} %" for name, below in GRADES.items() if below < math.inf]
    note = explained("balance", {"grade", "cpu" if on_cpu else "gpu"})
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
    return table("balance", columns, balanced, note.format(grades=", ".join(grades)))


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
    """Ranks that launch in turns arrive as far apart as one that is slow: no grade accuses one."""
    for config in analysis.measured:
        worst, arrival = _worst_balance(config), config.estimate("arrival_cv_percent")
        if worst is not None and arrival is not None:
            graded = grade(arrival.value)
            said = advice(graded, worst.slowest_rank)
            budget = analysis.budgets.get(config.config_id)
            if graded in ("fair", "poor") and (budget is None or budget.late_rank is None):
                said = "no rank is slow by itself: see where the time goes"
            yield f"{config.label} ({graded}): {said}"


_LONGEST_NAME = 60
"""Letters of a kernel's name: it may have hundreds, most of them types of its arguments."""
_MIB = 2**20


def communication(analysis: Analysis) -> Section:
    costs = _cost_table(analysis)
    missing = (
        (config.label, f"no {name}: {why}")
        for config, cost in _costs(analysis)
        for name, why in cost.missing.items()
    )
    return section(
        "communication",
        "Communication",
        costs,
        Note(explained("communication", {c.key for c in costs.columns}) if costs.rows else ""),
        lines(by_text(missing, "configuration")),
    )


def _cost_table(analysis: Analysis) -> Table:
    def exposed(figure: str) -> Read:
        return lambda row: getattr(row[1].exposed, figure, None)

    def window(figure: str) -> Read:
        return lambda row: getattr(row[1].window, figure, None)

    def mib(row: tuple[Configuration, Communication]) -> float | None:
        return None if row[1].gradient_bytes is None else row[1].gradient_bytes / _MIB

    def serial_fraction(row: tuple[Configuration, Communication]) -> BoundedFigure | None:
        found = row[1].amdahl_serial_fraction
        return None if isinstance(found, str) else found

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
        Column("serial", "Amdahl's serial fraction", "", serial_fraction),
    )  # fmt: skip
    return table("communication", columns, _costs(analysis))


def _costs(analysis: Analysis) -> Iterator[tuple[Configuration, Communication]]:
    for config in analysis.measured:
        if cost := analysis.communication.get(config.config_id):
            yield config, cost


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
    each = [(config.label, config.runs[0].ranks) for config in analysis.measured]
    counted = ((label, busiest(ranks), ranks) for label, ranks in each)
    found = (f"{label}: {_sent_line(most, ranks)}" for label, most, ranks in counted if most)
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

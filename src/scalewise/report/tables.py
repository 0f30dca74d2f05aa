"""The tables of a report as plain text, for Markdown and the terminal alike.

A figure never stands without its doubt: intervals are 95 % intervals over runs, and a dash is a
number that was not measured (never a zero).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scalewise.analysis.balance import GRADES, cv_text, grade
from scalewise.analysis.figures import MISSING, estimate, number, ratio
from scalewise.analysis.limits import IDLE, PHASE_WORDS, mean_anatomy, phase_word
from scalewise.analysis.runs import Configuration
from scalewise.analysis.statistics import Estimate
from scalewise.analysis.summary import Analysis
from scalewise.analysis.throughput import StepTimes
from scalewise.records import PHASES
from scalewise.report import alike, losses
from scalewise.report.table import Table

HOW_TO_READ = (
    "Samples/s are global, over the time of the slowest rank, warm-up left out, the geometric "
    "mean of runs; ± is half the width of a 95 % interval over runs (Student's t on logarithms), "
    "in brackets where its halves differ; those of ratios are Welch's, on logarithms too. Runs "
    "that are *equal* may owe that to a shared seed, and bound nothing. "
    "*Beneficial* needs a lower bound of the speedup over 1.1 and an efficiency of at least 0.5; a "
    "verdict needs its whole interval. The *study's label*, of the published study that scalewise "
    "began with, looks at the point alone: beneficial from 1.1, marginal from 0.95, else single."
)
ANATOMY = (
    "Exposed communication runs from the last gradient bucket ready to the end of backward, "
    "waiting for the slowest rank included. Host and device clocks are never added together. These "
    "are arithmetic means over runs and ranks, whose parts add up to the step; *step (ms)* above "
    "is of the slowest rank, and the geometric mean of runs."
)
GRADE_WORDS = (
    "*Grade* is of the mean over runs ("
    + ", ".join(f"{name} below {below:g} %" for name, below in GRADES.items() if below < math.inf)
    + ", else poor); the slowest rank, and how far it is behind, are of the worst run."
)


def scaling_table(analysis: Analysis) -> Table:
    """Throughput, speedup, efficiency and verdict of every configuration that ran."""
    headers = (
        "configuration", "runs", "batch (global)", "samples/s (global)", "speedup", "efficiency",
        "verdict", "study's label",
    )  # fmt: skip
    rows = []
    for config in analysis.measured:
        pair = analysis.sound_pair(config)
        result = config.runs[0].cell.result
        rows.append(
            (
                config.label,
                f"{len(config.runs)} of {len(config.cells)}",
                f"{result.global_batch_size:,}" if result else MISSING,
                estimate(config.estimate("samples_per_s")),
                ratio(pair.speedup) if pair else MISSING,
                ratio(pair.efficiency) if pair else MISSING,
                verdict(analysis, config) or MISSING,
                pair.seed_label if pair else MISSING,
            )
        )
    whole = Table(headers, tuple(rows), frozenset({1, 2, 3, 4, 5}))
    # What is the same in every row is said once, above.
    return whole.without([2]) if alike.same_batch(analysis) else whole


def resource_table(analysis: Analysis) -> Table:
    """Time per step, memory, utilisation, balance, loss and energy."""
    cpu = any(c.is_cpu for c in analysis.measured)
    gpu = any(not c.is_cpu for c in analysis.measured)
    kinds = {(True, False): "peak RSS per rank", (False, True): "peak allocated per GPU"}
    memory = kinds.get((cpu, gpu), "peak memory per device")
    utilisation = "CPU per rank" if cpu and not gpu else "utilisation per device"
    used = "mean RSS per rank" if cpu and not gpu else "used per device"
    reached = losses.reached_header(analysis.measured)
    headers = (
        "configuration", "step (ms)", "p50 / p99 (ms, n steps)", f"{memory} (MiB)",
        f"{used} (MiB)", f"{utilisation} (%, n readings)", "arrival CV (%)", reached,
        "energy (J per 1,000 samples)", "optimizer state per rank (MiB)", "pruned (%)",
    )  # fmt: skip
    compared = _optimizers_are_compared(analysis.measured)
    rows = tuple(
        (
            *_resource_row(c, analysis.measured),
            optimizer_memory(c)[0] if compared else MISSING,
            optimizer_memory(c)[1],
        )
        for c in analysis.measured
    )
    return Table(headers, rows, frozenset(range(1, len(headers)))).without_empty_columns()


def _optimizers_are_compared(configs: Sequence[Configuration]) -> bool:
    """Whether some workload was trained with several optimizers or prunings.

    With one alone its state is part of the memory, whatever other models use; among several it
    is the question.
    """
    kinds: dict[tuple[str | None, str | None], set[tuple[str | None, str | None]]] = {}
    for config in configs:
        workload = (config.name("model"), config.name("dataset"))
        kinds.setdefault(workload, set()).add((config.name("optimizer"), config.name("pruning")))
    return any(len(found) > 1 for found in kinds.values())


def anatomy_table(analysis: Analysis) -> Table:
    """Mean ms of each phase over runs and ranks."""
    words = (*(PHASE_WORDS[p] for p in PHASES), IDLE)
    headers = ("configuration", "timeline", *words, "step")
    rows = []
    for config in analysis.measured:
        anatomy = mean_anatomy(config)
        if anatomy is not None:
            phases, step_ms, line = anatomy
            named = {phase_word(config, phase): ms for phase, ms in phases.items()}
            rows.append((config.label, line, *(number(named.get(w)) for w in words),
                         number(step_ms)))  # fmt: skip
    numeric = frozenset(range(2, len(headers)))
    return Table(headers, tuple(rows), numeric).without_empty_columns()


def balance_table(analysis: Analysis) -> Table:
    """CV across ranks of arrival, and beside it of memory, utilisation and power.

    The first column and its grade are of the mean over runs; the rank and how far it is behind
    are of the worst run, whose own CV stands beside them.
    """
    cpu = all(c.is_cpu for c in analysis.measured)
    headers = (
        "configuration", "arrival CV (%)", "grade", "worst run (%)", "its slowest rank",
        "behind (ms)", "memory CV (%)",
        f"{'CPU time' if cpu else 'utilisation'} CV (%, n readings)", "power CV (%)",
    )  # fmt: skip
    rows = []
    for config in analysis.measured:
        balances = [run.balance for run in config.runs if run.balance]
        if not balances:
            continue
        worst = max(balances, key=lambda b: b.cv_percent)
        arrival = config.estimate("arrival_cv_percent")
        rows.append(
            (
                config.label,
                estimate(arrival),
                MISSING if arrival is None else grade(arrival.value),
                cv_text(worst.cv_percent),
                str(worst.slowest_rank),
                number(worst.behind_ms),
                estimate(config.estimate("memory_cv_percent")),
                counted(estimate(config.estimate("utilization_cv_percent")), _readings(config)),
                estimate(config.estimate("power_cv_percent")),
            )
        )
    return Table(headers, tuple(rows), frozenset({1, 3, 4, 5, 6, 7, 8})).without_empty_columns()


def _resource_row(config: Configuration, beside: Sequence[Configuration]) -> tuple[str, ...]:
    times = [run.throughput.step_time_ms for run in config.runs if run.throughput]
    arrival = config.estimate("arrival_cv_percent")
    joules = config.estimate("joules_per_million_samples")
    return (
        config.label,
        estimate(config.estimate("step_time_ms")),
        _percentiles(times),
        number(_value(config.estimate("peak_memory_mib"))),
        number(_value(config.estimate("memory_used_mib"))),
        counted(number(_value(config.estimate("utilization_percent"))), _readings(config)),
        MISSING if arrival is None else cv_text(arrival.value),
        losses.told_apart(estimate(config.estimate("final_loss")), config, beside),
        estimate(joules and joules.scaled(1e-3)),
    )


def optimizer_memory(config: Configuration) -> tuple[str, str]:
    """State, masks and scores of the rank that keeps most, and the share that pruning set to 0."""
    pruned = _value(config.estimate("pruned_share"))
    return (
        number(_value(config.estimate("optimizer_memory_mib"))),
        number(None if pruned is None else 100 * pruned),
    )


def _percentiles(times: Sequence[StepTimes]) -> str:
    """``1.62 / 2.76 (n=3x100)``: means of 3 runs of 100 steps; no p99 unless every run has one."""
    if not times:
        return MISSING
    steps = sorted({t.n for t in times})
    each = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]}-{steps[-1]}"
    tails = [t.p99 for t in times if t.p99 is not None]
    p99 = sum(tails) / len(tails) if len(tails) == len(times) else None
    p50 = sum(t.p50 for t in times) / len(times)
    return f"{number(p50)} / {number(p99)} (n={len(times)}x{each})"


def _readings(config: Configuration) -> int:
    return sum(run.utilization_readings for run in config.runs)


def counted(figure: str, n: int) -> str:
    """``94.2 (n=12)``; what is missing has no number of readings."""
    return figure if figure == MISSING else f"{figure} (n={n})"


def _value(figure: Estimate | None) -> float | None:
    return figure.value if figure else None


def verdict(analysis: Analysis, config: Configuration) -> str | None:
    """The word in every table and file; None where there is nothing to judge."""
    if config.config_id in analysis.invalid:
        return "invalid"
    pair = analysis.pair(config)
    if pair is not None:
        return pair.judgement.verdict
    if not config.runs:
        return None
    if config.devices == 1:
        return "baseline"
    return "not comparable" if analysis.refusal(config) else None

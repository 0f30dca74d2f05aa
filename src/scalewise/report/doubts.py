"""What went wrong and what to doubt: faults, disturbances, and reasons to doubt a figure."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis import (
    CODES,
    DEVICE_CODES,
    VERDICT_RUNS,
    Analysis,
    Configuration,
    Disturbance,
    DisturbanceCode,
    Pair,
    check_published,
    count_doubt,
    estimate,
    estimate_without_outliers,
    factor,
    is_monitored,
    listed,
    long_step_line,
    mean_clock_mhz,
    outliers,
    pipeline_of,
    pruning_shortfall,
    rarest_seen,
    replaced_runs,
    speedup_at_equal_clocks,
    stability_warning,
    typical_speedup,
    untrained_steps,
)
from scalewise.host import plural
from scalewise.records import advice
from scalewise.report.findings import workloads
from scalewise.report.sections import Note, Picture, Section, by_text, lines, section

_POWER_CAP = "power cap"
"""As the device series name it."""
_LAYERS_NAMED = 3
"""Layers that are named; the ranks' records have all of them."""


def faults(analysis: Analysis) -> Section:
    """What was wrong with runs that finished: shards, balance, throttling, damaged records.

    A power cap is no fault: it stands among the doubts.
    """
    found = []
    for config in analysis.measured:
        # A grade alone may be luck of one run; a fault is what holds over the runs.
        uneven = waited_for(analysis, config) is not None
        for run in config.runs:
            name, balance = run.cell.planned.name, run.balance
            if run.shards and run.shards.is_fault:
                found.append((name, f"{run.shards.verdict}: {run.shards.explanation}"))
            if uneven and balance and balance.grade in ("fair", "poor"):
                todo = advice(balance.grade, balance.slowest_rank, on_cpu=config.is_cpu)
                found.append((name, f"{balance.explanation}; {todo}"))
            if run.cell.imported is not None:
                found += [(name, one.reason) for one in check_published(run.cell.imported)]
        found += _held_back(config, at_power_cap=False)
    for cell in analysis.sweep.cells:
        for series in cell.devices:
            # Throttling stands above, from the samples themselves.
            alerts = [a for a in series.alerts if a.condition != "throttling"]
            found += [(cell.planned.name, alert.text) for alert in alerts]
        found += [(cell.planned.name, problem) for problem in cell.problems]
    return section("faults", "Faults found", lines([*analysis.sweep.problems, *by_text(found)]))


def waited_for(analysis: Analysis, config: Configuration) -> int | None:
    """The rank whose lateness is a limit of a configuration; None where none is named."""
    budget = analysis.budgets.get(config.config_id)
    waiting = budget.loss("waiting") if budget is not None else None
    return waiting.rank if waiting is not None and waiting.is_limit else None


def _held_back(config: Configuration, *, at_power_cap: bool) -> Iterator[tuple[str, str]]:
    """Cells and what slowed a GPU of theirs, with how often over all runs of the configuration.

    Either what the power cap alone slowed, which is where a GPU that works hard is to be, or what
    anything else did.
    """
    seen: dict[str, list[tuple[str, float | None, int]]] = {}
    for run in config.runs:
        for device in run.usage.devices if run.usage else ():
            reasons = device.throttle_reasons
            if reasons and (set(reasons) == {_POWER_CAP}) == at_power_cap:
                text = f"{device.label} was held back by {', '.join(reasons)}"
                found = (run.cell.planned.name, device.throttled_share, device.samples)
                seen.setdefault(text, []).append(found)
    for text, cells in seen.items():
        percents = sorted(
            {f"{100 * share:.0f}" for _, share, _ in cells if share is not None}, key=int
        )
        ends = " to ".join(dict.fromkeys((percents[0], percents[-1]))) if percents else ""
        samples = sum(count for _, _, count in cells)
        often = f" in {ends} % of its samples (n={samples})" if ends else ""
        no_fault = ", no fault in a GPU that works hard" if at_power_cap else ""
        yield from ((name, f"{text}{often}{no_fault}") for name, _, _ in cells)


def disturbances(analysis: Analysis) -> Section:
    """What disturbed the runs; files also say what cannot be told and what there is not."""
    if not any(cell.result is not None for cell in analysis.sweep.cells):
        return section("disturbances", "")
    on_gpus = any(
        rank.device.kind == "cuda"
        for cell in analysis.sweep.cells
        if cell.result
        for rank in cell.result.ranks
    )
    untold = []
    for code in CODES if on_gpus else CODES[len(DEVICE_CODES) :]:
        of_code = [one for one in analysis.disturbances if one.code == code]
        unknown = [(one.cell, one.detail) for one in of_code if one.status == "cannot be told"]
        untold += [f"{code}, cannot be told: {line}" for line in by_text(unknown)]
        untold += [] if of_code else [f"{code}: none found"]
    return section(
        "disturbances",
        "Processes, memory and stalls",
        lines(line for code in CODES for line in _found(analysis, code)),
        lines(untold, where="page"),
        Note("A finding says what happened beside the training; it makes no run invalid. A busy "
             "host stalls all ranks too."),
        Picture("step_times.png",
                "Step time over time, every run and rank; the timed window is shaded"),
    )  # fmt: skip


def _found(analysis: Analysis, code: DisturbanceCode) -> Iterator[str]:
    """``gpt2 ddp, common_stall in 3 of 3 runs: ...``, with the details of the first run."""
    by_cell: dict[str, list[Disturbance]] = {}
    for one in analysis.disturbances:
        if (one.code, one.status) == (code, "found"):
            by_cell.setdefault(one.cell, []).append(one)
    for config in analysis.configurations:
        names = [cell.planned.name for cell in config.cells if cell.result is not None]
        hit = [name for name in names if name in by_cell]
        if hit:
            details = "; ".join(one.detail for one in by_cell[hit[0]])
            where = f" ({hit[0]})" if len(names) > 1 else ""
            count = f"{len(hit)} of {len(names)} {plural(len(names), 'run')}"
            yield f"{config.label}, {code} in {count}: {details}{where}"


def doubts(analysis: Analysis) -> Section:
    """Doubts about the figures, one line each."""
    found = [f"quarantined: {device}" for device in analysis.sweep.quarantined]
    found += replaced_runs(analysis.sweep)
    found += by_text(_unstable(analysis), "configuration")
    found += [line for pair in analysis.pairs for line in _two_speedups(pair)]
    found += [line for pair in analysis.pairs for line in _clocks(analysis, pair)]
    for config in analysis.measured:
        found += [line for run in config.runs if (line := long_step_line(run))]
        found += [
            f"{run.cell.planned.name}: {run.cell.warm_up}"
            for run in config.runs
            if run.cell.warm_up is not None and run.cell.warm_up.rule == "not steady"
        ]
        found += [f"{config.label}: {text}" for text in _of_one(config)]
    capped = [one for config in analysis.measured for one in _held_back(config, at_power_cap=True)]
    found += by_text(capped)
    found += _unequal_samples(analysis)
    found += _unseen(analysis)
    return section("doubts", "Doubts", lines(found))


def _of_one(config: Configuration) -> Iterator[str]:
    """Doubts about one configuration."""
    yield from _set_aside(config)
    yield from _fallbacks(config)
    yield from _fp8_layers(config)
    ranks = config.rank_summaries
    for doubt in (pruning_shortfall(config), count_doubt(ranks), untrained_steps(ranks)):
        if doubt:
            yield doubt
    retries = {r.rank: r.allocation_retries for r in ranks if r.allocation_retries}
    if retries:
        each = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(retries.items()))
        yield (
            f"the allocator emptied its cache and tried again ({each} times); a smaller "
            "batch_size, execution.activation_checkpointing=true or strategy=fsdp needs none"
        )
    yield from _outlying(config)
    yield from _missing(config)


def _two_speedups(pair: Pair) -> Iterator[str]:
    """Of means and of medians, and which side's long steps pull them apart."""
    found = typical_speedup(pair)
    if found is not None and found.differs:
        yield (
            f"{pair.multi.label}: speedup {factor(found.of_means)} by mean steps, "
            f"{factor(found.of_medians)} by median ones: long steps make the mean "
            f"{factor(found.multi_mean_over_median)} medians on {pair.devices} devices and "
            f"{factor(found.single_mean_over_median)} on one; verdict and cost are of the mean"
        )


def _clocks(analysis: Analysis, pair: Pair) -> Iterator[str]:
    """The speedup at equal clocks, where those of the two sides differ by 1 % or more."""
    found = speedup_at_equal_clocks(analysis, pair)
    if found is not None and found != pair.speedup.value:
        single, multi = (mean_clock_mhz(side) or 0.0 for side in (pair.single, pair.multi))
        yield (
            f"{pair.multi.label}: speedup {factor(pair.speedup.value)} as measured, "
            f"{'up' if found > pair.speedup.value else 'down'} to {factor(found)} at equal SM "
            f"clocks ({single:,.0f} MHz on one device, {multi:,.0f} on {pair.devices}), less far "
            "where kernels wait for memory"
        )


_MORE_RUNS = (5, 8, 12, 36)
"""Runs beside which it is told what those at hand cannot see."""


def _unseen(analysis: Analysis) -> Iterator[str]:
    """What no interval of the fewest runs that a verdict was reached with can tell."""
    runs = min((n for p in analysis.pairs if (n := min(p.speedup.n)) >= VERDICT_RUNS), default=None)
    if runs is not None:
        more = (f"{n}: {100 * rarest_seen(n):.0f}" for n in _MORE_RUNS if n > runs)
        others = ", ".join(more)
        yield (
            f"{runs} runs cannot see a slow mode rarer than {100 * rarest_seen(runs):.0f} %"
            f"{f' ({others})' if others else ''}"
        )


def _unstable(analysis: Analysis) -> Iterator[tuple[str, str]]:
    for config in analysis.measured:
        figure = config.estimate("samples_per_s")
        monitored = is_monitored(config.cells[0].config)
        warning = stability_warning(figure, monitored) if figure else None
        if warning:
            yield config.label, warning


def _unequal_samples(analysis: Analysis) -> Iterator[str]:
    """For each workload whose losses were reached after unequal numbers of samples."""
    for rows in workloads(analysis):
        seen = [run.loss.samples[-1] for row in rows for run in row.runs if run.loss]
        if len(rows) > 1 and len(set(seen)) > 1:
            names = (rows[0].name("model"), rows[0].name("dataset"))
            yield (
                f"{' on '.join(name for name in names if name)}: losses were reached at unequal "
                f"samples ({min(seen):,} to {max(seen):,}): they do not rank the rows"
            )


def _set_aside(config: Configuration) -> Iterator[str]:
    """Repeats that are not compared, each with its reason."""
    finished = len(config.runs) + len(config.aside)
    for one in config.aside:
        yield (
            f"{one.cell.planned.name} is set aside, {len(config.aside)} of "
            f"{finished} repeats: it {one.reason}"
        )


def _fallbacks(config: Configuration) -> Iterator[str]:
    """Each reason why a run did not execute as requested."""
    reasons: dict[str, int] = {}
    for run in config.runs:
        result = run.cell.result
        executed = result.ranks[0].execution if result is not None else None
        if executed is not None and executed.fell_back_because is not None:
            line = (
                f"execution={executed.requested} was asked for, but the steps ran "
                f"{executed.ran}: {executed.fell_back_because}"
            )
            reasons[line] = reasons.get(line, 0) + 1
    for line, count in reasons.items():
        yield line + (
            f" (in {count} of {len(config.runs)} runs)" if count < len(config.runs) else ""
        )


def _fp8_layers(config: Configuration) -> Iterator[str]:
    """How many linear layers multiplied in fp8, and which did not."""
    result = config.runs[0].cell.result
    fp8 = result.ranks[0].fp8 if result is not None else None
    if fp8 is None:
        return
    others, count = fp8.other_layers, len(fp8.fp8_layers)
    names = f": not {listed(others, _LAYERS_NAMED)}" if others else ""
    yield f"{count} of {count + len(others)} linear layers ran in fp8{names}"


def _outlying(config: Configuration) -> Iterator[str]:
    values = config.values("samples_per_s")
    flagged, without = outliers(values), estimate_without_outliers(values)
    if flagged and without:
        yield (
            f"{len(flagged)} of {len(values)} runs lie far out (modified Z-score "
            f"beyond 3.5); with them {estimate(config.estimate('samples_per_s'))} samples/s, "
            f"without {estimate(without)}"
        )


def _missing(config: Configuration) -> Iterator[str]:
    # One device has no balance, and that is no loss; nor have stages that take turns.
    unequal = config.devices != 1 and not any(pipeline_of(run.cell) for run in config.runs)
    for name in dict.fromkeys(name for run in config.runs for name in run.missing):
        reasons = [run.missing[name] for run in config.runs if name in run.missing]
        if name != "balance" or unequal:
            some = len(reasons) < len(config.runs)
            where = f" in {len(reasons)} of {len(config.runs)} runs" if some else ""
            yield f"{name} is missing{where}: {reasons[-1]}"

"""What went wrong and what to doubt: faults, disturbances, and reasons to doubt a figure."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from scalewise.analysis import (
    CODES,
    DEVICE_CODES,
    VERDICT_RUNS,
    Analysis,
    Configuration,
    DisturbanceCode,
    Doubt,
    DoubtCode,
    Pair,
    check_published,
    count_doubt,
    count_range,
    device_words,
    disturbed_runs,
    estimate,
    estimate_without_outliers,
    factor,
    grouped,
    is_monitored,
    listed,
    long_step_line,
    mean_clock_mhz,
    outliers,
    pipeline_of,
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
from scalewise.report.sections import Lines, Note, Section, by_text, lines, section

_POWER_CAP = "power cap"
"""As the device series name it."""
_GRAVEST_FIRST: tuple[DoubtCode, ...] = get_args(DoubtCode)
_OF_ONE: tuple[DoubtCode, ...] = ("untrained", "long_step", "disturbed")
_MOST_ALIKE = 2
"""Cells or configurations that are named where a doubt concerns several."""
_MORE_RUNS = (5, 8, 12, 36)
"""Runs beside which it is told what those at hand cannot see."""
_LAYERS_NAMED = 3
"""Layers that are named; the ranks' records have all of them."""


def counts_in_report(analysis: Analysis) -> dict[str, tuple[int, str]]:
    """How many faults, findings and doubts there are, and where details.md has them."""
    found = (
        ("fault", faults(analysis), "faults-found"),
        ("finding", disturbances(analysis), "processes-memory-and-stalls"),
        ("doubt", doubts(analysis), "doubts"),
    )
    return {
        noun: (count, anchor)
        for noun, part, anchor in found
        if (count := sum(len(block.lines) for block in part.blocks
                         if isinstance(block, Lines) and block.where != "page"))
    }  # fmt: skip


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
        percents = {round(100 * share) for _, share, _ in cells if share is not None}
        ends = count_range(percents) if percents else ""
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
    )  # fmt: skip


def _found(analysis: Analysis, code: DisturbanceCode) -> Iterator[str]:
    """``gpt2 ddp, common_stall in 3 of 3 runs: ...``, with the details of the first run."""
    own = (one for one in analysis.disturbances if (one.code, one.status) == (code, "found"))
    by_cell = grouped(own, lambda one: one.cell)
    for config in analysis.configurations:
        names = [cell.planned.name for cell in config.cells if cell.result is not None]
        hit = [name for name in names if name in by_cell]
        if hit:
            details = "; ".join(one.detail for one in by_cell[hit[0]])
            where = f" ({hit[0]})" if len(names) > 1 else ""
            count = f"{len(hit)} of {len(names)} {plural(len(names), 'run')}"
            yield f"{config.label}, {code} in {count}: {details}{where}"


def doubts(analysis: Analysis) -> Section:
    """All doubts about the figures, one line each, the gravest first."""
    said = (f"{one.of}: {one.text}" if one.of else one.text for one in find_doubts(analysis))
    return section("doubts", "Doubts", lines(said))


@functools.lru_cache(maxsize=1)
def find_doubts(analysis: Analysis) -> tuple[Doubt, ...]:
    """Each doubt once, with all whom it concerns; the gravest first."""
    found = [Doubt("replaced", text) for text in replaced_runs(analysis.sweep)]
    for pair in analysis.pairs:
        # The others are told of each configuration.
        own = (one for one in pair.doubts if one.code not in _OF_ONE)
        found += [replace(one, of=pair.multi.label) for one in own]
        found += _of_pair(analysis, pair)
    # Of what is true of both sides of a pair, the terminal names several devices.
    for config in sorted(analysis.measured, key=lambda config: -(config.devices or 0)):
        found += [replace(one, about=(config.config_id,)) for one in _of_one(config)]
    found += [*_unequal_samples(analysis), *_unseen(analysis)]
    found.sort(key=lambda one: _GRAVEST_FIRST.index(one.code))
    return tuple(
        replace(
            same[0],
            of=listed(list(dict.fromkeys(one.of for one in same)), _MOST_ALIKE),
            about=tuple(dict.fromkeys(config_id for one in same for config_id in one.about)),
        )
        for same in grouped(found, lambda one: (one.code, one.text)).values()
    )


def _of_pair(analysis: Analysis, pair: Pair) -> Iterator[Doubt]:
    """What its loss, its median steps and its clocks say against a speedup."""
    about, label = (pair.multi.config_id,), pair.multi.label
    strong = pair.multi.identity.get("scaling") == "strong"
    if pair.loss and pair.loss.ratio and strong and pair.loss.learns_less:
        higher = f"{factor(pair.loss.ratio.value)} times the single device's"
        text = f"it learns less: {pair.loss.name} at {pair.loss.where} is {higher}"
        brief = f"it learns less: {pair.loss.name} is {higher}"
        yield Doubt("learns_less", text, brief, label, about)
    typical = typical_speedup(pair)
    if typical is not None and typical.differs:
        medians = factor(typical.of_medians)
        text = (
            f"speedup {factor(typical.of_means)} by mean steps, {medians} by median ones: long "
            f"steps make the mean {factor(typical.multi_mean_over_median)} medians on "
            f"{pair.devices} devices and {factor(typical.single_mean_over_median)} on one; verdict "
            "and cost are of the mean"
        )
        brief = f"median steps alone give {medians}x: some steps are long"
        yield Doubt("medians", text, brief, label, about)
    clocks = speedup_at_equal_clocks(analysis, pair)
    if clocks is not None and clocks != pair.speedup.value:
        single, multi = (mean_clock_mhz(side) or 0.0 for side in (pair.single, pair.multi))
        text = (
            f"speedup {factor(pair.speedup.value)} as measured, "
            f"{'up' if clocks > pair.speedup.value else 'down'} to {factor(clocks)} at equal SM "
            f"clocks ({single:,.0f} MHz on one device, {multi:,.0f} on {pair.devices}), less far "
            "where kernels wait for memory"
        )
        brief = (
            f"it may be {factor(clocks)}x at equal SM clocks ({multi:,.0f} against {single:,.0f} "
            "MHz)"
        )
        yield Doubt("clocks", text, brief, label, about)


def _of_one(config: Configuration) -> Iterator[Doubt]:
    """Doubts about one configuration."""
    whose, label, ranks = device_words(config), config.label, config.rank_summaries
    figure = config.estimate("global_samples_per_s")
    monitored = is_monitored(config.cells[0].config)
    if figure and (warning := stability_warning(figure, monitored)):
        yield Doubt("few_runs", warning, of=label)
    yield from _of_runs(config, whose)
    yield from _fallbacks(config, whose)
    yield from _fp8_layers(config)
    if text := count_doubt(ranks):
        brief = f"the batches of {whose} have another size than their loader says"
        yield Doubt("batch_size", text, brief, label)
    if text := untrained_steps(ranks):
        yield Doubt("untrained", text, f"of {whose} {text.partition(' (')[0]}", label)
    retries = {r.rank: r.allocation_retries for r in ranks if r.allocation_retries}
    if retries:
        each = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(retries.items()))
        yield Doubt(
            "allocator",
            f"the allocator emptied its cache and tried again ({each} times); a smaller "
            "batch_size, execution.activation_checkpointing=true or strategy=fsdp needs none",
            of=label,
        )
    values = config.values("global_samples_per_s")
    flagged, without = outliers(values), estimate_without_outliers(values)
    if flagged and without:
        yield Doubt(
            "outliers",
            f"{len(flagged)} of {len(values)} runs lie far out (modified Z-score beyond 3.5); "
            f"with them {estimate(config.estimate('global_samples_per_s'))} samples/s, without "
            f"{estimate(without)}",
            of=label,
        )
    yield from _missing(config)
    held = _held_back(config, at_power_cap=True)
    yield from (Doubt("power_cap", text, of=name) for name, text in held)


def _of_runs(config: Configuration, whose: str) -> Iterator[Doubt]:
    """Single long steps, runs that never got steady, and repeats that are not compared."""
    for run in config.runs:
        if text := long_step_line(run):
            yield Doubt("long_step", text, f"single steps of {whose} took seconds")
    unsteady = [r for r in config.runs if r.cell.warm_up and r.cell.warm_up.rule == "not steady"]
    brief = f"steps of {whose} never got steady in {len(unsteady)} of {len(config.runs)} runs"
    many = len(unsteady) > _MOST_ALIKE
    for run in unsteady:
        text = brief if many else str(run.cell.warm_up)
        yield Doubt("unsteady", text, brief, run.cell.planned.name)
    if brief := disturbed_runs(config):
        yield Doubt("disturbed", f"{brief}: too many to set aside", brief, config.label)
    if config.set_aside:
        aside = f"{len(config.set_aside)} of {len(config.runs) + len(config.set_aside)} repeats"
        whys = [f"{one.cell.planned.name} {one.reason}" for one in config.set_aside]
        text = f"{aside} are set aside: {listed(whys, _MOST_ALIKE)}"
        yield Doubt("set_aside", text, f"{aside} of {whose} are set aside", config.label)


def _fallbacks(config: Configuration, whose: str) -> Iterator[Doubt]:
    """Each reason why a run did not execute as requested."""
    reasons: dict[tuple[str, str], int] = {}
    for run in config.runs:
        result = run.cell.result
        executed = result.ranks[0].execution if result is not None else None
        if executed is not None and executed.fell_back_because is not None:
            line = (
                f"execution={executed.requested} was asked for, but the steps ran "
                f"{executed.ran}: {executed.fell_back_because}"
            )
            brief = f"steps of {whose} ran {executed.ran}, not {executed.requested} as asked for"
            reasons[line, brief] = reasons.get((line, brief), 0) + 1
    for (line, brief), count in reasons.items():
        some = f" (in {count} of {len(config.runs)} runs)" if count < len(config.runs) else ""
        yield Doubt("fell_back", line + some, brief, config.label)


def _fp8_layers(config: Configuration) -> Iterator[Doubt]:
    """How many linear layers multiplied in fp8, and which did not."""
    result = config.runs[0].cell.result
    fp8 = result.ranks[0].fp8 if result is not None else None
    if fp8 is None:
        return
    others, count = fp8.other_layers, len(fp8.fp8_layers)
    names = f": not {listed(others, _LAYERS_NAMED)}" if others else ""
    text = f"{count} of {count + len(others)} linear layers ran in fp8{names}"
    yield Doubt("fp8", text, of=config.label)


def _missing(config: Configuration) -> Iterator[Doubt]:
    # One device has no balance, and that is no loss; nor have stages that take turns.
    unequal = config.devices != 1 and not any(pipeline_of(run.cell) for run in config.runs)
    for name in dict.fromkeys(name for run in config.runs for name in run.missing):
        reasons = [run.missing[name] for run in config.runs if name in run.missing]
        if name != "balance" or unequal:
            some = len(reasons) < len(config.runs)
            where = f" in {len(reasons)} of {len(config.runs)} runs" if some else ""
            yield Doubt("missing", f"{name} is missing{where}: {reasons[-1]}", of=config.label)


def _unequal_samples(analysis: Analysis) -> Iterator[Doubt]:
    """For each workload whose losses were reached after unequal numbers of samples."""
    for rows in workloads(analysis):
        seen = [run.loss.samples[-1] for row in rows for run in row.runs if run.loss]
        if len(rows) > 1 and len(set(seen)) > 1:
            text = (
                f"losses were reached at unequal samples ({min(seen):,} to {max(seen):,}): they "
                "do not rank the rows"
            )
            yield Doubt("unequal_samples", text, of=" on ".join(filter(None, rows[0].workload)))


def _unseen(analysis: Analysis) -> Iterator[Doubt]:
    """What no interval of the fewest runs that a verdict was reached with can tell."""
    runs = min((n for p in analysis.pairs if (n := min(p.speedup.n)) >= VERDICT_RUNS), default=None)
    if runs is not None:
        others = ", ".join(f"{n}: {100 * rarest_seen(n):.0f}" for n in _MORE_RUNS if n > runs)
        rarest = f"{runs} runs cannot see a slow mode rarer than {100 * rarest_seen(runs):.0f} %"
        yield Doubt("unseen", rarest + (f" ({others})" if others else ""))

"""Rules that doubt figures: of one configuration, of a speedup, of a whole sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from scalewise.analysis.comparability import grouped
from scalewise.analysis.comparison import replaced_runs
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.disturbances import FOREIGN_CPU_UP_TO, disturbances, is_disturbed
from scalewise.analysis.figures import estimate, factor, interval_words, listed
from scalewise.analysis.loss_budget import LossBudget, reductions_per_step
from scalewise.analysis.model import CellRecords, Sweep
from scalewise.analysis.remarks import WORDS, Remark
from scalewise.analysis.run import Run
from scalewise.analysis.scaling import Pair
from scalewise.analysis.statistics import VERDICT_RUNS, estimate_positive
from scalewise.analysis.step_parts import long_step_figures
from scalewise.analysis.steps import pipeline_of
from scalewise.analysis.validity import check_published, untrained_steps
from scalewise.analysis.verdict import LINEAR_UP_TO, outliers, stability_warning
from scalewise.records import FRESH_START, advice, data_shards_of

Budgets = Mapping[str, LossBudget]
"""``config_id`` to where its time goes; absent where no run of it was timed."""
MEDIANS_APART = 1.10
"""Both speedups are reported from this ratio between them on, in either direction."""
_MUCH_OF_TIME = 0.75
"""Share of the seconds that were asked for below which a run was timed too short."""
_MOST_NAMED = 3
"""Layers or repeats that are named; the records have all of them."""


def doubt_speedup(pair: Pair, budgets: Budgets) -> Pair:
    """The pair with what must be known of its speedup beside the interval.

    A crowd that slows every run of one side alike moves the speedup without widening its interval.
    A whole interval beyond linear, at equal SM clocks, is *invalid*, or *undecided* where others
    held the single device's cores; where that is short of memory, devices do gain so much.
    *Undecided* too is what would be another verdict without the time that others held cores.
    """
    if pair.invalid:
        return pair
    found = [*_of_speedup(pair, budgets), *_of_both_sides(pair, budgets)]
    about = pair.multi.config_id
    own = (one for side in (pair.single, pair.multi) for one in _of_timing(side))
    return replace(pair, remarks=(*(replace(one, about=about) for one in found), *own))


def _of_speedup(pair: Pair, budgets: Budgets) -> Iterator[Remark]:
    """Whether others or nothing that was measured made it what it is."""
    held = [
        (side, loss)
        for side in (pair.single, pair.multi)
        if (budget := budgets.get(side.config_id))
        and (loss := budget.loss("contention"))
        and loss.is_limit
    ]
    clocks, interval = clock_ratio(pair), pair.efficiency.interval
    beyond = interval is not None and interval.low / clocks > LINEAR_UP_TO
    quiet = _without_contention(pair, budgets) if held else None
    explained = beyond and any(side is pair.single for side, _ in held)
    if quiet is not None and pair.verdict in ("pays", "does not pay"):
        explained |= (quiet >= pair.judgement.wanted) != (pair.verdict == "pays")
    if explained:
        sides = " and ".join(f"{c.device_words} for {loss.ms:.3g} ms a step" for c, loss in held)
        known = "unknown" if quiet is None else factor(quiet)
        yield Remark("contention", {"sides": sides, "quiet": known})
    elif beyond:
        # Several devices do gain what a single one loses for want of memory.
        thrashes = any(rank.allocation_retries for rank in pair.single.rank_summaries)
        code = "above_linear" if pair.multi.is_ceiling or thrashes else "superlinear"
        known = "" if clocks == 1 else f" at {factor(clocks)} times the single device's clock"
        yield Remark(code, {"efficiency": pair.efficiency.value, "clock": known})
    elif min(pair.speedup.n) < VERDICT_RUNS and pair.efficiency.value / clocks > LINEAR_UP_TO:
        yield Remark("above_linear", {"efficiency": pair.efficiency.value})


def _without_contention(pair: Pair, budgets: Budgets) -> float | None:
    """The speedup without the time for which other processes held the cores of either side."""
    single, multi = (budgets.get(side.config_id) for side in (pair.single, pair.multi))
    if single is None or multi is None or multi.ideal_ms is None:
        return None
    ours, theirs = multi.loss("contention"), single.loss("contention")
    share = theirs.share if theirs else 0.0
    # That of several devices is counted from their ideal on.
    left_ms = multi.measured_ms - (ours.ms if ours else 0.0) - share * multi.ideal_ms
    return pair.speedup.value * (1 - share) * multi.measured_ms / left_ms if left_ms > 0 else None


def clock_ratio(pair: Pair) -> float:
    """Mean SM clock over runs of several devices over that of one; 1 where it was not read.

    One GPU that works hard is held at its power cap, while several that wait run faster.
    """
    multi, single = pair.multi.clock_mhz, pair.single.clock_mhz
    return multi / single if multi and single else 1.0


def _of_both_sides(pair: Pair, budgets: Budgets) -> Iterator[Remark]:
    loss = pair.loss
    # Under weak scaling several devices take fewer, larger steps.
    if loss and loss.ratio and loss.learns_less and pair.multi.identity.get("scaling") == "strong":
        figures = {"loss": loss.name, "ratio": loss.ratio.value, "where": loss.where}
        yield Remark("learns_less", {**figures, "interval": interval_words(loss.ratio)})
    of_means, of_medians, steps = pair.speedup.value, pair.speedup_of_medians, pair.median_steps
    if of_medians and steps and max(of_medians / of_means, of_means / of_medians) > MEDIANS_APART:
        figures = {
            "by_means": of_means, "by_medians": of_medians,
            "multi": steps[0].mean_over_median, "single": steps[1].mean_over_median,
        }  # fmt: skip
        yield Remark("medians", figures)
    budget = budgets.get(pair.multi.config_id)
    if budget is not None and budget.at_equal_clocks not in (None, 1.0):
        measured = pair.speedup.value
        figures = {
            "measured": measured, "equal": budget.at_equal_clocks * measured,
            "single_mhz": pair.single.clock_mhz, "multi_mhz": pair.multi.clock_mhz,
        }  # fmt: skip
        yield Remark("clocks", figures)


def _of_timing(config: Configuration) -> Iterator[Remark]:
    """What of a configuration concerns every speedup that it has a part in."""
    about, left_out = config.config_id, untrained_steps(config.rank_summaries)
    if left_out and "untrained" not in (one.code for one in config.invalid):
        yield Remark("few_untrained", left_out, about)
    for run in config.runs:
        if figures := long_step_figures(run):
            yield Remark("long_step", figures, about, run.cell.planned.name)
    if hit := sum(is_disturbed(run.cell) for run in config.runs):
        figures = {"percent": 100 * FOREIGN_CPU_UP_TO, "hit": hit, "runs": len(config.runs)}
        yield Remark("disturbed", figures, about)


def find_remarks(
    sweep: Sweep, configs: Sequence[Configuration], pairs: Sequence[Pair], budgets: Budgets
) -> tuple[Remark, ...]:
    """All that must be known of the figures of a sweep, the gravest first."""
    found = [Remark("replaced", {"line": line}) for line in replaced_runs(sweep)]
    found += [Remark("records_damaged", {"problem": problem}) for problem in sweep.problems]
    # Of what is true of several, those on most devices are named.
    for config in sorted(configs, key=lambda config: -(config.devices or 0)):
        own = [one for cell in config.cells for one in _of_cell(cell)]
        if config.is_timed and config.runs:
            own += [*_of_configuration(config, budgets.get(config.config_id)), *_of_timing(config)]
        found += [replace(one, about=config.config_id) for one in own]
    # Those of a pair that are no configuration's alone.
    known = {(one.code, one.about, one.run) for one in found}
    each = (one for pair in pairs for one in pair.remarks)
    found += [one for one in each if (one.code, one.about, one.run) not in known]
    found += [*_unequal_samples(configs)]
    return tuple(sorted(found, key=lambda one: [*WORDS].index(one.code)))


def _of_cell(cell: CellRecords) -> Iterator[Remark]:
    name = cell.planned.name
    yield from (Remark("records_damaged", {"problem": one}, run=name) for one in cell.problems)
    # Throttling is told from the samples themselves.
    alerts = (a for series in cell.devices for a in series.alerts if a.condition != "throttling")
    yield from (Remark("alert", {"alert": alert.text}, run=name) for alert in alerts)
    yield from disturbances(cell)


def _of_configuration(config: Configuration, budget: LossBudget | None) -> Iterator[Remark]:
    late = budget is not None and budget.late_rank is not None
    for run in config.runs:
        yield from run.invalid
        name = run.cell.planned.name
        yield from (replace(one, run=name) for one in _of_run(config, run, is_uneven=late))
    rates = config.values("global_samples_per_s")
    figure = config.estimate("global_samples_per_s")
    if figure and (warning := stability_warning(figure, config.started_by)):
        yield Remark("few_runs", {"warning": warning})
    if aside := config.set_aside:
        whys = [f"{one.cell.planned.name} {one.reason}" for one in aside]
        repeats = len(config.runs) + len(aside)
        reasons = listed(whys, _MOST_NAMED)
        yield Remark("set_aside", {"count": len(aside), "repeats": repeats, "reasons": reasons})
    if reductions_per_step(config) == 0:
        yield Remark("nothing_sent")
    retries = {r.rank: r.allocation_retries for r in config.rank_summaries if r.allocation_retries}
    if retries:
        each = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(retries.items()))
        yield Remark("allocator", {"ranks": each})
    if flagged := outliers(rates):
        without = estimate_positive([v for i, v in enumerate(rates) if i not in flagged])
        words = {"whole": estimate(figure), "without": estimate(without)}
        yield Remark("outliers", {"count": len(flagged), "runs": len(rates), **words})


def _of_run(config: Configuration, run: Run, *, is_uneven: bool) -> Iterator[Remark]:
    """``is_uneven``: a rank is late over the runs; one run's grade alone may be luck."""
    if run.shards and run.shards.verdict == "incomplete":
        yield Remark("shards_incomplete", {"explanation": run.shards.explanation})
    balance, warm_up = run.balance, run.cell.warm_up
    if is_uneven and balance and balance.grade in ("fair", "poor"):
        todo = advice(balance.grade, balance.slowest_rank)
        figures = {"rank": balance.slowest_rank, "explanation": balance.explanation, "advice": todo}
        yield Remark("imbalance", figures)
    if run.cell.imported is not None:
        yield from check_published(run.cell.imported)
    if warm_up and warm_up.rule == "not steady":
        yield Remark("unsteady", {"warm_up": str(warm_up)})
    length, timed_s = run.ranks[0].length, run.throughput.seconds if run.throughput else 0.0
    if length and length.announced_step and timed_s < _MUCH_OF_TIME * length.min_time_s:
        yield Remark("timed_short", {"timed_s": timed_s, "asked_s": length.min_time_s})
    for device in run.usage.devices if run.usage else ():
        if reasons := device.throttle_reasons:
            figures = {"device": device.label, "reasons": ", ".join(reasons)}
            share, samples = device.throttled_share, device.samples
            often = "" if share is None else f"in {share:.0%} of its samples (n={samples})"
            code = "throttled" if device.power_capped_share is None else "power_cap"
            yield Remark(code, {**figures, "share": share, "samples": samples, "often": often})
    first = run.ranks[0]
    if (ran := first.execution) and ran.fell_back_because is not None:
        figures = {"ran": ran.ran, "requested": ran.requested, "because": ran.fell_back_because}
        yield Remark("fell_back", figures)
    # Whoever wrote it knows nothing of what could have been seen.
    is_told = bool(config.setting("script.command")) or config.setting("dataset.name") == "own"
    for name, why in first.missing.items():
        if name == "shard_audit" and len(set(data_shards_of(run.ranks))) < 2:
            continue  # a rank alone, or ranks that are to feed the same
        if f"no_{name}" in WORDS:
            yield Remark(f"no_{name}", {"why": why})
        elif is_told or name == FRESH_START:
            yield Remark("missing", {"figure": name, "why": why})
    # One device has no balance, and that is no loss; nor have stages that take turns.
    usual = () if config.devices != 1 and not pipeline_of(run.cell) else ("balance",)
    for name, why in run.missing.items():
        if name not in usual:
            yield Remark("missing", {"figure": name, "why": why})


def _unequal_samples(configs: Sequence[Configuration]) -> Iterator[Remark]:
    """For each workload whose losses were reached after unequal numbers of samples."""
    timed = (config for config in configs if config.is_timed and config.runs)
    for rows in grouped(timed, lambda config: config.workload).values():
        seen = set[int]().union(*(row.samples_reached for row in rows))
        if len(rows) > 1 and len(seen) > 1:
            what = " on ".join(filter(None, rows[0].workload))
            figures = {"workload": what, "least": min(seen), "most": max(seen)}
            yield Remark("unequal_samples", figures)

"""What a sweep found, in sentences: answers, warnings, faults and where it all came from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from scalewise.analysis.apart import timed_only
from scalewise.analysis.balance import LoadBalance, advice
from scalewise.analysis.ceiling import under_ceiling
from scalewise.analysis.doubts import changed_files, hiccup_lines
from scalewise.analysis.figures import estimate, factor, number, ratio
from scalewise.analysis.kinds import is_monitored
from scalewise.analysis.own_code import changed_own_code
from scalewise.analysis.pipeline import pipeline_of
from scalewise.analysis.pruned import pruning_shortfall
from scalewise.analysis.replaced import replaced_runs
from scalewise.analysis.resolution import detectable_speedup
from scalewise.analysis.runs import Configuration
from scalewise.analysis.stability import estimate_without_outliers, outliers, stability_warning
from scalewise.analysis.statistics import estimate_positive
from scalewise.analysis.summary import Analysis
from scalewise.analysis.untrained import untrained_steps
from scalewise.report import cost
from scalewise.report.execution import fallbacks, fp8_layers
from scalewise.report.swept import unequal_samples

_POWER_CAP = "power cap"
"""As the device series name it."""


def answers(analysis: Analysis) -> list[tuple[str, str, str]]:
    """``(configuration, verdict, reason)`` for everything that ran on several devices."""
    found: list[tuple[str, str, str]] = []
    for config in analysis.measured:
        pair, refused = analysis.pair(config), analysis.refusal(config)
        if pair:
            reason = pair.judgement.reason
            if pair.loss:
                reason += (
                    f"; {pair.loss.name} at {pair.loss.samples:,} samples: "
                    f"{number(pair.loss.multi)} (single: {number(pair.loss.single)})"
                )
            near = under_ceiling(config, analysis.measured)
            if near:
                reason += f"; {ratio(near.share)} of the ceiling, {near.ceiling.label}"
            costs = cost.sentence(analysis, pair)
            reason += f"; {costs}" if costs else ""
            found.append((config.label, pair.judgement.verdict, reason))
        elif refused:
            found.append((config.label, "not comparable", refused.reason))
    return found


def command(analysis: Analysis) -> str:
    """What the user typed, the program by its name alone: folders are nobody's business."""
    typed = analysis.sweep.command
    return shlex.join([PurePath(typed[0]).name, *typed[1:]]) if typed else ""


def counts(analysis: Analysis) -> str:
    """``12 cells: 10 done, 1 failed, 1 skipped``."""
    states = [cell.state for cell in analysis.sweep.cells]
    each = [f"{states.count(s)} {s}" for s in dict.fromkeys(states)]
    return f"{len(states)} cell{'s' if len(states) != 1 else ''}: {', '.join(each) or 'none'}"


def limits(analysis: Analysis) -> list[str]:
    """What limits each configuration, the main limit first, with the test that would refute it."""
    found = []
    for config in analysis.measured:
        for i, diagnosis in enumerate(analysis.diagnoses[config.config_id]):
            rank = "main limit" if i == 0 else "also"
            found.append(f"{config.label}, {rank}: {diagnosis}. Test: {diagnosis.refutation}.")
    return found


def mfu(analysis: Analysis) -> list[str]:
    """MFU of each configuration against each peak that is known, or why there is none."""
    found, without = [], []
    for config in analysis.measured:
        results = analysis.mfu.get(config.config_id, ())
        peaks = dict.fromkeys(f.against for r in results for f in r.figures)
        for peak in peaks:
            figures = [f for r in results for f in r.figures if f.against == peak]
            share = estimate(estimate_positive([100 * f.share for f in figures]))
            found.append(
                f"{config.label}: {share} % of the {peak} ({number(figures[0].achieved_tflops)} of "
                f"{number(figures[0].peak_tflops)} TFLOP/s a device; {figures[0].source})"
            )
        if results and not peaks:
            reasons = dict.fromkeys(results[0].missing.values())
            without.append((config.label, f"no MFU: {'; '.join(reasons)}"))
    return [*found, *by_text(without, "configuration")]


def decisions(analysis: Analysis) -> list[str]:
    """What ``strategy=auto`` chose and by which evidence, three lines for each choice."""
    found: dict[tuple[str, ...], str] = {}
    for cell in analysis.sweep.cells:
        if cell.decision is not None:
            found.setdefault(cell.decision.lines(), cell.planned.name)
    return [f"{name}: {line}" for lines, name in found.items() for line in lines]


def batch_sizes(analysis: Analysis) -> list[str]:
    """What ``batch_size=auto`` found, a line for each configuration that was trained with it."""
    found = []
    for config in timed_only(analysis.configurations):
        search, own = config.cells[0].batch_search, config.cells[0].config
        if search is not None and own is not None:
            found.append(f"{config.label}: {search.line(str(own['scaling']))}")
    return found


def repeats(analysis: Analysis) -> list[str]:
    """Who needed how many runs under ``repeats=auto``, and why."""
    return [str(group) for group in analysis.repeats]


def warnings(analysis: Analysis) -> list[str]:
    """Doubts about the figures, one line each."""
    found = [f"quarantined: {device}" for device in analysis.sweep.quarantined]
    found += changed_files(analysis.configurations)
    found += changed_own_code(analysis.configurations)
    found += replaced_runs(analysis.sweep)
    found += by_text(list(_unstable(analysis)), "configuration")
    found += hiccup_lines(analysis.measured, analysis.diagnoses)
    for config in analysis.measured:
        found += set_aside(config)
        found += [*fallbacks(config), *fp8_layers(config)]
        shortfall = pruning_shortfall(config)
        if shortfall:
            found.append(f"{config.label}: {shortfall}")
        untrained = untrained_steps(config)
        if untrained:
            found.append(f"{config.label}: {untrained}")
        found += _outlier_lines(config)
        found += _missing(config)
    capped = [one for config in analysis.measured for one in _held_back(config, at_power_cap=True)]
    found += by_text(capped)
    found += unequal_samples(analysis)
    for pair in analysis.pairs:
        if pair.judgement.verdict == "inconclusive":
            least = detectable_speedup(pair)
            if least is not None:
                found.append(
                    f"{pair.multi.label}: with these runs only a speedup beyond {factor(least)} "
                    f"(or below {factor(1 / least)}) would be seen four times in five"
                )
    return found


def faults(analysis: Analysis) -> list[str]:
    """What was wrong with runs that finished: shards, balance, throttling, damaged records.

    A power cap is no fault: it stands among the doubts.
    """
    found = []
    for config in analysis.measured:
        limits = {found.limit for found in analysis.diagnoses.get(config.config_id, ())}
        # A grade alone may be luck of one run; a fault is what holds over the runs.
        uneven = bool(limits & {"straggler", "uneven shards"})
        for run in config.runs:
            name = run.cell.planned.name
            if run.shards and run.shards.is_fault:
                found.append((name, f"{run.shards.verdict}: {run.shards.explanation}"))
            if uneven and run.balance and run.balance.grade in ("fair", "poor"):
                found.append((name, f"{run.balance.explanation}; {_advice(config, run.balance)}"))
        found += _held_back(config, at_power_cap=False)
    for cell in analysis.sweep.cells:
        for series in cell.devices:
            # Throttling stands above, from the samples themselves.
            alerts = [a for a in series.alerts if a.condition != "throttling"]
            found += [(cell.planned.name, alert.text) for alert in alerts]
        found += [(cell.planned.name, problem) for problem in cell.problems]
    return [*analysis.sweep.problems, *by_text(found)]


def _held_back(config: Configuration, *, at_power_cap: bool) -> Iterator[tuple[str, str]]:
    """Cells and what slowed a GPU of theirs, with how often over all runs of the configuration.

    Either what the power cap alone slowed, which is where a GPU that works hard is to be, or what
    anything else did.
    """
    seen: dict[str, list[tuple[str, float | None]]] = {}
    for run in config.runs:
        for device in run.usage.devices if run.usage else ():
            reasons = device.throttle_reasons
            if reasons and (set(reasons) == {_POWER_CAP}) == at_power_cap:
                text = f"{device.label} was held back by {', '.join(reasons)}"
                seen.setdefault(text, []).append((run.cell.planned.name, device.throttled_share))
    for text, cells in seen.items():
        percents = sorted(
            {f"{100 * share:.0f}" for _, share in cells if share is not None}, key=int
        )
        ends = " to ".join(dict.fromkeys((percents[0], percents[-1]))) if percents else ""
        often = f" in {ends} % of its samples" if ends else ""
        no_fault = ", no fault in a GPU that works hard" if at_power_cap else ""
        yield from ((name, f"{text}{often}{no_fault}") for name, _ in cells)


def _advice(config: Configuration, balance: LoadBalance) -> str:
    return advice(balance.grade, balance.slowest_rank, on_cpu=config.is_cpu)


def by_text(found: Sequence[tuple[str, str]], noun: str = "cell") -> list[str]:
    """One line for everything that is true of several cells, or of what ``noun`` says."""
    names: dict[str, list[str]] = {}
    for name, text in found:
        names.setdefault(text, []).append(name)
    lines = []
    for text, cells in names.items():
        distinct = list(dict.fromkeys(cells))
        more = len(distinct) - 2
        others = f" and {more} more {noun}{'s' if more > 1 else ''}" if more > 0 else ""
        lines.append(f"{', '.join(distinct[:2])}{others}: {text}")
    return lines


def _unstable(analysis: Analysis) -> Iterator[tuple[str, str]]:
    for config in analysis.measured:
        figure = config.estimate("samples_per_s")
        monitored = is_monitored(config.cells[0].config)
        warning = stability_warning(figure, monitored) if figure else None
        if warning:
            yield config.label, warning


def set_aside(config: Configuration) -> Iterator[str]:
    """Repeats that are not compared, each with its reason."""
    finished = len(config.runs) + len(config.aside)
    for one in config.aside:
        yield (
            f"{config.label}: {one.run.cell.planned.name} is set aside, {len(config.aside)} of "
            f"{finished} repeats: it {one.reason}"
        )


def _outlier_lines(config: Configuration) -> Iterator[str]:
    values = config.values("samples_per_s")
    flagged, without = outliers(values), estimate_without_outliers(values)
    if flagged and without:
        yield (
            f"{config.label}: {len(flagged)} of {len(values)} runs lie far out (modified Z-score "
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
            yield f"{config.label}: {name} is missing{where}: {reasons[-1]}"

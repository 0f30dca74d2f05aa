"""Reasons to doubt the figures of a report, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis.doubts import hiccup_lines
from scalewise.analysis.figures import estimate, factor
from scalewise.analysis.kinds import is_monitored
from scalewise.analysis.lost_time import long_step_line
from scalewise.analysis.pipeline import pipeline_of
from scalewise.analysis.pruned import pruning_shortfall
from scalewise.analysis.rank_validity import count_doubt, untrained_steps
from scalewise.analysis.replaced import replaced_runs
from scalewise.analysis.resolution import detectable_speedup
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.analysis.stability import estimate_without_outliers, outliers, stability_warning
from scalewise.analysis.summary import Analysis
from scalewise.analysis.typical import typical_speedup
from scalewise.report.execution import fallbacks, fp8_layers
from scalewise.report.faults import held_back
from scalewise.report.gathered import by_text
from scalewise.report.swept import unequal_samples


def warnings(analysis: Analysis) -> list[str]:
    """Doubts about the figures, one line each."""
    found = [f"quarantined: {device}" for device in analysis.sweep.quarantined]
    found += replaced_runs(analysis.sweep)
    found += by_text(list(_unstable(analysis)), "configuration")
    found += hiccup_lines(analysis.measured, analysis.diagnoses)
    found += [line for pair in analysis.pairs for line in _two_speedups(pair)]
    for config in analysis.measured:
        found += [line for run in config.runs if (line := long_step_line(run))]
        found += _set_aside(config)
        found += [*fallbacks(config), *fp8_layers(config)]
        shortfall = pruning_shortfall(config)
        if shortfall:
            found.append(f"{config.label}: {shortfall}")
        miscounted = count_doubt(config.rank_summaries)
        if miscounted:
            found.append(f"{config.label}: {miscounted}")
        untrained = untrained_steps(config.rank_summaries)
        if untrained:
            found.append(f"{config.label}: {untrained}")
        found += _outlier_lines(config)
        found += _missing(config)
    capped = [one for config in analysis.measured for one in held_back(config, at_power_cap=True)]
    found += by_text(capped)
    found += unequal_samples(analysis)
    found += [line for pair in analysis.pairs for line in _resolution(pair)]
    return found


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


def _resolution(pair: Pair) -> Iterator[str]:
    least = detectable_speedup(pair) if pair.judgement.verdict == "inconclusive" else None
    if least is not None:
        yield (
            f"{pair.multi.label}: with these runs only a speedup beyond {factor(least)} "
            f"(or below {factor(1 / least)}) would be seen four times in five"
        )


def _unstable(analysis: Analysis) -> Iterator[tuple[str, str]]:
    for config in analysis.measured:
        figure = config.estimate("samples_per_s")
        monitored = is_monitored(config.cells[0].config)
        warning = stability_warning(figure, monitored) if figure else None
        if warning:
            yield config.label, warning


def _set_aside(config: Configuration) -> Iterator[str]:
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

"""What a sweep found, in sentences: answers, limits, and what was chosen for it."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from scalewise.analysis.apart import timed_only
from scalewise.analysis.ceiling import under_ceiling
from scalewise.analysis.figures import estimate, number, ratio
from scalewise.analysis.statistics import estimate_positive
from scalewise.analysis.summary import Analysis
from scalewise.plurals import plural
from scalewise.report import cost
from scalewise.report.gathered import by_text

BUSY = (
    "*Compute-bound* is a GPU that is busy, not one that is efficient: its SMs have work also "
    "while their kernels wait for memory. MFU says how much of the peak is reached."
)


def answers(analysis: Analysis) -> list[tuple[str, str, str]]:
    """``(configuration, verdict, reason)`` for all on several devices, and all that is invalid.

    What is invalid comes first.
    """
    found: list[tuple[str, str, str]] = []
    for config in analysis.measured:
        pair, refused = analysis.pair(config), analysis.refusal(config)
        invalid = analysis.invalid.get(config.config_id, ())
        if invalid:
            found.append((config.label, "invalid", "; ".join(one.reason for one in invalid)))
        elif pair:
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
    return sorted(found, key=lambda answer: answer[1] != "invalid")


def command(analysis: Analysis) -> str:
    """What the user typed, the program by its name alone: folders are nobody's business."""
    typed = analysis.sweep.command
    return shlex.join([PurePath(typed[0]).name, *typed[1:]]) if typed else ""


def counts(analysis: Analysis) -> str:
    """``12 cells: 10 done, 1 failed, 1 skipped``."""
    states = [cell.state for cell in analysis.sweep.cells]
    each = [f"{states.count(s)} {s}" for s in dict.fromkeys(states)]
    return f"{len(states)} {plural(len(states), 'cell')}: {', '.join(each) or 'none'}"


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
            # Geometric means, as the share's: the one over the other is the share again.
            achieved = estimate_positive([f.achieved_tflops for f in figures]).value
            top = estimate_positive([f.peak_tflops for f in figures]).value
            sources = " and ".join(dict.fromkeys(f.source for f in figures))
            found.append(
                f"{config.label}: {share} % of the {peak} ({number(achieved)} of {number(top)} "
                f"TFLOP/s a device, {len(figures)} of {len(results)} "
                f"{plural(len(results), 'run')}; {sources})"
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

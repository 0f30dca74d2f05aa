"""What a sweep found: the fastest row, what was learned, limits, MFU, choices, and remarks."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import PurePath

from scalewise.analysis import (
    ENOUGH,
    VERDICT_RUNS,
    Analysis,
    Configuration,
    Gravity,
    LossBudget,
    Objective,
    Ranking,
    Remark,
    estimate,
    estimate_positive,
    grouped,
    is_compared,
    listed,
    logged_figures,
    measured_rows,
    number,
    objective_of,
    rank_by,
)
from scalewise.config import ONCE, key_of, pasteable
from scalewise.host import from_here, plural
from scalewise.records import SweepFolder
from scalewise.report.sections import (
    NOTES,
    Column,
    Note,
    Section,
    by_text,
    column_of,
    lines,
    section,
    table,
    words,
)

WORTH_A_ROW = 0.01
"""Share of the step below which a loss stands in the files alone."""


def command(analysis: Analysis, override: str = "") -> str:
    """What the user typed, to paste, without folders of the machine: they are nobody's business.

    Of a sweep that was resumed it is the command that would make it anew.
    With ``override`` in the place of what was typed of its key.
    """
    typed = list(analysis.sweep.command)
    if override and typed:
        key, _, value = override.partition("=")
        keys = [key_of(word) for word in typed]
        at = keys.index(key) if key in keys else len(typed)
        # What was typed of a group belongs to the option that goes.
        gone = [i for i, k in enumerate(keys) if k == key or k.startswith(f"{key}.")]
        kept = [i for i in gone if keys[i] == "strategy.devices"]
        typed[at : at + 1] = [override]
        typed = [w for i, w in enumerate(typed) if i == at or i in kept or i not in gone]
        if "," in value:  # what is to be compared
            several = [] if {"-m", "--multirun"} & set(typed) else ["-m"]
            typed[1:] = [*several, *(ENOUGH.get(word, word) for word in typed[1:])]
    return _to_paste(analysis, typed)


def command_of(analysis: Analysis, config: Configuration) -> str:
    """What would run ``config`` alone, often enough to decide; a rehearsed one on both devices."""
    typed = config.cells[0].planned.overrides
    own = [ENOUGH.get(word, word) for word in typed if not key_of(word).startswith("rehearse")]
    if config.rehearsed:
        both = f"devices=1,{config.rehearsed.ranks}"
        own = ["-m", *(both if key_of(word) == "devices" else word for word in own)]
    return _to_paste(analysis, [*analysis.sweep.command[:1], *own])


def _to_paste(analysis: Analysis, typed: Sequence[str]) -> str:
    if not typed:
        return ""
    program = PurePath(typed[0]).name
    program = f"python {program}" if program.endswith(".py") else program
    typed_words = [word for word in typed[1:] if key_of(word) not in ONCE]
    script = next((c.setting("script.command") for c in analysis.configurations), None)
    return pasteable(program, typed_words, script).rstrip()


def resume_words(analysis: Analysis, *overrides: str) -> str:
    """The command that goes on with a sweep; of a zip whose folder is elsewhere with a FOLDER."""
    sweep, home = analysis.sweep, analysis.sweep.home.resolve()
    is_here = sweep.archive is None or SweepFolder(home).plan_path.exists()
    folder = shlex.quote(from_here(home)) if is_here else "FOLDER"
    return " ".join(["scalewise resume", folder, *overrides])


def add_words(analysis: Analysis, more: int, *sides: Configuration) -> str:
    """The command that adds ``more`` runs to each side: what is unfinished runs in any case."""
    left = Counter(cell.planned.config_id for cell in analysis.unfinished)
    extend = more - min(left[side.config_id] for side in sides)
    return resume_words(analysis, *([f"sweep.extend={extend}"] if extend > 0 else []))


def counts(analysis: Analysis) -> str:
    """``12 cells: 10 done, 1 failed, 1 skipped``."""
    states = [cell.state for cell in analysis.sweep.cells]
    each = [f"{states.count(s)} {s}" for s in dict.fromkeys(states)]
    return f"{len(states)} {plural(len(states), 'cell')}: {', '.join(each) or 'none'}"


def findings(analysis: Analysis) -> list[Section]:
    return [part(analysis) for part in (metrics, losses, decisions, repeats, mfu, remarks)]


def losses(analysis: Analysis) -> Section:
    """Where the time of each configuration goes, from its ideal step, and what to try."""
    rows, to_try = [], []
    for config in analysis.measured:
        if (budget := analysis.budgets.get(config.config_id)) is None:
            continue
        parts = [("work of the device", budget.work_ms, "")] if budget.work_ms else []
        if budget.ideal_ms is not None:
            parts = [("ideal step", budget.ideal_ms, "the baseline's share")]
        parts += [
            (loss.words(), loss.ms, loss.evidence)
            for loss in budget.losses
            if abs(loss.share) >= WORTH_A_ROW
        ]
        rows += [(config.label, part, ms, budget.measured_ms, why) for part, ms, why in parts]
        to_try += [f"{config.label}: {line}" for line in _to_try(analysis, config, budget)]
    columns = (
        words("configuration", "configuration", itemgetter(0)),
        words("part", "part of a step", itemgetter(1)),
        Column("ms", "mean", "ms a step", itemgetter(2)),
        Column("share", "share", "% of the step", lambda row: 100 * row[2] / row[3]),
        words("evidence", "measured", itemgetter(4)),
    )
    return section(
        "losses", "Where the time goes", table("losses", columns, rows, where="page"), lines(to_try)
    )


def _to_try(analysis: Analysis, config: Configuration, budget: LossBudget) -> Iterator[str]:
    """One line for each limit, and one for a single device that only works."""
    remedies = analysis.remedies[config.config_id]
    for loss, found in ((loss, found) for loss, found in remedies.against if loss.is_limit):
        todo = f". To try: {found.words}" if found.words else ""
        yield f"{loss.words()}: {number(loss.ms)} of {number(config.step_ms)} ms a step{todo}"
    mixed = any(loss.cause in ("device_work", "host_late") for loss in budget.limits)
    if not budget.knows_activity and (budget.ideal_ms is None or mixed):
        yield (
            "the GPU's activity was not read over two seconds or more: its work and its host's "
            "lateness are not told apart"
        )
    elif budget.ideal_ms is None and remedies.work:
        yield f"nothing but work of the device. To try: {remedies.work.words}"


def mfu(analysis: Analysis) -> Section:
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
    said = [*found, *by_text(without, "configuration")]
    return section("mfu", "Model FLOPs utilisation", lines(said))


def decisions(analysis: Analysis) -> Section:
    """What ``strategy=auto`` chose and by which evidence, three lines for each choice."""
    found: dict[tuple[str, ...], str] = {}
    for cell in analysis.sweep.cells:
        if cell.decision is not None:
            found.setdefault(cell.decision.lines(), cell.planned.name)
    said = [f"{name}: {line}" for texts, name in found.items() for line in texts]
    return section("decisions", "Strategy chosen by measurement", lines(said))


def repeats(analysis: Analysis) -> Section:
    return section("repeats", "Repeats", lines(one.brief for one in analysis.repeats))


_MOST_NAMED = 2
"""Configurations that are named where a remark holds of several."""


@dataclass(frozen=True)
class RemarkLine:
    """One remark, with all configurations that it holds of."""

    first: Remark
    often: str
    """``in 1 of 8 runs``; empty where it holds in all."""
    names: str
    """Empty for the whole sweep."""
    about: frozenset[str]
    """``config_id`` of each."""

    @property
    def gravity(self) -> Gravity:
        return self.first.gravity

    @property
    def brief(self) -> str:
        """For a terminal: ``large ddp x2: 3 of 60 steps trained nothing``."""
        return f"{self.names}: {self.first.brief}" if self.names else self.first.brief

    def __str__(self) -> str:
        often = f" ({self.often})" if self.often else ""
        return ": ".join(filter(None, (self.gravity, self.names, self.first.text))) + often


@functools.lru_cache(maxsize=1)
def remark_lines(analysis: Analysis) -> tuple[RemarkLine, ...]:
    """Every remark, the gravest first; of several runs the first, and in how many it holds."""
    configs = {config.config_id: config for config in analysis.configurations}
    found: dict[tuple[str, str], list[tuple[Remark, int, int]]] = {}
    for same in grouped(analysis.remarks, lambda one: (one.code, one.about, one.brief)).values():
        first, runs = same[0], {one.run for one in same if one.run}
        cells = configs[first.about].cells if first.about else ()
        # Of one that did not end nobody knows; its damaged records are a remark all the same.
        known = runs | {cell.planned.name for cell in cells if cell.result is not None}
        found.setdefault((first.code, first.text), []).append((first, len(runs), len(known)))
    return tuple(
        RemarkLine(
            alike[0][0],
            f"in {runs} of {known} runs" if known > runs > 0 else "",
            listed([configs[one.about].label for one, *_ in alike if one.about], _MOST_NAMED),
            frozenset(one.about for one, *_ in alike if one.about),
        )
        for alike in found.values()
        for runs, known in [(sum(one[1] for one in alike), sum(one[2] for one in alike))]
    )


def remarks(analysis: Analysis) -> Section:
    said = lines(map(str, remark_lines(analysis)))
    return section("remarks", "Remarks", said, Note(NOTES["remarks"]))


_MOST_RANKED = 8
"""Rows that a terminal shows."""


def metrics(analysis: Analysis) -> Section:
    """The last and the best value of every logged metric, over seeds."""
    logged = [column_of(one) for one in logged_figures(analysis) if is_compared(one.key)]
    columns = [
        words("configuration", "configuration", lambda row: row.config.label),
        Column("seeds", "seeds", "", lambda row: row.config.seeds_learned or None),
        *logged,
        Column("global_samples_per_s", "samples/s", "global",
               lambda row: row.config.estimate("global_samples_per_s")),
    ]  # fmt: skip
    said = lines(ranked_in_brief(analysis))
    found = table("metrics", columns, measured_rows(analysis) if logged else [])
    return section("metrics", "What was learned", said, found, Note(NOTES["metrics"]))


def rankings(analysis: Analysis) -> list[tuple[Objective, Ranking[Configuration]]]:
    """Rows ranked by the objective; none where it was not typed and devices are compared."""
    objective = objective_of(analysis.measured)
    if objective is None or (analysis.pairs and not objective.was_typed):
        return []
    sound = [config for config in analysis.measured if config.config_id not in analysis.invalid]
    return [(objective, found) for found in rank_by(objective, sound)]


def searched(analysis: Analysis) -> Objective | None:
    """What a sweep that never asks for several devices is about, where it is typed or ranks."""
    objective = objective_of(analysis.measured)
    alone = all(config.devices == 1 for config in analysis.configurations)
    if objective is None or not alone or analysis.rehearsals:
        return None
    return objective if objective.was_typed or rankings(analysis) else None


def ranked_in_brief(analysis: Analysis) -> Iterator[str]:
    """The rows of a sweep by its objective, with their speed, and how sure the first place is."""
    again = ""
    for objective, ranking in rankings(analysis):
        more = "more" if objective.mode == "max" else "less"
        yield f"By {objective.metric} ({more} is better):"
        for place, row in enumerate(ranking.rows[:_MOST_RANKED], start=1):
            rate = row.estimate("global_samples_per_s")
            speed = f", {estimate(rate)} samples/s" if rate else ""
            learned = estimate(row.estimate(objective.metric))
            known, asked = row.seeds_learned, len(row.seeds)
            some = f" ({known} of {asked} seeds)" if known < asked else ""
            yield f"  {place}. {row.label}: {learned}{some}{speed}."
        if others := ranking.rows[_MOST_RANKED:]:
            yield f"  {len(others)} more are in the report."
        said, seeds = _surely(objective, ranking)
        yield said
        is_multirun = {"-m", "--multirun"} & {*analysis.sweep.command}
        again = (resume_words if is_multirun else command)(analysis, seeds) if seeds else again
    if again:
        yield f"Run: {again}"


def _surely(objective: Objective, ranking: Ranking[Configuration]) -> tuple[str, str]:
    """How sure the first place is, and the seeds to add; empty where they do not tell."""
    rivals, after = len(ranking.rivals), after_unequal(ranking.rows)
    if not rivals:
        return f"{ranking.first.label} is the best{after}.", ""
    # Where as many were asked for, and some do not count, the same seeds again are no advice.
    seeds = min(max(len(one.seeds), len(one.rounds(objective.metric))) for one in ranking.rows)
    first = f"{rivals} {plural(rivals, 'other')} may be as good as the first{after}"
    more = ("more seeds of each tell", "") if seeds >= VERDICT_RUNS else (f"run {_FEW}", _FEW)
    return f"{first}: {more[0]}.", more[1]


def after_unequal(rows: Iterable[Configuration]) -> str:
    """What is said of rows whose losses were reached after unequal samples; else empty."""
    reached = set[int]().union(*(row.samples_reached for row in rows))
    return ", after unequal samples" if len(reached) > 1 else ""


_FEW = f"seed={','.join(map(str, range(1, VERDICT_RUNS + 1)))}"

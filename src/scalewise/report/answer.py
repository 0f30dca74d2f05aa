"""The answer on one screen: what a terminal ends with, and a page begins with.

A configuration has four lines at most: its verdict, where its time goes, what to do next, and what
one must know before trusting that. Everything else stands in the report.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from scalewise.analysis import (
    BENEFICIAL_FROM,
    CAUSE_WORDS,
    VERDICT_RUNS,
    WANTED_RUNS,
    WORTH_SAYING,
    Analysis,
    Configuration,
    Doubt,
    LossBudget,
    LostTime,
    Pair,
    Remedy,
    changes_samples,
    count_range,
    estimate,
    factor,
    grouped,
    is_ceiling,
    is_monitored,
    is_refused,
    listed,
    number,
    override_holds,
    remedy,
    times,
    under_ceiling,
    way_to_get,
    work_remedy,
    workload,
)
from scalewise.host import plural
from scalewise.report.best_tables import best_in_brief
from scalewise.report.cost_tables import gain_lines
from scalewise.report.doubts import counts_in_report, faults, find_doubts
from scalewise.report.findings import command, fastest_rows, folder_to_type
from scalewise.report.sections import Line, Lines, Section, Verbatim, lines, section

MOST_WHOLE = 5
"""Configurations of which all is said; of more, each has its verdict alone."""
_MOST_ALONE = 8
"""Configurations without a partner that are named."""
_MOST_LINES = 4

_SHORT = {
    **CAUSE_WORDS,
    "waiting": "waiting",
    "stages": "waiting for stages",
    "contention": "no free core",
    "copy": "copying batches",
    "host_late": "idle GPU (host late)",
}
"""Causes as a line of 80 columns has them."""


@functools.lru_cache(maxsize=1)
def answers(analysis: Analysis) -> Section:
    """The lines that end the console: a block for each configuration, then what holds for all."""
    judged = sorted(
        (c for c in analysis.measured if analysis.pair(c) or c.config_id in analysis.invalid),
        key=lambda config: config.config_id not in analysis.invalid,
    )
    whole, found = len(judged) <= MOST_WHOLE, find_doubts(analysis)
    rest = (_decide, best_in_brief, fastest_in_brief, gain_lines, _chosen, _accuracy, _found)
    return section(
        "answer",
        "Answer",
        *(_block(analysis, config, found, whole=whole) for config in judged),
        Lines(tuple(_not_comparable(analysis)), "answer"),
        lines(_legend(analysis) if judged else (), "faint"),
        lines([] if judged or analysis.refused else _alone(analysis), "plain"),
        lines((line for part in rest for line in part(analysis)), "plain"),
        Verbatim("\n".join(dict.fromkeys(_commands(analysis))), "To paste"),
    )


def in_detail(analysis: Analysis) -> Section:
    """Every verdict with its whole reason, what is invalid first, or why there is none."""
    found = tuple(Line(reason, label, verdict) for label, verdict, reason in reasons(analysis))
    return section(
        "answer",
        "Answer",
        Lines(found),
        lines([] if found else [_why_none(analysis)], "plain"),
        lines(fastest_in_brief(analysis), "plain"),
    )


def reasons(analysis: Analysis) -> list[tuple[str, str, str]]:
    """``(configuration, verdict, reason)`` for all on several devices, and all that is invalid."""
    found: list[tuple[str, str, str]] = []
    for config in analysis.measured:
        pair, refused = analysis.pair(config), analysis.refusal(config)
        invalid = analysis.invalid.get(config.config_id, ())
        if invalid:
            found.append((config.label, "invalid", "; ".join(one.reason for one in invalid)))
        elif pair:
            reason, loss = pair.judgement.reason, pair.loss
            if loss:
                sides = f"{number(loss.multi)} (single: {number(loss.single)})"
                reason += f"; {loss.name} at {loss.where}: {sides}"
            found.append((config.label, pair.judgement.verdict, reason))
        elif refused:
            found.append((config.label, "not comparable", refused.reason))
    return sorted(found, key=lambda answer: answer[1] != "invalid")


def _legend(analysis: Analysis) -> Iterator[str]:
    """What the figures of every line above are."""
    pairs = [pair for pair in analysis.pairs if not pair.invalid]
    if pairs:
        runs = {min(pair.speedup.n) for pair in pairs}
        known = any(pair.speedup.interval for pair in pairs)
        interval = "95 % CI, " if known else ""
        yield (
            f"x is over one device ({interval}{count_range(runs)} {plural(max(runs), 'run')}); "
            "cost is of a sample; ms are of a step."
        )


def _block(
    analysis: Analysis, config: Configuration, found: Sequence[Doubt], *, whole: bool
) -> Lines:
    """All lines of one configuration."""
    pair, invalid = analysis.pair(config), analysis.invalid.get(config.config_id, ())
    if invalid or pair is None:
        of = f" ({len(invalid)} reasons are in the report)" if len(invalid) > 1 else ""
        first = Line(_sentence(f"{invalid[0].reason}{of}"), config.label, "invalid")
        return Lines((first,), "answer")
    told = pair.judgement
    said = [Line(_figures(pair), config.label, told.verdict)]
    if whole:
        # The fewest runs are asked for once, of all.
        few = told.verdict == "undecided" and min(pair.speedup.n) < VERDICT_RUNS
        more = [_asked(pair) if not few else "", _lost(analysis, config), _next(analysis, pair)]
        said += [Line(text) for text in (*more, _doubt(found, pair)) if text]
    return Lines(tuple(said[:_MOST_LINES]), "answer")


def _not_comparable(analysis: Analysis) -> Iterator[Line]:
    """Each reason once, with how many rows it holds for."""
    told = (one for one in analysis.refused if one.multi.config_id not in analysis.invalid)
    for reason, rows in grouped(told, lambda one: one.reason).items():
        yield Line(
            _sentence(reason), listed([one.multi.label for one in rows], 1), "not comparable"
        )
        fields = [difference.field for difference in rows[0].differing]
        # Of these two the reason itself says what compares them.
        says_how = fields == ["host"] or (
            fields == ["batch"] and rows[0].multi.identity.get("scaling") == "weak"
        )
        if fields and not says_how:
            yield Line(f"Next: run both in one sweep, with equal {listed(fields, 4)}.")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _asked(pair: Pair) -> str:
    """What an open verdict asks for, and what is certain all the same."""
    told = pair.judgement
    dearer = "dearer for certain" if pair.money == "dearer" else ""
    parts = {
        "undecided": (told.asked, told.certain or told.open, dearer),
        "marginal": (told.asked,),
    }.get(told.verdict, ())
    return _sentence("; ".join(part for part in parts if part))


def _figures(pair: Pair) -> str:
    """``1.65x (1.52-1.79), efficiency 0.82, cost 1.21x.``"""
    speedup = times(pair.speedup)
    if is_ceiling(pair.multi):
        return f"{speedup} of {pair.devices} independent models: one model reaches no more."
    cost = factor(pair.cost_ratio.value)
    return f"{speedup}, efficiency {factor(pair.efficiency.value)}, cost {cost}x."


def _worth(budget: LossBudget | None) -> list[LostTime]:
    """Losses worth saying, the largest first."""
    return [loss for loss in budget.losses if loss.share > WORTH_SAYING] if budget else []


def _lost(analysis: Analysis, config: Configuration) -> str:
    """``Lost 5.76 ms: 3.23 exposed transfer, 1.12 no free core.``; empty if nothing is.

    Where these parts are more than the whole, the largest gain follows.
    """
    budget = analysis.budgets.get(config.config_id)
    worth = _worth(budget)[:2]
    if budget is None or budget.ideal_ms is None or not worth:
        return ""
    gap = budget.measured_ms - budget.ideal_ms
    each = ", ".join(f"{number(loss.ms)} {_SHORT[loss.cause]}" for loss in worth)
    least = min(budget.losses, key=lambda loss: loss.ms)
    if least.ms < 0 and sum(loss.ms for loss in worth) > gap:
        each += f", less {number(-least.ms)} gained in {_SHORT[least.cause]}"
    return f"Lost {number(gap)} ms: {each}." if gap > 0 else f"Lost: {each}."


def _next(analysis: Analysis, pair: Pair) -> str:
    """What to do next, and what it gains at most; empty where nothing measured asks for it."""
    verdict, found = pair.judgement.verdict, _first_remedy(analysis, pair.multi)
    if verdict in ("ceiling", "undecided"):
        again = verdict == "undecided" and pair.statistical.verdict != "undecided"
        return "Next: measure again on a quiet host." if again else ""
    deed, gain = ("", "")
    if found:
        deed, gain = _deed(analysis, found[1]), _gain(analysis, pair.multi, *found)
    if verdict == "prefer single":
        pays = found and _could_pay(pair, found[0])
        if pays:
            return f"Next: one device, or {deed} ({gain})."
        return "Next: stay with one device; no single change makes up for it."
    return f"Next: {deed} (wins back {gain})." if deed else ""


def _decide(analysis: Analysis) -> Iterator[str]:
    """The command that adds runs until the open verdicts are probably decided, once for all."""
    undecided = [p for p in analysis.pairs if p.judgement.verdict == "undecided"]
    pairs = [p for p in undecided if p.statistical.verdict == "undecided"]
    if not pairs:
        return
    fewest = min(min(pair.speedup.n) for pair in pairs)
    few = fewest < VERDICT_RUNS
    lead = f"A verdict needs {VERDICT_RUNS} runs of each" if few else "Next, to decide"
    config = pairs[0].multi.cells[0].config or {}
    if is_monitored(config):
        yield f"{lead}: {way_to_get('runs of both', monitored=True, runs=fewest)}."
        return
    last = max(pairs, key=lambda pair: pair.judgement.more_runs or 0).judgement
    wanted = max(last.more_runs or 0, WANTED_RUNS - fewest)
    adapts, hopeless = config.get("repeats") == "auto", not few and last.more_runs is None
    if adapts and not any(pair.judgement.more for pair in pairs):
        yield f"Next, to decide: {fewest} runs did not; ask for more with max_repeats=N."
    elif hopeless:
        yield f"To decide takes {last.more}." if last.more else "More runs hardly decide it."
    else:
        extend = "" if adapts else f" sweep.extend={wanted}"
        more = f" ({last.more})" if last.more else ""
        yield f"{lead}: scalewise resume {folder_to_type(analysis)}{extend}{more}."


def _first_remedy(analysis: Analysis, config: Configuration) -> tuple[LostTime, Remedy] | None:
    """Against the largest loss that something helps against, with the one override to try."""
    budget = analysis.budgets.get(config.config_id)
    for loss in _worth(budget):
        found = remedy(config, loss)
        untried = _untried(analysis, config, found)
        if untried:
            return loss, untried
    return None


def _untried(analysis: Analysis, config: Configuration, found: Remedy) -> Remedy | None:
    """With its first override that no row of the workload has and that is not refused."""
    alike = [c for c in analysis.measured if c.name("model") == config.name("model")]
    for override in () if is_monitored(config.cells[0].config) else found.overrides:
        tried = any(override_holds(one, override) for one in alike)
        if not tried and not is_refused(config, override):
            return Remedy(found.words, (override,))
    return Remedy(found.words, (), found.deed) if found.deed else None


def _deed(analysis: Analysis, what: Remedy) -> str:
    if not what.overrides:
        return what.deed
    override = _paired(what.overrides[0])
    return f"{'set' if _typed(analysis, override) else 'add'} {override}"


def _paired(override: str) -> str:
    """A strategy goes with the single device that it is held against."""
    key, _, value = override.partition("=")
    return f"strategy=single,{value}" if key == "strategy" else override


def _typed(analysis: Analysis, override: str) -> int | None:
    """Where the command has the key of ``override``."""
    keys = [word.partition("=")[0].lstrip("+") for word in analysis.sweep.command]
    key = override.partition("=")[0]
    return keys.index(key) if key in keys else None


def _gain(analysis: Analysis, config: Configuration, loss: LostTime, what: Remedy) -> str:
    """``up to 1.4 of 3.6 ms``: what is lost, and no more."""
    budget = analysis.budgets[config.config_id]
    saved = f"up to {number(loss.ms)} of {number(budget.measured_ms)} ms"
    if any(map(changes_samples, what.overrides)):
        return f"{saved} in {config.global_batch:,} samples"
    return saved


def _could_pay(pair: Pair, loss: LostTime) -> bool:
    """Whether the devices would pay without all of this loss."""
    return pair.speedup.value / (1 - loss.share) > BENEFICIAL_FROM


def _commands(analysis: Analysis) -> Iterator[str]:
    """Each remedy as the whole command to paste."""
    typed = command(analysis)
    for pair in analysis.pairs if typed else ():
        found = _first_remedy(analysis, pair.multi)
        if found and found[1].overrides and _paired(found[1].overrides[0]) in _next(analysis, pair):
            yield command(analysis, _paired(found[1].overrides[0]))


def _doubt(found: Sequence[Doubt], pair: Pair) -> str:
    """The gravest about either side, and how many there are; the report has all."""
    sides = {pair.multi.config_id, pair.single.config_id}
    own = [one for one in found if sides & {*one.about}]
    gravest = next((one.brief for one in own if one.brief), "")
    of = f" 1 of {len(own)}" if len(own) > 1 else ""
    return f"Doubt{of}: {gravest}." if gravest else ""


def _alone(analysis: Analysis) -> Iterator[str]:
    """Of a sweep in which nothing was judged: the rates, and why there is no verdict."""
    measured = analysis.measured
    for config in measured[:_MOST_ALONE]:
        rate = config.estimate("global_samples_per_s")
        why = config.runs[0].missing.get("throughput", "not measured")
        yield f"{config.label}: {f'{estimate(rate)} samples/s' if rate else f'no rate: {why}'}."
    if len(measured) > _MOST_ALONE:
        yield f"{len(measured) - _MOST_ALONE} more configurations are in the report."
    if len(measured) == 1:
        yield from _of_one(analysis, measured[0])
    yield _why_none(analysis)


def _of_one(analysis: Analysis, config: Configuration) -> Iterator[str]:
    """Where the only configuration's time goes, and what makes it faster."""
    budget = analysis.budgets.get(config.config_id)
    if budget is None:
        return
    found = _first_remedy(analysis, config)
    if found is not None and found[0].is_limit:
        gain = f"wins back {_gain(analysis, config, *found)}, {_SHORT[found[0].cause]}"
        yield f"Next: {_deed(analysis, found[1])} ({gain})."
        return
    what = None if budget.limits else _untried(analysis, config, work_remedy(config))
    if what is not None:
        yield f"Next: {_deed(analysis, what)} (nothing but work of the device takes time)."


def _why_none(analysis: Analysis) -> str:
    """Why there is no verdict at all, and what to do."""
    tried = [c for c in analysis.configurations if c.devices != 1]
    if not analysis.measured and any(c.runs for c in analysis.configurations):
        if all(workload(c.cells[0].config) == "doctor" for c in analysis.configurations):
            return "Only the devices were examined."
        return "No training was timed, so there is no verdict."
    if not analysis.measured:
        return "No cell finished, so nothing was measured."
    if tried:
        return "No cell on several devices finished, so there is nothing to compare."
    monitored = is_monitored(analysis.measured[0].cells[0].config)
    return f"Nothing ran on several devices: {way_to_get('several devices', monitored=monitored)}."


def fastest_in_brief(analysis: Analysis) -> Iterator[str]:
    for found in fastest_rows(analysis):
        figure = estimate(found.config.estimate("global_samples_per_s"))
        if found.rivals:
            count = len(found.rivals)
            rest = f"{count} {plural(count, 'other')} may be as fast"
            yield f"Fastest so far: {found.config.label}, {figure} samples/s; {rest}."
        else:
            yield f"Fastest: {found.config.label}, {figure} samples/s."


def _chosen(analysis: Analysis) -> Iterator[str]:
    """Strategies that were left to measurement, and how near others come to their ceiling."""
    decided = {
        (cell.decision.chosen, cell.decision.reason): cell.planned.name
        for cell in reversed(analysis.sweep.cells)
        if cell.decision is not None
    }
    for (chosen, reason), name in decided.items():
        yield f"strategy=auto took {chosen} for {name}: {reason}."
    for config in analysis.configurations:
        near = under_ceiling(config, analysis.measured)
        if near is not None:
            yield f"{config.label}: {factor(near[1].value)} of its ceiling, {near[0].label}."


def _accuracy(analysis: Analysis) -> Iterator[str]:
    """How good what was trained is, where a validation set was scored for it."""
    known = [
        (c.label, found) for c in analysis.measured if (found := c.estimate("val_accuracy_reached"))
    ]
    said = [f"{label} {number(found.value)}" for label, found in known[:_MOST_ALONE]]
    more = len(known) - len(said)
    if said:
        yield f"val_accuracy: {', '.join(said)}{f', {more} more in the report' * bool(more)}."


def _found(analysis: Analysis) -> Iterator[str]:
    """What the doctor and the records complain of, and how much there is in the report."""
    for finding in analysis.doctor.findings if analysis.doctor and analysis.measured else ():
        yield f"{finding.severity}: {finding.text}"
    yield from (f"Fault: {line}." for line in faults(analysis).texts[:1])
    counts = {noun: count for noun, (count, _) in counts_in_report(analysis).items()}
    told = [f"{count} {plural(count, noun)}" for noun, count in counts.items()]
    if told:
        verb = "is" if sum(counts.values()) == 1 else "are"
        *first, last = told
        yield f"{', '.join(first)}{' and ' if first else ''}{last} {verb} in the report."

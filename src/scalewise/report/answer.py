"""The answer on one screen: what a terminal ends with, and a page begins with.

A configuration has four lines at most: its verdict, where its time goes, what to do next, and what
one must know before trusting that. Everything else stands in the report.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from scalewise.analysis import (
    BEST,
    OWN_BATCHES,
    VERDICT_RUNS,
    Analysis,
    Configuration,
    LostTime,
    Pair,
    Ranking,
    Remedy,
    asked_in_vain,
    changes_samples,
    count_range,
    count_set_aside,
    estimate,
    factor,
    grouped,
    listed,
    lost_words,
    number,
    rank,
    rate_ratio,
    rounded_duration,
    samples_per_s,
    times,
    way_to_get,
)
from scalewise.config import key_of, known_mode, of_validation
from scalewise.host import plural
from scalewise.report.findings import (
    RemarkLine,
    add_words,
    after_unequal,
    command,
    ranked_in_brief,
    rankings,
    remark_lines,
    resume_words,
    searched,
)
from scalewise.report.scaling_tables import lines_of_devices
from scalewise.report.sections import Line, Lines, Section, Verbatim, lines, section
from scalewise.report.study_tables import rehearsals_in_brief

MOST_WHOLE = 5
"""Configurations of which all is said; of more, each has its verdict alone."""
_MOST_ALONE = 8
"""Configurations without a partner that are named."""
_MOST_LOGGED = 12
"""Metrics of a row that is alone."""
_MOST_LINES = 4
_FEWEST_ROWS = 3
"""Rows of one workload below which the reader sees at once which is fastest."""
_CODE = ("code.", "data_file.script")
"""Fields of an identity that differ where code was edited."""
_MOST_WON = 0.95
"""Share of a step from which a loss is nearly all: parts are measured each with an error."""

_FAULTS = (
    "records_damaged", "alert", "throttled", "imbalance", "shards_overlap", "shards_incomplete",
    "counted_batch", "unsynchronised_timing",
)  # fmt: skip
"""Remarks on what is to be mended: the gravest is told, whatever else is."""
_UNDONE = ("no_callback", "no_checkpoint", "no_shard_audit", "no_validation")
"""Remarks on what was to be done beside training: each is told with its reason."""


@functools.lru_cache(maxsize=1)
def answers(analysis: Analysis) -> Section:
    """The lines that end the console: a block for each configuration, then what holds for all."""
    judged = sorted(
        (c for c in analysis.measured if analysis.pair(c) or c.config_id in analysis.invalid),
        key=lambda config: config.config_id not in analysis.invalid,
    )
    whole, found = len(judged) <= MOST_WHOLE, remark_lines(analysis)
    rest = (to_mend, to_decide, fastest_in_brief, lines_of_devices, _chosen, _accuracy,
            _scaling, _stopped, rehearsals_in_brief, _found)  # fmt: skip
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
    why = lines([] if found or searched(analysis) else [why_none(analysis)], "plain")
    fastest = lines(fastest_in_brief(analysis), "plain")
    return section("answer", "Answer", Lines(found), why, fastest)


def reasons(analysis: Analysis) -> list[tuple[str, str, str]]:
    """``(configuration, verdict, reason)`` for all on several devices, and all that is invalid."""
    found: list[tuple[str, str, str]] = []
    for config in analysis.measured:
        pair, refused = analysis.pair(config), analysis.refusal(config)
        invalid = analysis.invalid.get(config.config_id, ())
        if invalid:
            found.append((config.label, "invalid", "; ".join(one.text for one in invalid)))
        elif pair:
            reason, loss = analysis.reasons[config.config_id], pair.loss
            if loss:
                sides = f"{number(loss.multi)} (single: {number(loss.single)})"
                reason += f"; {loss.name} at {loss.where}: {sides}"
            found.append((config.label, pair.verdict, reason))
        elif refused:
            found.append((config.label, "not comparable", refused.reason))
    return sorted(found, key=lambda answer: answer[1] != "invalid")


def _legend(analysis: Analysis) -> Iterator[str]:
    """What the figures of every line above are."""
    pairs = [pair for pair in analysis.pairs if not pair.invalid]
    if pairs:
        runs = {min(pair.speedup.n) for pair in pairs}
        interval = "95 % CI, " if any(pair.speedup.interval for pair in pairs) else ""
        yield (
            f"x is over one device ({interval}{count_range(runs)} {plural(max(runs), 'run')}); "
            "cost is of a sample; ms are of a step."
        )


def _scaling(analysis: Analysis) -> Iterator[str]:
    if any(p.multi.global_batch != p.single.global_batch for p in analysis.pairs if not p.invalid):
        yield "Under weak scaling N devices take N times the samples a step; x is of samples/s."


def _block(
    analysis: Analysis, config: Configuration, found: Sequence[RemarkLine], *, whole: bool
) -> Lines:
    pair, invalid = analysis.pair(config), analysis.invalid.get(config.config_id, ())
    if invalid or pair is None:
        of = f" ({len(invalid)} reasons are in the report)" if len(invalid) > 1 else ""
        first = Line(_sentence(f"{invalid[0].text}{of}"), config.label, "invalid")
        return Lines((first,), "answer")
    told = pair.final
    said = [Line(_figures(pair), config.label, told.verdict)]
    if whole:
        # The fewest runs are asked for once, of all.
        few = told.verdict == "undecided" and min(pair.speedup.n) < VERDICT_RUNS
        lost = _sentence(lost_words(analysis.budgets.get(config.config_id), short=True))
        cause, sides = _cause(analysis, pair), {config.config_id, pair.single.config_id}
        own = [one for one in found if sides & one.about]
        hit = any(one.first.code == "disturbed" for one in own)
        asked = "" if few or (told.verdict == "undecided" and (cause or hit)) else _asked(pair)
        rest = [one for one in own if not cause or one.first.code != "contention"]
        said += [Line(text) for text in (cause, asked, lost, next_step(analysis, pair)) if text]
        said += _doubt(rest, pair)
    return Lines(tuple(said[:_MOST_LINES]), "answer")


def _not_comparable(analysis: Analysis) -> Iterator[Line]:
    """Each reason once, with how many rows it holds for."""
    told = (one for one in analysis.refused if one.config.config_id not in analysis.invalid)
    for reason, rows in grouped(told, lambda one: one.reason).items():
        yield Line(_sentence(reason), listed([r.config.label for r in rows], 1), "not comparable")
        fields = [difference.field for difference in rows[0].differing]
        shared = fields == ["co_tenancy"]
        if fields and (shared or all(one.startswith(_CODE) for one in fields)):
            how = "on a quiet host" if shared else "with the code left as it is"
            yield Line(f"Next: {how}, {_rerun(analysis)}")
        elif fields:
            said = [difference.words for difference in rows[0].differing]
            yield Line(f"Next: run both in one sweep, with equal {listed(said, 4)}.")


def _sentence(text: str) -> str:
    # The name of a metric stays as it was logged.
    first = text[:1] if {"_", "/"} & {*text.partition(" ")[0]} else text[:1].upper()
    return f"{first}{text[1:].rstrip('.')}." if text else ""


def _asked(pair: Pair) -> str:
    """Which way an open verdict leans and what that rests on, or what several devices lack."""
    if pair.verdict == "does not pay":
        return _sentence(pair.judgement.short) if pair.speedup.value >= 1 else ""
    if pair.verdict != "undecided" or pair.is_overruled:
        return ""
    wanted, runs = pair.judgement.wanted, pair.run_speedups
    reached = sum(run >= wanted for run in runs)
    pays, most_reach_it = pair.speedup.value >= wanted, 2 * reached > len(runs)
    leans = f"It leans to {'paying' if pays else 'not paying'}: " if pays == most_reach_it else ""
    of = f"{reached} of {len(runs)} {'pairs' if pair.speedup.paired else 'runs'}"
    return f"{leans}{of} reach the {factor(wanted)}x wanted."


def _figures(pair: Pair) -> str:
    """``1.65x (1.52-1.79), efficiency 0.82, cost 1.21x.``"""
    speedup, runs = times(pair.speedup), min(pair.speedup.n)
    if pair.multi.is_ceiling:
        return f"{speedup} of {pair.devices} independent models: one model reaches no more."
    if runs < VERDICT_RUNS and any(one.code == "above_linear" for one in pair.remarks):
        return f"{runs} {plural(runs, 'run')} of each cannot show more than linear scaling."
    cost = factor(1 / pair.efficiency.value)
    return f"{speedup}, efficiency {factor(pair.efficiency.value)}, cost {cost}x."


def _cause(analysis: Analysis, pair: Pair) -> str:
    """What keeps a verdict open: runs that do not count, others on the host; else empty."""
    if pair.verdict != "undecided":
        return ""
    held = []
    for side in (pair.multi, pair.single):
        other = [one for one in side.set_aside if not one.is_disturbed]
        if len(other) >= len(side.runs):
            of = f"{len(other)} of {len(other) + len(side.runs)} runs of {side.device_words}"
            return f"Set aside are {of}: run it again {other[0].remedy}."
        budget = analysis.budgets.get(side.config_id)
        loss = budget.loss("contention") if budget else None
        if loss and loss.is_limit:
            of = f"{number(loss.ms)} of {number(side.step_ms)} ms"
            held.append(f"{side.device_words} for {of}")
    if held:
        told = (one.figures["quiet"] for one in pair.remarks if one.code == "contention")
        without = "".join(f" ({one}x without that)" for one in told if one != "unknown")
        return f"Other processes held the cores of {' and '.join(held)} a step{without}."
    return _sentence(next((one.brief for one in pair.remarks if one.gravity == "undecided"), ""))


def next_step(analysis: Analysis, pair: Pair) -> str:
    """What to do next, and what it gains at most; empty where nothing measured asks for it."""
    verdict, found = pair.verdict, analysis.remedies[pair.multi.config_id].untried
    if verdict in ("ceiling", "undecided"):
        again = verdict == "undecided" and pair.judgement.verdict != "undecided"
        return f"Next: measure again on a quiet host; these took {_took(pair)}." if again else ""
    deed = _deed(analysis, found[1]) if found else ""
    gain = _gain(pair.multi, *found) if found else ""
    if verdict == "does not pay":
        fewer = "one device" if pair.devices == 2 or pair.speedup.value < 1 else "fewer devices"
        # Without all of this loss the devices would pay.
        if found and pair.speedup.value / (1 - found[0].share) >= pair.judgement.wanted:
            return f"Next: {fewer}, or {deed} ({gain})."
        return f"Next: stay with {fewer} at this batch; no single change makes up for it."
    return f"Next: {deed} (wins back {gain})." if deed else ""


def to_mend(analysis: Analysis) -> Iterator[str]:
    """How runs that are invalid, were refused or ended in warm-up are made anew, once for all."""
    if analysis.invalid:
        yield f"Next: mend that, then {_rerun(analysis)}"
    elif not analysis.measured and {c.ending.cause for c in analysis.unfinished} == {"config"}:
        yield f"Next: change what is refused: {command(analysis)}"
    elif not _is_timed(analysis) and any(
        row.setting("max_epochs") and not row.is_monitored for row in analysis.measured
    ):
        yield f"Next: let it train longer: {command(analysis, 'max_epochs=null')}"


def _is_timed(analysis: Analysis) -> bool:
    return any(row.estimate("step_time_ms") for row in analysis.measured)


def _rerun(analysis: Analysis) -> str:
    """How to repeat everything: a script with a monitor is started by its user alone."""
    is_monitored = analysis.configurations[0].is_monitored
    return "run it again." if is_monitored else resume_words(analysis, "sweep.rerun=all")


def to_decide(analysis: Analysis) -> Iterator[str]:
    """The command that adds runs until the open verdicts are probably decided, once for all."""
    pairs = [p for p in analysis.pairs if p.verdict == p.judgement.verdict == "undecided"]
    if not pairs:
        return
    made = max(len(c.runs) + len(c.set_aside) for p in pairs for c in (p.multi, p.single))
    pairs = [pair for pair in pairs if min(pair.speedup.n) < VERDICT_RUNS] or pairs
    fewest = min(min(pair.speedup.n) for pair in pairs)
    few = fewest < VERDICT_RUNS
    least = min((c for p in pairs for c in (p.multi, p.single)), key=lambda c: len(c.runs))
    aside = few and least.set_aside and len(least.runs) + len(least.set_aside) >= VERDICT_RUNS
    loud = any(_cause(analysis, pair).startswith("Other processes held") for pair in pairs)
    decide = f"to decide{' on a quiet host' if loud else ''}"
    lead = f"A verdict needs {VERDICT_RUNS} runs of each" if few else f"Next, {decide}"
    if aside:
        lead = f"{count_set_aside(least)}: run {VERDICT_RUNS - fewest} more"
    config = pairs[0].multi
    if config.is_monitored:
        where = f"on {least.device_words}, into the same folder"
        way = way_to_get("runs of both", "monitor", runs=fewest)
        yield f"{lead} {where}." if aside else f"{lead}: {way}."
        return
    most = max(pairs, key=lambda pair: pair.judgement.more_runs or 0)
    last = most.judgement
    adapts, hopeless = config.setting("repeats") == "auto", not few and last.more_runs is None
    at_most = made >= (config.setting("max_repeats") or math.inf)
    if adapts and (at_most or not any(pair.judgement.more for pair in pairs)):
        more = resume_words(analysis, f"max_repeats={2 * made}")
        yield f"Next, {decide}: {fewest} runs in {_took(*pairs)} did not: {more}"
    elif hopeless:
        takes = f"{decide.capitalize()} takes {last.more}; these took {_took(*pairs)}."
        yield takes if last.more else "More runs hardly decide it."
    else:
        to_add = 0 if adapts else last.more_runs or 0
        ended = [cell.ending for cell in analysis.unfinished]  # wrong input stays wrong
        failed = sum(one.outcome == "failed" and one.cause != "config" for one in ended)
        also = f"; {failed} failed {plural(failed, 'cell')} run again too" if failed else ""
        more = f" ({last.more}{also})." if last.more else ""
        yield f"{lead}: {add_words(analysis, to_add, most.multi, most.single)}{more}"


def _took(*pairs: Pair) -> str:
    """``2 min``: all runs of both sides, one after the other."""
    cells = {c.path: c for p in pairs for side in (p.multi, p.single) for c in side.cells}
    return rounded_duration(sum(one.result.elapsed_s for one in cells.values() if one.result))


def _deed(analysis: Analysis, what: Remedy) -> str:
    return _add(analysis, _paired(analysis, what.overrides[0])) if what.overrides else what.deed


def _add(analysis: Analysis, override: str) -> str:
    """``add -m strategy=single,ddp``: in words, so that the command takes it."""
    verb = "set" if key_of(override) in _typed_keys(analysis) else "add"
    is_multirun = {"-m", "--multirun"} & set(analysis.sweep.command)
    return f"{verb} {'-m ' if ',' in override and not is_multirun else ''}{override}"


def _paired(analysis: Analysis, override: str) -> str:
    """A strategy goes with the single device that it is held against, or that ``devices`` names."""
    key, _, value = override.partition("=")
    alone = key == "strategy" and "devices" not in _typed_keys(analysis)
    return f"strategy=single,{value}" if alone else override


def _typed_keys(analysis: Analysis) -> set[str]:
    return {key_of(word) for word in analysis.sweep.command if "=" in word}


def _gain(config: Configuration, loss: LostTime, what: Remedy) -> str:
    """``up to 1.4 of 3.6 ms``: what is lost, and no more; no step takes no time."""
    most = number(loss.ms) if loss.share < _MOST_WON else "nearly all"
    saved = f"up to {most} of {number(config.step_ms)} ms"
    is_another_step = any(map(changes_samples, what.overrides)) or what.deed == OWN_BATCHES
    if is_another_step and config.global_batch is not None:
        return f"{saved} in {config.global_batch:,} samples"
    return saved


def _commands(analysis: Analysis) -> Iterator[str]:
    for pair in analysis.pairs if command(analysis) else ():
        found = analysis.remedies[pair.multi.config_id].untried
        override = _paired(analysis, found[1].overrides[0]) if found and found[1].overrides else ""
        if override and override in next_step(analysis, pair):
            yield command(analysis, override)


def _doubt(found: Sequence[RemarkLine], pair: Pair) -> Iterator[Line]:
    """The gravest of those found, of all runs before of some; the report has all."""
    own = [one for one in found if one.gravity != "note"]
    own.sort(key=lambda one: one.gravity == "doubt" and one.often != "")
    more = f"; {len(own[1:])} more reported" if own[1:] else ""
    for one in own[:1]:
        side = pair.multi if pair.multi.config_id in one.about else pair.single
        said = f"{one.first.brief} {one.often}".rstrip()
        yield Line(f"Doubt: {side.device_words}: {said}{more}.", more="remarks")


def _alone(analysis: Analysis) -> Iterator[str]:
    """Of a sweep in which nothing was judged: the rates, and why there is no verdict."""
    measured = analysis.measured
    ranked = list(ranked_in_brief(analysis))
    yield from ranked
    for config in () if ranked else measured[:_MOST_ALONE]:
        rate, what = config.estimate("global_samples_per_s"), "samples/s"
        if rate is None:  # nobody counted them
            rate, what = config.estimate("step_time_ms"), "ms a step (samples were not counted)"
        why = config.runs[0].missing.get("throughput", "not measured")
        yield f"{config.label}: {f'{estimate(rate)} {what}' if rate else f'no rate: {why}'}."
    if (others := measured[_MOST_ALONE:]) and not ranked:
        yield f"{len(others)} more configurations are in the report."
    if len(measured) == 1:
        yield from _of_one(analysis, measured[0])
    if searched(analysis) is None:
        yield why_none(analysis)


def _of_one(analysis: Analysis, config: Configuration) -> Iterator[str]:
    if analysis.budgets.get(config.config_id) is None:
        return
    remedies = analysis.remedies[config.config_id]
    found, work = remedies.untried, remedies.untried_work
    if found is not None and found[0].is_limit:
        gain = f"wins back {_gain(config, *found)}, {found[0].words(short=True)}"
        yield f"Next: {_deed(analysis, found[1])} ({gain})."
    elif work is not None:
        yield f"Next: {_deed(analysis, work)} (nothing but work of the device takes time)."


def why_none(analysis: Analysis) -> str:
    if not _is_timed(analysis) and any(c.runs for c in analysis.configurations):
        return "No training was timed, so there is no verdict."
    if analysis.rehearsals:
        return "Nothing ran on several devices: they were rehearsed."
    if not analysis.measured:
        return "No cell finished, so nothing was measured."
    if analysis.tried_on_several:
        return "No cell on several devices finished, so there is nothing to compare."
    config = analysis.measured[0]
    if config.has_own_settings:
        way = way_to_get("several devices", config.started_by, command=config.on_both)
    else:
        way = f"{_add(analysis, second_device(analysis))} for a verdict"
    return f"Nothing ran on several devices: {way}."


def second_device(analysis: Analysis) -> str:
    """What to type for a second device."""
    return "devices=1,2" if "devices" in _typed_keys(analysis) else "strategy=single,ddp"


def fastest_rows(analysis: Analysis) -> Iterator[Ranking[Configuration]]:
    """For each workload whose values were swept, its fastest row.

    A row is the fastest if the intervals of its ratios to all others, which hold together at 95 %,
    lie above 1; else it is so only so far. An invalid row is none of them.
    """
    for rows in grouped(analysis.measured, lambda config: config.workload).values():
        timed = [row for row in rows if row.estimate("global_samples_per_s") is not None]
        if len(timed) >= _FEWEST_ROWS and len({row.swept for row in timed}) > 1:
            sound = [row for row in timed if row.config_id not in analysis.invalid]
            if len(sound) > 1:
                yield rank(sound, samples_per_s, rate_ratio)


def fastest_in_brief(analysis: Analysis) -> Iterator[str]:
    for found in () if searched(analysis) else fastest_rows(analysis):
        figure = estimate(found.first.estimate("global_samples_per_s"))
        count = len(found.rivals)
        if count == len(found.rows) - 1:
            fewest = min(len(row.runs) for row in found.rows)
            takes = f"{VERDICT_RUNS} runs" if fewest < VERDICT_RUNS else "more runs"
            model = found.first.name("model")
            yield f"{model}: which of {count + 1} is fastest is open; that takes {takes} of each."
        elif count:
            rest = f"{count} {plural(count, 'other')} may be as fast"
            yield f"Fastest so far: {found.first.label}, {figure} samples/s; {rest}."
        else:
            yield f"Fastest: {found.first.label}, {figure} samples/s."


def _chosen(analysis: Analysis) -> Iterator[str]:
    """Strategies that were left to measurement."""
    decided = {
        (cell.decision.chosen, cell.decision.reason): cell.planned.name
        for cell in reversed(analysis.sweep.cells)
        if cell.decision is not None
    }
    for (chosen, reason), name in decided.items():
        yield f"strategy=auto took {chosen} for {name}: {reason}."


def _accuracy(analysis: Analysis) -> Iterator[str]:
    """How good what was trained is, where a validation set was scored for it."""
    yield from ranked_in_brief(analysis) if analysis.pairs else ()
    if rankings(analysis):
        return
    logged = dict.fromkeys(key for c in analysis.measured for key in c.logged)
    last = [key for key in logged if not key.startswith(BEST)]
    vain = asked_in_vain(analysis.measured)
    if vain is not None:
        allowed = listed(last, _MOST_ALONE) or "a metric that runs log"
        yield f"Not ranked: found sweep.objective={vain}, which no run logged; allowed: {allowed}."
    if len(analysis.measured) == 1:
        (config,) = analysis.measured
        said = [f"{key} {estimate(config.estimate(key))}" for key in last]
        yield from [f"Logged last: {listed(said, _MOST_LOGGED)}."] if said else []
        return
    scores = [key for key in last if of_validation(key) and known_mode(key)]
    for key in sorted(scores, key=lambda one: known_mode(one) == "min")[:1]:
        known = [(c, found) for c in analysis.measured if (found := c.estimate(key))]
        said = [f"{config.label} {number(found.value)}" for config, found in known]
        yield f"{key}{after_unequal(c for c, _ in known)}: {listed(said, _MOST_ALONE)}."


def _stopped(analysis: Analysis) -> Iterator[str]:
    """Runs that a callback or their module ended before their time."""
    for config in analysis.measured:
        runs = config.learned
        stops = [stop for run in runs if run.ranks and (stop := run.ranks[0].stopped)]
        for by, alike in grouped(stops, lambda one: (one.by, one.monitor)).items():
            who = f"{by[0]} on {by[1]}" if by[1] else by[0]
            epochs = count_range({stop.epoch for stop in alike})
            often = f" in {len(alike)} of {len(runs)} runs" if len(runs) > 1 else ""
            yield f"{config.label}: stopped early by {who} in epoch {epochs}{often}."


def _found(analysis: Analysis) -> Iterator[str | Line]:
    """What the doctor and the records complain of, and how much there is in the report."""
    for finding in analysis.doctor.findings if analysis.doctor else ():
        yield f"{finding.severity}: {finding.text}"
    found = remark_lines(analysis)
    yield from [f"Fault: {one.brief}." for one in found if one.first.code in _FAULTS][:1]
    undone = [one for one in found if one.first.code in _UNDONE]
    yield from (_sentence(f"{one.first.text} {one.often}".strip()) for one in undone)
    if found:
        verb = "is" if len(found) == 1 else "are"
        count = f"{len(found)} {plural(len(found), 'remark')} {verb} in the report."
        yield Line(count, more="remarks")

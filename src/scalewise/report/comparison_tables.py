"""``scalewise compare``: what differs, rows side by side, who wins at what, and what to take.

As sections, and as JSON and CSV.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from scalewise.analysis import (
    BEST,
    MISSING,
    VERDICT_RUNS,
    Analysis,
    Comparison,
    ConcurrentTraining,
    Entry,
    Match,
    RatioEstimate,
    Winner,
    Workload,
    as_plain,
    between,
    bounding,
    concurrent_trainings,
    count_range,
    csv_rows,
    describe,
    devices_of,
    estimate,
    factor,
    find_link,
    grouped,
    interval_words,
    listed,
    mean_alone,
    more_runs,
    number,
    rank_by,
    rows,
    sides,
    times,
    way_to_get,
    workloads,
)
from scalewise.host import from_here, plural
from scalewise.report.export import FORMAT_VERSION, configuration_as_plain, rows_csv
from scalewise.report.findings import add_words, after_unequal, searched
from scalewise.report.sections import (
    NOTES,
    Block,
    Column,
    Section,
    Table,
    by_text,
    figure_columns,
    lines,
    printable,
    section,
    table,
    words,
)

_MOST_NAMED = 3
_MOST_CHANGES = 4


def comparison_section(comparison: Comparison) -> Section:
    """What differs, a line a configuration, and what could not be compared."""
    a, b = comparison.sides
    blocks: list[Block] = [lines(_ratio_lines(comparison), "plain")]
    learned = [_learned(match, a, b) for match in comparison.matches if match.learned]
    if learned:
        blocks += [lines([NOTES["learned"]], "faint"), *learned]
    return section("ratio", f"{b} over {a}", *blocks)


def _learned(match: Match, a: str, b: str) -> Table:
    as_best = [replace(one, metric=f"{BEST}{one.metric}") for one in match.learned]
    return table(
        "learned",
        [
            words("metric", "metric", lambda one: one.metric),
            Column("before", a, "", lambda one: one.before),
            Column("after", b, "", lambda one: one.after),
            Column("difference", f"{b} - {a}", "", lambda one: one.difference),
        ],
        (one for one in match.learned if one not in as_best),
        title=match.label,
    )


def _ratio_lines(comparison: Comparison) -> list[str]:
    found, (a, b) = comparison.factor, comparison.sides
    if comparison.chosen and "," in comparison.factor:
        each = found.split(",")
        return [
            f"{b} against {a}: {len(each)} factors differ, and no ratio is of "
            f"one of them: {', '.join(each)}",
            *_changes(comparison),
            f"Type --factor {found} for the ratio of all of them together",
        ]
    declared = "what differs" if comparison.chosen else "what may differ"
    said = [f"global samples/s of {b} over {a}; {declared}: {found or 'nothing on record'}"]
    if comparison.chosen and not comparison.matches:
        differs = any(one.differing for one in comparison.unmatched)
        said = ["no ratio: what differs is more than any --factor frees" if differs else "no ratio"]
    links = dict.fromkeys(match.links for match in comparison.matches if match.links)
    said += [f"{a}: {x}; {b}: {y}" for x, y in links if "link" in found.split(",")]
    said += _changes(comparison)
    for match in comparison.matches:
        said.append(_match_line(match, b, a))
    said += [f"{side}: {line}" for side, line in comparison.replaced]
    alike = grouped(comparison.left_out, lambda one: (one.side, one.fault))
    said += [
        f"{side}, {listed([one.cell for one in cells], 1)}: left out: {fault}"
        for (side, fault), cells in alike.items()
    ]
    said += by_text(
        ((one.config.label, f"not comparable: {one.reason}") for one in comparison.unmatched), "row"
    )
    return [printable(line) for line in said]


def _changes(comparison: Comparison) -> list[str]:
    changed = dict.fromkeys(d for one in comparison.matches for d in describe(one.changed))
    said = [f"differs: {listed(list(changed), _MOST_CHANGES)}"] if changed else []
    each = [changed, *(describe(one.differing) for one in comparison.unmatched)]
    more = "comparison.json of --out FOLDER has every field that differs"
    return [*said, *[more] * any(len(one) > _MOST_CHANGES for one in each)]


def _match_line(match: Match, *sides: str) -> str:
    runs = " and ".join(map(str, reversed(match.ratio.n)))
    # 95 % for one configuration, more for several: all of them together are at 95 %.
    figure = factor(match.ratio.value)
    figure += f" ({interval_words(match.ratio)})" if match.ratio.interval else ""
    lack = ((VERDICT_RUNS - n, side) for n, side in zip(match.ratio.n, sides, strict=True))
    needed = " and ".join(f"{n} more of {side}" for n, side in lack if n > 0)
    seen = f"; a verdict needs {needed}" if match.change == "undecided" else ""
    return f"{match.label}: {match.change}: {figure} from {runs} runs{seen}"


def side_by_side(analyses: Sequence[Analysis], ratios: Sequence[Comparison]) -> list[Section]:
    """Each sweep in a line, ``ratios``, a section a work: its rows and winners; last what to do."""
    letters = sides(len(analyses))
    head = lines((_sweep_line(*one) for one in zip(letters, analyses, strict=True)), "plain")
    found = workloads(analyses)
    faint = lines([NOTES["side_by_side"]] if found else [], "faint")
    parts = [*_by_objective(analyses), section("sides", "Folders", head, faint)]
    parts += [*map(comparison_section, ratios), *map(_work, found)]
    shared = {id(entry.config) for one in found for entry in one.entries}
    alone = [
        f"{side} {config.label}"
        for side, analysis in zip(letters, analyses, strict=True)
        for config in analysis.measured
        if id(config) not in shared
    ]
    rest = [*map(_together_line, _together(analyses))]
    if alone:
        rest.append(f"Beside no row of the same work: {listed(alone, _MOST_NAMED)}.")
    parts.append(section("rest", "Beside these", lines(rest, "plain")))
    none = "Nothing to take for time or cost: no two rows train the same work. Name sweeps that do."
    advice = [*map(_advice, found), *_next(found)] or [none]
    parts.append(section("advice", "What to take", lines(advice, "plain")))
    return [part for part in parts if part.blocks]


def _by_objective(analyses: Sequence[Analysis]) -> Iterator[Section]:
    """Which of several searches for one objective found the best value of it, and the best rows."""
    objective, *others = map(searched, analyses)
    if objective is None or any(one != objective for one in others):
        return
    sound = [
        replace(config, label=f"{side} {config.label}", leaves={"side": side})
        for side, one in zip(sides(len(analyses)), analyses, strict=True)
        for config in one.measured
        if config.config_id not in one.invalid
    ]
    for ranking in rank_by(objective, sound):
        best, *rest = dict.fromkeys(row.leaves["side"] for row in ranking.rows)
        so_far = " so far" * any(row.leaves["side"] != best for row in ranking.rivals)
        title = f"{best} found the best {objective.metric}{so_far}{after_unequal(ranking.rows)}"
        told = (f"{row.label}: {estimate(row.estimate(objective.metric))}" for row in ranking.rows)
        yield section("objective", title, lines([*told][:_MOST_NAMED] if rest else [], "plain"))


def _together(analyses: Sequence[Analysis]) -> list[ConcurrentTraining]:
    named = zip(sides(len(analyses)), analyses, strict=True)
    return [one for side, analysis in named for one in concurrent_trainings(side, analysis)]


def comparison_csv(analyses: Sequence[Analysis]) -> str:
    """A row a configuration and side, in the columns of ``results.csv``."""
    found = [
        {"side": side, "folder": from_here(analysis.sweep.home)} | row
        for side, analysis in zip(sides(len(analyses)), analyses, strict=True)
        for row in csv_rows(analysis)
    ]
    return rows_csv(found)


def comparison_json(analyses: Sequence[Analysis], ratios: Sequence[Comparison]) -> str:
    """Every configuration as in ``results.json``, works with their winners, and ``ratios``."""
    found = workloads(analyses)
    plain = {
        "format_version": FORMAT_VERSION,
        "sides": {
            side: {
                "folder": from_here(analysis.sweep.home),
                "devices": devices_of(analysis),
                "configurations": list(map(configuration_as_plain, rows(analysis))),
            }
            for side, analysis in zip(sides(len(analyses)), analyses, strict=True)
        },
        "works": [_work_as_plain(one) for one in found],
        "next": _next(found),
        "side_by_side": as_plain(_together(analyses)),
        "global_samples_per_s_ratios": [*map(_ratio_as_plain, ratios)],
    }
    return json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _ratio_as_plain(ratio: Comparison) -> dict[str, Any]:
    """Of what is not comparable the name alone: its row stands among the configurations."""
    refused = [
        {"label": one.config.label, "reason": one.reason, "differing": as_plain(one.differing)}
        for one in ratio.unmatched
    ]
    return {**as_plain(replace(ratio, unmatched=())), "unmatched": refused}


def _work_as_plain(work: Workload) -> dict[str, Any]:
    """Rows by side and ``config_id``, their figures, and the winner of each metric."""

    def name(entry: Entry) -> str:
        return f"{entry.side} {entry.config.config_id}"

    return {
        "title": _title(work),
        "rows": {name(entry): entry.name for entry in work.entries},
        "metrics": {
            one.metric.key: {
                "figures": {name(e): as_plain(one.metric.estimate(e)) for e in work.entries},
                "winner": one.entry and name(one.entry),
                "may_be_best": [*map(name, one.rivals)],
                "advantage_ratio": as_plain(one.advantage),
                "missing": [*map(name, one.unmeasured)],
                "reason": one.reason,
            }
            for one in work.winners
        },
        "advice": _advice(work),
    }


def _sweep_line(side: str, analysis: Analysis) -> str:
    kinds = " and ".join(f"{count} x {name}" for name, count in devices_of(analysis).items())
    links = dict.fromkeys(word for c in analysis.measured if (word := find_link(c)))
    place = f"{side}: {from_here(analysis.sweep.home)}"
    return ", ".join([place, kinds or "nothing measured", *links])


def _title(work: Workload) -> str:
    runs = {len(entry.config.runs) for entry in work.entries}
    each = f"{count_range(runs)} {plural(max(runs), 'run')} each"
    named = {entry.side for entry in work.entries}
    alone = [f"of {named.pop()} alone"] if len(named) == 1 else []
    return ", ".join([_work_done(work), each, *alone])


def _work_done(work: Workload) -> str:
    """``gpt2, text, bf16-mixed, 32 samples a step``: what all its rows train."""
    first = work.entries[0].config
    weak = first.identity.get("scaling") == "weak"
    parts = [first.name(group) for group in ("model", "dataset", "precision")]
    samples = f"{first.identity.get('batch')} samples a {'device' if weak else 'step'}"
    return ", ".join([*filter(None, parts), samples])


def _work(work: Workload) -> Section:
    row = words("row", "row", lambda entry: entry.name)
    metrics = [winner.metric for winner in work.winners[1:]]
    use = [Column(one.key, one.words, one.unit, one.estimate, mean_alone) for one in metrics]
    blocks: list[Block] = [
        table("speed", [row, *figure_columns("speed")], work.entries),
        table("use", [row, *use], work.entries),
        lines(map(_winner_line, work.winners)),
    ]
    return section("work", _title(work), *blocks)


def _winner_line(winner: Winner) -> str:
    metric, found = winner.metric, winner.advantage
    without = listed([entry.name for entry in winner.unmeasured], 2)
    left = f"; {without} without {metric.needs}" if without else ""
    if found is None:
        return f"{metric.words}: no winner, {winner.reason}{left}."
    if _is_tie(winner):
        equal = " and ".join(entry.name for entry in winner.rivals[:2])
        return f"{metric.words}: no winner, {equal} are equal{left}."
    gap = _gap(found)
    if winner.entry is not None:
        return f"{metric.words}: {winner.entry.name} wins by {gap}{left}."
    first, second, *others = (entry.name for entry in winner.rivals)
    few = f"{min(found.n)} of the {VERDICT_RUNS} runs needed are there"
    why = few if min(found.n) < VERDICT_RUNS else "a tie is not excluded"
    more = f" and {len(others)} more" if others else ""
    # Rows are in the order of all their runs, and the gap is of pairs, which may say otherwise.
    leads = f"{first} leads; open against" if found.value >= 1 else f"open are {first} and"
    return f"{metric.words}: no winner yet, {leads} {second}{more}: {gap}, {why}{left}."


def _is_tie(winner: Winner) -> bool:
    """Whether the first two are equal in every run."""
    interval = winner.advantage and winner.advantage.interval
    return bool(interval and interval.low == interval.high == 1)


def _gap(ratio: RatioEstimate) -> str:
    """``1.81x (1.80-1.82)``; in percent below a twentieth: ``0.21 % (0.11-0.32)``."""
    interval = bounding(ratio)
    if ratio.value >= 1.05 or interval is None:
        return times(ratio)
    value, low, high = (f"{100 * (x - 1):.2g}" for x in (ratio.value, interval.low, interval.high))
    return f"{value} % ({between(low, high)})"


def _advice(work: Workload) -> str:
    """The row to take for time and for money, or which one leads."""
    speed, cost = work.fastest, work.cheapest
    said = f"for time {_choice(speed)}; for cost {_choice(cost)}"
    if speed.entry is not None and speed.entry is cost.entry:
        said = f"take {speed.entry.name}, fastest and cheapest"
    return f"{_work_done(work)}: {said}."


def _choice(winner: Winner) -> str:
    if winner.entry is not None:
        return f"take {winner.entry.name}"
    if winner.advantage is None:
        return f"no answer, {winner.reason}"
    first, second, *_ = (entry.name for entry in winner.rivals)
    interval = bounding(winner.advantage)
    return f"{first} leads" if interval and interval.low > 1 else f"{first} or {second}, open"


def _next(found: Sequence[Workload]) -> list[str]:
    """How each folder whose rows leave an answer open gets more runs."""
    winners = (one for work in found for one in (work.fastest, work.cheapest))
    lacks = [lack for winner in winners for lack in _lacking(winner)]
    most: dict[str, tuple[int, Entry]] = {}
    for entry, more in lacks:
        if more is not None and more > most.get(entry.side, (0,))[0]:
            most[entry.side] = (more, entry)
    if lacks and not most:
        return ["More runs hardly decide what is open."]
    return [f"Next, for a winner, not a verdict, in {_to_add(*most[one])}" for one in sorted(most)]


def _lacking(winner: Winner) -> Iterator[tuple[Entry, int | None]]:
    """Rows that an open answer waits for, those of too few runs first, and how many more."""
    if winner.advantage is None or _is_tie(winner):
        return
    few = [(e, VERDICT_RUNS - n) for e in winner.rivals if (n := len(e.config.runs)) < VERDICT_RUNS]
    more = None if few else more_runs(winner.advantage, 1)
    yield from few or ((entry, more) for entry in winner.rivals)


def _to_add(more: int, entry: Entry) -> str:
    if entry.config.is_monitored:
        return f"{entry.side}: {way_to_get('runs', 'monitor', runs=len(entry.config.runs))}."
    more = more if entry.config.setting("repeats") != "auto" else 0
    return f"{entry.side}: {add_words(entry.analysis, more, entry.config)}"


def _together_line(one: ConcurrentTraining) -> str:
    counts = {task: one.tasks.count(task) for task in one.tasks}
    tasks = " + ".join(f"{n} of {task}" if n > 1 else task for task, n in counts.items())
    met = f"{one.samples_per_s.n} {plural(one.samples_per_s.n, 'time')}"
    return (
        f"{one.side}, side by side: {tasks}: {estimate(one.samples_per_s)} samples/s in all, "
        f"over {number(one.seconds) if one.seconds else MISSING} s, {met}."
    )

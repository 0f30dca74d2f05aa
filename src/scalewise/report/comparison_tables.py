"""``scalewise compare``: what differs, rows side by side, who wins at what, and what to take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from scalewise.analysis import (
    MISSING,
    VERDICT_RUNS,
    Analysis,
    Comparison,
    Entry,
    Match,
    RatioEstimate,
    Together,
    Winner,
    Work,
    bounding,
    confidence,
    count_range,
    devices_of,
    estimate,
    factor,
    find_link,
    listed,
    number,
    ratio,
    sides,
    times,
    trained_together,
    works,
)
from scalewise.host import from_here, plural
from scalewise.report.scaling_tables import mean_number, verdict
from scalewise.report.sections import (
    Block,
    Column,
    Section,
    by_text,
    lines,
    printable,
    section,
    table,
    words,
)

_MOST_NAMED = 3
_MOST_CHANGES = 4


def comparison_lines(comparison: Comparison, folders: Sequence[str] = ("A", "B")) -> list[str]:
    """What differs, a line a configuration, what could not be compared, and the gate's answer.

    Of several factors that nobody declared only their names, and what to type.
    """
    found = comparison.factor
    if comparison.chosen and not comparison.is_one_factor:
        each = found.split(",")
        return [
            f"{folders[1]} against {folders[0]}: {len(each)} factors differ, and no ratio is of "
            f"one of them: {', '.join(each)}",
            *_changes(comparison),
            f"Type --factor {found} for the ratio of all of them together",
        ]
    declared = "what differs" if comparison.chosen else "what may differ"
    same = "nothing on record" if comparison.matches else "more than any factor"
    said = [f"global samples/s of {folders[1]} over {folders[0]}; {declared}: {found or same}"]
    said += _links(comparison, folders) if "link" in found.split(",") else []
    said += _changes(comparison)
    for match in comparison.matches:
        said += [_match_line(match), *(f"{match.label}: {mixture}" for mixture in match.mixed)]
    said += [f"{side}: {line}" for side, line in comparison.replaced]
    said += [f"{one.side}, {one.cell}: left out: {one.fault}" for one in comparison.left_out]
    said += by_text(
        ((one.label, f"not comparable: {one.reason}") for one in comparison.unmatched), "row"
    )
    if comparison.gate is not None:
        gate = comparison.gate
        passed = "passed, WARNING" if gate.blind else "passed"
        said.append(f"gate {'failed' if gate.failed else passed}: {gate.reason}")
    return [printable(line) for line in said]


def comparison_text(comparison: Comparison) -> str:
    """:func:`comparison_lines`, one a row."""
    return "".join(f"{line}\n" for line in comparison_lines(comparison))


def _links(comparison: Comparison, folders: Sequence[str]) -> Iterator[str]:
    pairs = dict.fromkeys(match.links for match in comparison.matches if match.links)
    for pair in pairs:
        yield "; ".join(f"{side}: {link}" for side, link in zip(folders, pair, strict=False))


def _changes(comparison: Comparison) -> list[str]:
    changed = dict.fromkeys(str(d) for match in comparison.matches for d in match.changed)
    return [f"differs: {listed(list(changed), _MOST_CHANGES)}"] if changed else []


def _match_line(match: Match) -> str:
    runs = " and ".join(map(str, reversed(match.ratio.n)))
    interval = bounding(match.ratio)
    # 95 % for one configuration, more for several: all of them together are at 95 %.
    level = f" ({confidence(interval)} interval)" if interval else ""
    few = match.change == "undecided"
    seen = f"; a verdict needs {VERDICT_RUNS} of each" if few else ""
    if match.change == "no difference shown" and match.detectable is not None:
        change = factor(match.detectable)
        seen = f"; a change beyond {change} would be seen four times in five"
    return f"{match.label}: {match.change}: {ratio(match.ratio)}{level} from {runs} runs{seen}"


def side_by_side(analyses: Sequence[Analysis]) -> list[Section]:
    """Each sweep in a line, then a section a work: its rows, the winners, what to take."""
    letters = sides(len(analyses))
    head = lines((_sweep_line(*one) for one in zip(letters, analyses, strict=True)), "plain")
    found = works(analyses)
    parts = [section("sides", "", head)]
    parts += [_work(one) for one in found]
    shared = {id(entry.config) for one in found for entry in one.entries}
    alone = [
        f"{side} {config.label}"
        for side, analysis in zip(letters, analyses, strict=True)
        for config in analysis.measured
        if id(config) not in shared
    ]
    met = [
        one
        for side, analysis in zip(letters, analyses, strict=True)
        for one in trained_together(side, analysis)
    ]
    rest = [*map(_together_line, met)]
    if alone:
        rest.append(f"Beside no row of the same work: {listed(alone, _MOST_NAMED)}.")
    parts.append(section("rest", "", lines(rest, "plain")))
    return [part for part in parts if part.blocks]


def _sweep_line(side: str, analysis: Analysis) -> str:
    kinds = " and ".join(f"{count} x {name}" for name, count in devices_of(analysis).items())
    links = dict.fromkeys(word for c in analysis.measured if (word := find_link(c)))
    return ", ".join(
        [f"{side}: {from_here(analysis.sweep.path)}", kinds or "nothing measured", *links]
    )


def _work(work: Work) -> Section:
    first = work.entries[0].config
    batch = first.identity.get("batch")
    weak = first.identity.get("scaling") == "weak"
    parts = [first.name(group) for group in ("model", "dataset", "precision")]
    runs = {len(entry.config.runs) for entry in work.entries}
    samples = f"{batch} samples a {'device' if weak else 'step'}"
    title = ", ".join(
        [*(p for p in parts if p), samples, f"{count_range(runs)} {plural(max(runs), 'run')} each"]
    )
    by_key = {winner.metric.key: winner.metric for winner in work.winners}

    def pair(figure: str, entry: Entry) -> object:
        return getattr(entry.analysis.sound_pair(entry.config), figure, None)

    row = words("row", "row", lambda entry: entry.name)
    speed = (
        row,
        Column("samples_per_s", "samples/s", "", by_key.pop("samples_per_s").estimate, estimate),
        Column("speedup", "speedup", "", partial(pair, "speedup"), ratio),
        Column("efficiency", "efficiency", "", partial(pair, "efficiency"), _value),
        words("verdict", "verdict", lambda entry: verdict(entry.analysis, entry.config)),
    )
    use = (
        row,
        *(
            Column(key, metric.words, metric.unit, metric.estimate, mean_number)
            for key, metric in by_key.items()
        ),
    )
    blocks: list[Block] = [
        table("speed", speed, work.entries, title=title),
        table("use", use, work.entries),
        lines(map(_winner_line, work.winners), "plain"),
        lines([_advice(work)], "plain"),
    ]
    return section("work", "", *blocks)


def _value(figure: RatioEstimate) -> str:
    return factor(figure.value)


def _winner_line(winner: Winner) -> str:
    metric, found = winner.metric, winner.advantage
    without = listed([entry.name for entry in winner.unmeasured], 2)
    left = f"; without {without}, not measured" if without else ""
    if found is None:
        return f"{metric.words}: no winner, {winner.reason}{left}."
    if found.interval and found.interval.low == found.interval.high == 1:
        equal = " and ".join(entry.name for entry in winner.rivals[:2])
        return f"{metric.words}: no winner, {equal} are equal{left}."
    gap = _gap(found)
    if winner.entry is not None:
        return f"{metric.words}: {winner.entry.name} wins by {gap}{left}."
    first, *others = (entry.name for entry in winner.rivals)
    few = min(found.n) < VERDICT_RUNS
    why = f"{VERDICT_RUNS} runs of each are needed" if few else "a tie is not excluded"
    beside = listed(others, _MOST_NAMED)
    return f"{metric.words}: no winner, {first} leads {beside} by {gap}, {why}{left}."


def _gap(ratio: RatioEstimate) -> str:
    """``1.81x (1.80-1.82)``; in percent below a twentieth: ``0.21 % (0.11 to 0.32)``."""
    interval = bounding(ratio)
    if ratio.value >= 1.05 or interval is None:
        return times(ratio)
    value, low, high = (
        f"{100 * (end - 1):.2g}" for end in (ratio.value, interval.low, interval.high)
    )
    return f"{value} % ({low} to {high})"


def _advice(work: Work) -> str:
    """The row to take for time and for money; which rows to repeat where that is open."""
    fastest, cheapest = work.winner("samples_per_s").entry, work.winner("cost").entry
    if fastest is not None and fastest is cheapest:
        return f"Take {fastest.name}: fastest and cheapest."
    if not fastest and not cheapest:
        return "Take none yet: nothing is shown to be fastest or cheapest; add repeats."
    said = [
        f"for {what} {entry.name if entry else 'none yet (add repeats)'}"
        for entry, what in ((fastest, "time"), (cheapest, "cost"))
    ]
    return f"Take {'; '.join(said)}."


def _together_line(one: Together) -> str:
    counts = {task: one.tasks.count(task) for task in one.tasks}
    tasks = " + ".join(f"{n} of {task}" if n > 1 else task for task, n in counts.items())
    met = f"{one.samples_per_s.n} {plural(one.samples_per_s.n, 'time')}"
    return (
        f"{one.side}, side by side: {tasks}: {estimate(one.samples_per_s)} samples/s in all, "
        f"over {number(one.seconds) if one.seconds else MISSING} s, {met}."
    )

"""Tables of the published studies, from measurement, and of rehearsals, apart from all of it.

Each is data once: the console, details.md, report.html, ``results.json`` and the study's CSV files
show the same :class:`~scalewise.report.sections.Table`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter, methodcaller
from typing import Any

from scalewise.analysis import (
    Analysis,
    AverageSpeedup,
    BreakEven,
    Case,
    Estimate,
    Owned,
    Rehearsal,
    Share,
    SizedPair,
    as_plain,
    average_speedups,
    break_evens,
    by_size,
    electricity_missing,
    factor,
    model_kind,
    number,
    p_words,
    ratio,
    scores,
    size_families,
    size_words,
)
from scalewise.config import Quote
from scalewise.report.sections import (
    NOTES,
    Column,
    Note,
    Read,
    Section,
    Table,
    lines,
    section,
    table,
    words,
)


def studies(analysis: Analysis) -> list[Section]:
    return [sizes(analysis), averages(analysis), investment(analysis), alternative(analysis)]


def sizes(analysis: Analysis) -> Section:
    """From how many parameters on more devices pay, where one model ran in several sizes."""
    families = size_families(analysis.pairs)
    rows = [row for family in families for row in family]
    crossings = [one for family in families for one in break_evens(family)]
    several = [
        words("model", "model", lambda row: model_kind(row.pair)),
        Column("devices", "devices", "", lambda row: row.pair.devices),
        words("strategy", "strategy", lambda row: row.pair.multi.name("strategy")),
    ]
    columns = (
        Column("parameters", "size", "M", lambda row: row.parameters,
               lambda count: f"{count / 1e6:.4g}"),
        Column("global_batch", "batch", "", lambda row: row.batch, "{:,}".format),
        # What all rows share is in the lines above.
        *(column for column in several if len({column.read(row) for row in rows}) > 1),
        Column("speedup", "speedup", "", lambda row: row.pair.speedup),
        Column("p_value", "p", "", lambda row: row.pair.speedup.p_value, p_words),
        words("verdict", "verdict", lambda row: row.pair.verdict),
        words("rule", "rule", lambda row: _RULE[row.rule.says]),
        words("rule_is_right", "right", lambda row: _RIGHT[row.rule_is_right]),
    )  # fmt: skip
    return section(
        "sizes",
        "From which size on more devices pay",
        lines(_hits(rows)),
        table("thresholds", columns, rows, NOTES["sizes"]),
        table("break_even", _BREAK_EVEN_COLUMNS, crossings, NOTES["break_even"]),
    )


_RULE = {"single": "one device", "ddp": "several", "undecided": "open"}
_RIGHT = {True: "yes", False: "no", None: "open"}


def _hits(rows: list[SizedPair]) -> Iterator[str]:
    judged = [row.rule_is_right for row in rows if row.rule_is_right is not None]
    by_rule = sum(row.rule.says == "undecided" for row in rows)
    left = [f"{by_rule} it leaves open"] if by_rule else []
    if by_runs := len(rows) - len(judged) - by_rule:
        left.append(f"{by_runs} the runs leave open")
    if rows:
        right = f"right in {sum(judged)} of {len(judged)} decided rows" if judged else "not judged"
        yield "; ".join([f"the published rule is {right}", *left])


def _of(one: BreakEven) -> str:
    """``SizedMlp, batch 64, ddp x2``."""
    row = one.curve[0]
    pair = row.pair
    return f"{model_kind(pair)}, batch {row.batch}, {pair.multi.name('strategy')} x{pair.devices}"


_BREAK_EVEN_COLUMNS = (
    words("curve", "curve", _of),
    Column("level", "speedup", "", lambda one: one.level, factor),
    Column("parameters", "size", "parameters", lambda one: one.parameters, size_words),
    Column("interval", "95 % interval", "parameters", lambda one: one.interval),
    words("reached", "reached", lambda one: one.reached),
)


def averages(analysis: Analysis) -> Section:
    """The mean speedup over batch sizes, of rows that differ in nothing else."""
    columns = (
        words("configuration", "configurations", average_name),
        Column("rows", "rows", "", lambda one: len(one.pairs)),
        words("batches", "batches", lambda one: ", ".join(map(str, one.batches))),
        Column("speedup", "mean speedup", "", lambda one: one.speedup),
        words("label", "study's label", lambda one: one.seed_label),
        words("verdicts", "verdicts", _verdicts),
    )
    return section(
        "averages",
        "Mean speedup over batch sizes",
        table("averages", columns, average_speedups(analysis.pairs), NOTES["averages"]),
    )


def average_name(one: AverageSpeedup) -> str:
    """``large ddp x2``: what its rows share."""
    multi = one.pairs[0].multi
    return f"{multi.name('model')} {multi.name('strategy')} x{one.pairs[0].devices}"


def _verdicts(one: AverageSpeedup) -> str:
    return "; ".join(f"{v} at {', '.join(map(str, at))}" for v, at in one.verdicts.items())


_CONCLUSIONS = {
    "beneficial": "on average several devices are faster",
    "marginal": "on average the difference is marginal",
    "single": "on average one device is faster",
}


def average_line(one: AverageSpeedup) -> str:
    """The mean with its label, and what follows."""
    multi = one.pairs[0].multi
    said = (
        f"{average_name(one)}: {ratio(one.speedup)}, the geometric mean of {len(one.pairs)} rows "
        f"like {multi.label} that differ in the batch alone: {_CONCLUSIONS[one.seed_label]}"
    )
    return f"{said}; {_verdicts(one)}"


def investment(analysis: Analysis) -> Section:
    """What the added devices return, and owning beside renting, where a price to buy is known."""
    owned = [one for c in analysis.measured if (one := analysis.owned.get(c.config_id))]
    of_returns = (
        words("configuration", "configuration", lambda one: one.pair.multi.label),
        Column("usd", "price", "USD", lambda one: one.usd),
        Column("speedup", "speedup", "", lambda one: one.pair.speedup),
        Column("worth", "worth", "USD an hour", lambda one: one.worth_usd_per_hour),
        Column("payback", "paid back after", "hours", lambda one: one.payback_hours),
        Column("roi", "return", "x price", lambda one: one.roi),
        Column("least", "pays from", "USD an hour", lambda one: one.least_usd_per_hour),
    )
    of_owned = (
        words("configuration", "configuration", lambda one: one.config.label),
        Column("usd", "price", "USD", lambda one: one.usd),
        Column("watts", "power", "W", lambda one: one.watts),
        Column("rented", "rented", "USD per million samples",
               lambda one: analysis.cost(one.config).usd_per_million_samples),
        Column("own", "own", "USD per million samples",
               lambda one: one.usd_per_million_samples),
        Column("hours", "cheaper from", "hours", lambda one: one.break_even_hours),
    )  # fmt: skip
    return section(
        "investment",
        "Buying more devices, and renting",
        lines(_price_lines(analysis, owned)),
        table("returns", of_returns, analysis.returns.values(), NOTES["returns"]),
        table("owned", of_owned, owned, NOTES["owned"]),
    )


def _price_lines(analysis: Analysis, owned: list[Owned]) -> Iterator[str]:
    """Each price with its source and date, and what is missing."""
    if not owned:
        return
    prices = analysis.prices
    named: tuple[tuple[str, str, Quote | None], ...] = (
        *(("one device", "USD", one.quote) for one in owned),
        ("board and power supply", "USD", prices.extra_usd),
        ("lifetime", "years", prices.lifetime_years),
        ("training", "hours a year", prices.hours_per_year),
        ("electricity", "USD per kWh", prices.usd_per_kwh),
    )
    for what, unit, quote in dict.fromkeys(named):
        if quote is not None:
            yield f"{what}: {quote.value:,.10g} {unit} ({quote.source}, {quote.date})"
    yield from dict.fromkeys(m for one in owned if (m := electricity_missing(one, prices)))
    for one in owned:
        cost = analysis.cost(one.config)
        if cost.price is None:
            yield f"no rent is known (--price usd_per_hour=N): {cost.missing}"
            return


def alternative(analysis: Analysis) -> Section:
    found = analysis.alternatives
    if not any(one.usd == 0 for one in found) and not analysis.returns:
        return section("alternatives", "")
    columns = (
        words("configuration", "instead of", lambda one: one.baseline.label),
        words("what", "change", lambda one: one.what),
        Column("gain", "samples/s", "x", lambda one: one.gain),
        Column("usd", "price", "USD", lambda one: one.usd),
    )  # fmt: skip
    return section(
        "alternatives",
        "What else to change",
        table("alternatives", columns, found, NOTES["alternatives"]),
    )


def tables_of(sections: Iterable[Section]) -> list[Table]:
    return [block for one in sections for block in one.blocks if isinstance(block, Table)]


def studies_as_plain(analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
    """The field of ``results.json``: of each table its rows, a key a column."""
    return {
        one.key: [
            {column.key: as_plain(value) for column, value in zip(one.columns, row, strict=True)}
            for row in one.rows
        ]
        for one in tables_of(studies(analysis))
    }


def rehearsed(analysis: Analysis) -> Section:
    """One row a rehearsed configuration."""
    columns = (
        words("configuration", "configuration", lambda one: one.config.label),
        words("verdict", "verdict", lambda one: one.word),
        Column("speedup", "speedup (90 %)", "x", lambda one: one.shown),
        words("reason", "why", lambda one: one.reason),
        words("measured", "measured as", lambda one: one.measured and one.measured.label),
        Column("step_error", "step, rehearsed over measured", "x", lambda one: one.step_error),
        words("source", "times of the link", lambda one: one.record.source),
    )
    rows = analysis.rehearsals
    return section(
        "rehearsed",
        "Rehearsed, not measured",
        table("rehearsed", columns, rows),
        Note(NOTES["rehearsed"] if rows else ""),
    )


def rehearsals_in_brief(analysis: Analysis) -> Iterator[str]:
    """A line for each, and one on what all figures of them miss."""
    yield from map(str, analysis.rehearsals)
    yield from map(_from_which_size, by_size(analysis.rehearsals))
    if any(one.shown for one in analysis.rehearsals):
        yield NOTES["rehearsed"]


def _from_which_size(curve: Sequence[Rehearsal]) -> str:
    """Up to which size its devices likely do not pay, and from which on they do."""
    first, words = curve[0], [one.word for one in curve]
    no = list(takewhile(lambda one: one.word == "likely does not pay", curve))
    yes = list(takewhile(lambda one: one.word == "likely pays", reversed(curve)))
    said = [f"likely does not pay up to {size_words(no[-1].parameters)}"] if no else []
    where = "at every size, " if len(yes) == len(curve) else ""
    size = size_words(yes[-1].parameters) if yes else ""
    said += [f"likely pays {where}from {size} parameters on"] if yes else []
    known = "; ".join(said) or f"cannot tell from which of {len(words)} sizes on it pays"
    kind = str(first.config.setting("model._target_") or "model").rpartition(".")[2]
    record, batch = first.record, first.config.identity.get("batch")
    strategy = first.config.rehearsed_kind
    return f"{kind} {strategy} x{record.ranks} over {record.link}, {batch} samples a rank: {known}."


_ERRORS = {"step": "error", "surplus": "surplus", "linear": "linear"}
_SPARSE = {"alone": "alone", "amdahl": "Amdahl"}
"""Few cases have these, and a table of 80 columns has no room for them."""


def score_sections(found: Sequence[Case]) -> list[Section]:
    """A row a rehearsal with its errors, a row a kind, and how many intervals held the truth."""
    each = (
        words("case", "rehearsal", _name),
        _step("rehearsed", lambda one: one.rehearsal.step_time_ms),
        _step("measured", lambda one: one.measured.estimate("step_time_ms")),
        *(_error(key, heading, attrgetter(key), "+") for key, heading in _ERRORS.items()),
    )
    together = (
        words("kind", "model, limited by, link", lambda one: one.kind),
        *(Column(k, k, "", attrgetter(k), str) for k in ("cases", "models", "hosts")),
        *(_error(key, heading, methodcaller("middle", key)) for key, heading in _ERRORS.items()),
    )
    kinds = scores(found)
    held = (
        f"{one.kind}: at most {one.worst:.1%} off; {_held(one.covered)}"
        + (f"; two real runs are {apart:.1%} apart" if (apart := one.apart) is not None else "")
        + (f"; {n.hits} of {n.n} likely verdicts were measured too" if (n := one.told).n else "")
        for one in kinds
    )
    sparse = (
        f"{name} {100 * error:+.1f} %: {_name(one)}"
        for key, name in _SPARSE.items()
        for one in found
        if (error := getattr(one, key)) is not None
    )
    return [
        section("cases", "Rehearsed and measured", table("cases", each, found), lines(sparse)),
        section("kinds", "Medians of the errors' sizes", table("kinds", together, kinds)),
        section("held", "Steps, intervals of 90 % that held, and verdicts", lines(held, "plain")),
        section("words", "Errors", lines([NOTES["score"]], "faint")),
    ]


def _name(one: Case) -> str:
    return f"{one.sweep}: {one.rehearsal.config.label.replace(', rehearsed', '')}"


def _step(key: str, read: Callable[[Case], Estimate | None]) -> Column:
    return Column(key, key, "ms", read, lambda found: number(found.value))


def _error(key: str, heading: str, read: Read, sign: str = "") -> Column:
    return Column(key, heading, "%", read, lambda error: f"{100 * error:{sign}.1f}")


def _held(share: Share) -> str:
    found = share.interval
    if found is None:
        return f"{share.hits} of {share.n}, too few for a share"
    return f"{share.hits} of {share.n} ({found.low:.0%} to {found.high:.0%}, Wilson)"

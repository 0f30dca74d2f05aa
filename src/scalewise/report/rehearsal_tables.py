"""What was rehearsed: apart from all that was measured, and beside it where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter, methodcaller

from scalewise.analysis import (
    Analysis,
    Case,
    Configuration,
    Estimate,
    Rehearsal,
    Share,
    by_size,
    number,
    scores,
    size_words,
)
from scalewise.report.sections import Column, Note, Read, Section, lines, section, table, words

_MISSES = (
    "Rehearsed: one rank of N ran on this host, and the others' part of each collective was "
    "emulated. Their lateness, a network's jitter and a full host's heat are missing."
)


def rehearsed(analysis: Analysis) -> Section:
    """One row a rehearsed configuration."""
    columns = (
        words("configuration", "configuration", lambda one: one.config.label),
        words("verdict", "verdict", lambda one: one.word),
        Column("speedup", "speedup (90 %)", "x", lambda one: one.speedup),
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
        Note(_MISSES if rows else ""),
    )


def in_brief(analysis: Analysis) -> Iterator[str]:
    """A line for each, with its score, and one on what all of them miss."""
    for one in analysis.rehearsals:
        yield str(one)
        if one.score:
            yield f"  {one.score}."
    yield from map(_from_which_size, by_size(analysis.rehearsals))
    if analysis.rehearsals:
        yield _MISSES


def _from_which_size(curve: Sequence[Rehearsal]) -> str:
    """Up to which size its devices likely do not pay, and from which on they do."""
    first, words = curve[0], [one.word for one in curve]
    no = list(takewhile(lambda one: one.word == "likely does not pay", curve))
    yes = list(takewhile(lambda one: one.word == "likely pays", reversed(curve)))
    said = [f"likely does not pay up to {size_words(no[-1].parameters)}"] if no else []
    said += [f"likely pays from {size_words(yes[-1].parameters)} parameters on"] if yes else []
    known = "; ".join(said) or f"cannot tell from which of {len(words)} sizes on it pays"
    kind = str(first.config.setting("model._target_") or "model").rpartition(".")[2]
    record, batch = first.record, first.config.identity.get("batch")
    return f"{kind} ddp x{record.ranks} over {record.link}, {batch} samples a rank: {known}."


_ERRORS = {
    "step": "error", "surplus": "surplus", "linear": "linear", "alone": "alone", "amdahl": "Amdahl",
}  # fmt: skip
_WORDS = (
    "Errors are of the step, below 0 where it was said to be too short, and of its surplus over "
    "one N-th of a single device's. What needs no rehearsal: linear is N times one device's rate, "
    "alone that of one with its share of the batch, Amdahl his law through fewer devices."
)


def score_sections(found: Sequence[Case]) -> list[Section]:
    """A row a rehearsal with its errors, a row a kind, and how many intervals held the truth."""
    each = (
        words("case", "rehearsal", lambda one: f"{one.sweep}: {one.rehearsal.config.label}"),
        _step("one", lambda one: one.single),
        _step("step", lambda one: one.rehearsal.config),
        _step("real", lambda one: one.measured),
        *(_error(key, heading, attrgetter(key), "+") for key, heading in _ERRORS.items()),
    )
    together = (
        words("kind", "model, limited by, link", lambda one: one.kind),
        *(Column(k, k, "", attrgetter(k), str) for k in ("cases", "models", "hosts")),
        *(_error(key, heading, methodcaller("middle", key)) for key, heading in _ERRORS.items()),
    )
    kinds = scores(found)
    held = (f"{one.kind}: at most {one.worst:.1%} off; {_held(one.covered)}" for one in kinds)
    return [
        section("cases", "Rehearsed and measured", table("cases", each, found)),
        section("kinds", "Medians of the errors' sizes", table("kinds", together, kinds)),
        section("held", "Steps, and 90 % intervals that held the speedup", lines(held, "plain")),
        section("words", "Errors", lines([_WORDS], "faint")),
    ]


def _step(key: str, side: Callable[[Case], Configuration]) -> Column:
    def read(one: Case) -> Estimate | None:
        return side(one).estimate("step_time_ms")

    return Column(key, key, "ms", read, lambda found: number(found.value))


def _error(key: str, heading: str, read: Read, sign: str = "") -> Column:
    return Column(key, heading, "%", read, lambda error: f"{100 * error:{sign}.1f}")


def _held(share: Share) -> str:
    found = share.interval
    if found is None:
        return f"{share.hits} of {share.n}, too few for a share"
    return f"{share.hits} of {share.n} ({found.low:.0%} to {found.high:.0%}, Wilson)"

"""Two sweeps side by side under one declared factor: is B faster or slower than A, and by how much?

Configurations are matched by identity; what differs beside the declared factor refuses the match.
Every decision, interval and detectable change is at the level of Holm's correction for the number
of configurations compared, so that they agree. The gate for use in CI fails on what is shown, not
on what is merely possible: only when the whole interval, so corrected, lies beyond the limit. A
pass that excludes nothing says so.

Repeats of one configuration may be of several states: ``sweep.allow_mixed`` lets a resumed sweep
add results of other code or devices. As in a report, such a mixture equals only the same mixture;
one in the declared factor itself is said aloud. Repeats that are set aside there, as those of other
code, are left out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalewise.analysis.cells import Cell, Sweep
from scalewise.analysis.gate import Gate, judge_gate, parse_limit
from scalewise.analysis.identity import FACTORS, differences, mixtures
from scalewise.analysis.matches import Change, Match, Unmatched
from scalewise.analysis.parted import mixing_allowed
from scalewise.analysis.replaced import replaced_runs
from scalewise.analysis.runs import Configuration, configurations
from scalewise.analysis.significance import detectable_effect, holm, holm_levels
from scalewise.analysis.statistics import estimate_ratio

Side = Literal["A", "B"]
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class LeftOut:
    """A cell that ended but is not counted, for its records are damaged or it is set aside."""

    side: Side
    cell: str
    fault: str


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found."""

    factor: str
    matches: tuple[Match, ...]
    unmatched: tuple[Unmatched, ...]
    gate: Gate | None
    """None where no limit was asked for."""
    left_out: tuple[LeftOut, ...] = ()
    """Cells of both sweeps that ended and whose figures are not in ``matches``."""
    replaced: tuple[tuple[Side, str], ...] = ()
    """Of each side, what is to be known of runs whose earlier results were set aside."""


@dataclass(frozen=True)
class _Found:
    """A match that is not judged yet, for the level depends on all the others."""

    label: str
    above: Sequence[float]
    """Global samples/s of the runs in B."""
    below: Sequence[float]
    mixed: tuple[str, ...]


def compare(a: Sweep, b: Sweep, factor: str, fail_if: str | None = None) -> Comparison:
    """Compare sweep ``b`` with ``a``, which may differ in ``factor`` only.

    ``fail_if`` is a limit such as ``slower=3%``. Raises ValueError for a factor or a limit that
    does not exist.
    """
    if factor not in FACTORS:
        raise ValueError(f"factor: found {factor!r}; allowed: {', '.join(FACTORS)}")
    limit = parse_limit(fail_if) if fail_if is not None else None
    all_a, all_b = configurations(a), configurations(b)
    before = [c for c in map(_sound, all_a) if c.values("samples_per_s")]
    paired: list[_Found] = []
    unmatched: list[Unmatched] = []
    for config in map(_sound, all_b):
        found = _match(config, before, factor)
        if isinstance(found, _Found):
            paired.append(found)
        else:
            unmatched.append(found)
    judged = _judged(paired)
    gate = None if limit is None else judge_gate(judged, unmatched, limit)
    left_out = (*_left_out("A", a, all_a), *_left_out("B", b, all_b))
    sides: tuple[tuple[Side, Sweep], ...] = (("A", a), ("B", b))
    replaced = tuple((side, line) for side, sweep in sides for line in replaced_runs(sweep))
    return Comparison(factor, judged, tuple(unmatched), gate, left_out, replaced)


def _sound(config: Configuration) -> Configuration:
    """Without the runs whose step records are damaged: what is left of them proves nothing."""
    return replace(config, runs=tuple(r for r in config.runs if not r.cell.step_faults))


def _left_out(side: Side, sweep: Sweep, configs: Sequence[Configuration]) -> list[LeftOut]:
    aside = {one.run.cell.planned.name: f"it {one.reason}" for c in configs for one in c.aside}
    found = [(c.planned.name, _fault(c) or aside.get(c.planned.name)) for c in sweep.cells]
    return [LeftOut(side, name, why) for name, why in found if why]


def _fault(cell: Cell) -> str:
    """What is damaged of a result or of the times of a finished cell."""
    if cell.result is None:
        return cell.result_fault
    return "; ".join(cell.step_faults)


def _match(
    config: Configuration, before: Sequence[Configuration], factor: str
) -> _Found | Unmatched:
    values = config.values("samples_per_s")
    if not values:
        last = config.cells[-1]
        why = last.failure or _fault(last) or "its throughput was not measured"
        return Unmatched(config.label, f"no run in B: {why}")
    if not before:
        return Unmatched(config.label, "no configuration of A has a run")
    nearest = min(before, key=lambda c: len(differences(c.identity, config.identity, factor)))
    differing = tuple(differences(nearest.identity, config.identity, factor))
    if differing:
        words = "; ".join(map(str, differing[:4]))
        fields = [difference.field for difference in differing]
        mixtures = (*_mixtures("A", nearest, fields), *_mixtures("B", config, fields))
        why = "".join(f"; {mixture}" for mixture in mixtures)
        return Unmatched(config.label, f"the nearest in A differs in {words}{why}", differing)
    for side, one in (("A", nearest), ("B", config)):
        invalid = one.invalid
        if invalid:
            return Unmatched(config.label, f"in {side}, {invalid[0].reason}")
    freed = FACTORS[factor]
    mixed = (*_mixtures("A", nearest, freed), *_mixtures("B", config, freed))
    return _Found(config.label, values, nearest.values("samples_per_s"), mixed)


def _mixtures(side: Side, config: Configuration, fields: Sequence[str]) -> list[str]:
    """Those of ``fields``, and of what lies below them, in which the runs differ, in words."""
    found = mixtures([run.cell for run in config.runs], fields).items()
    return [
        f"the repeats in {side} are of several {name}: {told}{_leave(config)}"
        for name, told in found
    ]


def _leave(config: Configuration) -> str:
    return " (sweep.allow_mixed=true)" if mixing_allowed(config.cells) else ""


def _judged(paired: Sequence[_Found]) -> tuple[Match, ...]:
    p_values = [estimate_ratio(one.above, one.below).p_value for one in paired]
    tested = [p for p in p_values if p is not None]
    adjusted, levels = iter(holm(tested)), iter(holm_levels(tested, SIGNIFICANT))
    return tuple(
        _alone(one) if p is None else _tested(one, next(adjusted), next(levels))
        for one, p in zip(paired, p_values, strict=True)
    )


def _alone(one: _Found) -> Match:
    """One run on a side: a ratio, and nothing to judge it by."""
    ratio = estimate_ratio(one.above, one.below)
    return Match(one.label, ratio, None, "no difference shown", None, one.mixed)


def _tested(one: _Found, corrected: float, level: float) -> Match:
    ratio = estimate_ratio(one.above, one.below, 1 - level)
    change: Change = "no difference shown"
    if corrected < SIGNIFICANT:
        change = "faster" if ratio.value > 1 else "slower"
    detectable = detectable_effect(one.above, one.below, level)
    return Match(one.label, ratio, corrected, change, detectable, one.mixed)

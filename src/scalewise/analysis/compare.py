"""Two sweeps side by side under one declared factor: is B faster or slower than A, and by how much?

Configurations are matched by identity; what differs beside the declared factor refuses the match
(DESIGN, law 6). The gate for use in CI fails on what is shown, not on what is merely possible:
only when the whole interval lies beyond the limit, after Holm's correction for the number of
configurations compared.

Repeats of one configuration may be of several states: ``sweep.allow_mixed`` lets a resumed sweep
add results of other code or devices, and code is edited while a sweep runs. As in a report, such a
mixture equals only the same mixture; one in the declared factor itself is said aloud.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalewise.analysis.identity import FACTORS, Difference, differences, identity
from scalewise.analysis.load import Cell, Sweep
from scalewise.analysis.runs import Configuration, configurations
from scalewise.analysis.significance import holm, minimum_detectable_effect
from scalewise.analysis.statistics import RatioEstimate, estimate_ratio

Side = Literal["A", "B"]
Change = Literal["faster", "slower", "no difference shown"]
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Match:
    """The same configuration in both sweeps."""

    label: str
    ratio: RatioEstimate
    """Global samples/s of B over A."""
    p_value_holm: float | None
    """That the ratio is 1, adjusted for all matches; None with one run on a side."""
    change: Change
    detectable: float | None
    """The smallest ratio above 1 that these runs would show four times in five."""
    mixed: tuple[str, ...] = ()
    """Fields of the declared factor in which repeats of one side differ, in words."""


@dataclass(frozen=True)
class Unmatched:
    """A configuration of B with no counterpart in A."""

    label: str
    reason: str
    differing: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """A cell that ended but is not counted, for its records are damaged."""

    side: Side
    cell: str
    fault: str


@dataclass(frozen=True)
class Gate:
    """The answer for CI."""

    failed: bool
    reason: str


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


def compare(a: Sweep, b: Sweep, factor: str, fail_if: str | None = None) -> Comparison:
    """Compare sweep ``b`` with ``a``, which may differ in ``factor`` only.

    ``fail_if`` is a limit such as ``slower=3%``. Raises ValueError for a factor or a limit that
    does not exist.
    """
    if factor not in FACTORS:
        raise ValueError(f"factor: found {factor!r}; allowed: {', '.join(FACTORS)}")
    limit = parse_limit(fail_if) if fail_if is not None else None
    before = [c for c in map(_sound, configurations(a)) if c.values("samples_per_s")]
    matches: list[Match] = []
    unmatched: list[Unmatched] = []
    for config in map(_sound, configurations(b)):
        found = _match(config, before, factor)
        if isinstance(found, Match):
            matches.append(found)
        else:
            unmatched.append(found)
    judged = _adjusted(matches)
    gate = None if limit is None else _gate(judged, unmatched, limit)
    left_out = (*_left_out("A", a), *_left_out("B", b))
    return Comparison(factor, judged, tuple(unmatched), gate, left_out)


def parse_limit(text: str) -> float:
    """``slower=3%`` or ``slower=0.03`` to 0.03. Raises ValueError for anything else."""
    found = re.fullmatch(r"slower=([0-9]+(?:\.[0-9]+)?)(%?)", text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value < 1:
        raise ValueError(f"fail-if: found {text!r}; allowed: slower=<percent>%, e.g. slower=3%")
    return value


def _sound(config: Configuration) -> Configuration:
    """Without the runs whose step records are damaged: what is left of them proves nothing."""
    return replace(config, runs=tuple(r for r in config.runs if not r.cell.step_faults))


def _left_out(side: Side, sweep: Sweep) -> list[LeftOut]:
    found = [(cell, _fault(cell)) for cell in sweep.cells]
    return [LeftOut(side, cell.planned.name, fault) for cell, fault in found if fault]


def _fault(cell: Cell) -> str:
    """What is damaged of a result or of the times of a finished cell."""
    if cell.result is None:
        return cell.result_fault
    return "; ".join(cell.step_faults)


def _match(
    config: Configuration, before: Sequence[Configuration], factor: str
) -> Match | Unmatched:
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
    theirs = nearest.values("samples_per_s")
    ratio = estimate_ratio(values, theirs)
    cvs = [f.cv for c in (config, nearest) if (f := c.estimate("samples_per_s")) and f.cv]
    detectable = minimum_detectable_effect(max(cvs), *ratio.n) if cvs else None
    freed = FACTORS[factor]
    mixed = (*_mixtures("A", nearest, freed), *_mixtures("B", config, freed))
    return Match(config.label, ratio, None, "no difference shown", detectable, mixed)


def _mixtures(side: Side, config: Configuration, fields: Sequence[str]) -> list[str]:
    """Those of ``fields``, and of what lies below them, in which the runs differ, in words."""
    each = [identity([run.cell]) for run in config.runs]
    found = []
    for name in dict.fromkeys(name for one in each for name in one):
        values = sorted({one.get(name, "absent") for one in each})
        if len(values) > 1 and any(name == f or name.startswith(f"{f}.") for f in fields):
            # Commits and sums by their beginnings.
            told = " | ".join(v[:12] if name.startswith("code.") else v for v in values)
            found.append(f"the repeats in {side} are of several {name}: {told}{_leave(config)}")
    return found


def _leave(config: Configuration) -> str:
    sweeps = [(cell.config or {}).get("sweep") for cell in config.cells]
    allowed = any(isinstance(s, Mapping) and s.get("allow_mixed") is True for s in sweeps)
    return " (sweep.allow_mixed=true)" if allowed else ""


def _adjusted(matches: Sequence[Match]) -> tuple[Match, ...]:
    p_values = [m.ratio.p_value for m in matches]
    adjusted = iter(holm([p for p in p_values if p is not None]))
    judged = []
    for match, p in zip(matches, p_values, strict=True):
        corrected = None if p is None else next(adjusted)
        change: Change = "no difference shown"
        if corrected is not None and corrected < SIGNIFICANT:
            change = "faster" if match.ratio.value > 1 else "slower"
        judged.append(replace(match, p_value_holm=corrected, change=change))
    return tuple(judged)


def _gate(matches: Sequence[Match], unmatched: Sequence[Unmatched], limit: float) -> Gate:
    if not matches:
        why = unmatched[0].reason if unmatched else "B has no configuration"
        return Gate(True, f"nothing could be compared: {why}")
    slower = [
        m for m in matches
        if m.change == "slower" and m.ratio.interval and m.ratio.interval.high < 1 - limit
    ]  # fmt: skip
    if slower:
        worst = min(slower, key=lambda m: m.ratio.value)
        assert worst.ratio.interval is not None
        return Gate(
            True,
            f"{worst.label} is slower by {1 - worst.ratio.value:.1%} (95 % interval "
            f"{1 - worst.ratio.interval.high:.1%} to {1 - worst.ratio.interval.low:.1%}), beyond "
            f"the limit of {limit:.1%}{f'; {len(slower) - 1} more' if slower[1:] else ''}",
        )
    blind = [m for m in matches if m.ratio.interval is None or m.ratio.interval.low < 1 - limit]
    if blind:
        return Gate(
            False,
            f"no slowdown beyond {limit:.1%} shown, but for {', '.join(m.label for m in blind)} "
            "none is excluded either: add repeats",
        )
    return Gate(False, f"no configuration is slower by {limit:.1%} or more")

"""Two sweeps side by side under one declared factor: is B faster or slower than A, and by how much?

Configurations are matched by identity; what differs beside the declared factor refuses the match.
Two sweeps have no rounds in common, so their runs are two samples (Welch). Every decision and
interval is at Bonferroni's level for the number of configurations. Repeats that a report sets aside
are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from scalewise.analysis.comparability import FACTORS, Difference, differences, factor_fields, within
from scalewise.analysis.configuration import Configuration, configurations
from scalewise.analysis.figures import listed
from scalewise.analysis.losses import is_compared
from scalewise.analysis.model import CellRecords, Sweep
from scalewise.analysis.scaling import Refused
from scalewise.analysis.statistics import (
    VERDICT_RUNS,
    Estimate,
    RatioEstimate,
    bonferroni,
    estimate_difference,
    estimate_ratio,
)
from scalewise.host import plural
from scalewise.records import CellFolder

Change = Literal["faster", "slower", "no difference shown", "undecided"]
"""``undecided``: fewer runs than a verdict needs, whatever their interval says."""


@dataclass(frozen=True)
class Learned:
    """A metric that modules logged, its last or its best value, over the seeds of each side."""

    metric: str
    before: Estimate | None
    """Of A; None where no run of it has the metric."""
    after: Estimate | None
    difference: Estimate | None
    """B over A as a difference: seed by seed where the sides have seeds in common."""


@dataclass(frozen=True)
class Match:
    """The same configuration in both sweeps, but for the factor."""

    label: str
    """Of B; where A calls it otherwise, of both: ``large single x1 against medium single x1``."""
    ratio: RatioEstimate
    """Global samples/s of B over A. Its interval is at the level on which ``change`` was decided:
    of what is not undecided, it excludes 1 if and only if a change is shown."""
    change: Change
    changed: tuple[Difference, ...] = ()
    """Fields of the declared factor in which the sides differ."""
    links: tuple[str, str] | None = None
    """How the GPUs of A and of B are joined; None where one device, or nothing, is known."""
    learned: tuple[Learned, ...] = ()


_MOST_NAMED = 6


def replaced_runs(sweep: Sweep) -> list[str]:
    """A line on the runs whose finished results were set aside; none without any.

    The sweep moves such a run to ``earlier/<n>`` in the folder of its cell. Nobody can tell from
    the figures that are left whether the first ones were disturbed or merely unwelcome.
    """
    counts = {c.planned.name: CellFolder(c.path).replaced_results() for c in sweep.cells}
    names = [name if n == 1 else f"{name} ({n} times)" for name, n in counts.items() if n]
    said = "whose results were set aside (sweep.rerun, or a result that could not be read)"
    told = f"{len(names)} {plural(len(names), 'run')} {said}: {listed(names, _MOST_NAMED)}"
    return [f"{told}; they lie in earlier/ of their folders"] if names else []


@dataclass(frozen=True)
class LeftOut:
    """A cell that ended but is not counted, for its records are damaged or it is set aside."""

    side: str
    cell: str
    fault: str


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found."""

    factor: str
    """What may differ; several have commas between them, and nothing is the empty word."""
    matches: tuple[Match, ...]
    unmatched: tuple[Refused, ...]
    """Configurations of B with no counterpart in A."""
    left_out: tuple[LeftOut, ...] = ()
    """Cells of both sweeps that ended and whose figures are not in ``matches``."""
    replaced: tuple[tuple[str, str], ...] = ()
    """Of each side, what is to be known of runs whose earlier results were set aside."""
    chosen: bool = False
    """Whether ``factor`` is what was found to differ, and nobody's choice."""
    sides: tuple[str, str] = ("A", "B")


def compare(
    a: Sweep, b: Sweep, factor: str | None = None, sides: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Compare sweep ``b`` with ``a``, which may differ in ``factor`` only.

    Without ``factor`` it is what differs: the fewest factors with which most configurations of B
    have a counterpart in A. Raises ValueError for a factor that does not exist.
    """
    all_a, all_b = configurations(a), configurations(b)
    before = [c for c in map(_sound, all_a) if c.values("global_samples_per_s")]
    after, chosen = [*map(_sound, all_b)], factor is None
    if factor is None:
        factor = find_factors(before, [c for c in after if c.values("global_samples_per_s")])
    factor_fields(factor)
    paired: list[tuple[Configuration, Configuration]] = []
    unmatched: list[Refused] = []
    for config in after:
        found = _find_counterpart(config, before, factor, sides)
        if isinstance(found, Refused):
            unmatched.append(found)
        else:
            paired.append((found, config))
    judged = tuple(_judged(paired))
    left_out = (*_left_out(sides[0], a, all_a), *_left_out(sides[1], b, all_b))
    named = zip(sides, (a, b), strict=True)
    replaced = tuple((side, line) for side, sweep in named for line in replaced_runs(sweep))
    return Comparison(factor, judged, tuple(unmatched), left_out, replaced, chosen, sides)


_MOST_FACTORS = 4


def find_factors(before: Sequence[Configuration], after: Sequence[Configuration]) -> str:
    """The fewest factors that leave most of ``after`` with a counterpart in ``before``.

    With commas between them; empty where nothing has to be freed, or nothing helps. Of equally
    many the ones that free fewest fields.
    """
    each = [[differences(old.identity, new.identity, "") for old in before] for new in after]
    useful = [
        name
        for name, fields in FACTORS.items()
        if any(within(d.field, fields) for one in each for found in one for d in found)
    ]
    needs = [[_ways_out(old, new, useful) for old in before] for new in after]
    best, most = "", -1
    for count in range(min(_MOST_FACTORS, len(useful)) + 1):
        for names in sorted(
            combinations(useful, count), key=lambda names: len(factor_fields(",".join(names)))
        ):
            matched = sum(
                any(all(ways.intersection(names) for ways in pair) for pair in pairs)
                for pairs in needs
            )
            if matched > most:
                best, most = ",".join(names), matched
        if most == len(after):
            break
    return best


def _ways_out(old: Configuration, new: Configuration, names: Sequence[str]) -> set[frozenset[str]]:
    """Of each field that differs, the factors that excuse it: one of each is needed."""
    left = {
        name: {d.field for d in differences(old.identity, new.identity, name)}
        for name in ("", *names)
    }
    return {frozenset(name for name in names if field not in left[name]) for field in left[""]}


def _sound(config: Configuration) -> Configuration:
    """Without the runs whose step records are damaged: what is left of them proves nothing."""
    return replace(config, runs=tuple(r for r in config.runs if not r.cell.step_faults))


def _left_out(side: str, sweep: Sweep, configs: Sequence[Configuration]) -> list[LeftOut]:
    disturbed = "it shared its host, and the report of its sweep says with whom"
    aside = {
        one.cell.planned.name: disturbed if one.is_disturbed else f"it {one.reason}"
        for config in configs
        for one in config.set_aside
    }
    found = [(c.planned.name, _fault(c) or aside.get(c.planned.name)) for c in sweep.cells]
    return [LeftOut(side, name, why) for name, why in found if why]


def _fault(cell: CellRecords) -> str:
    """What is damaged of a result or of the times of a finished cell."""
    return cell.result_fault if cell.result is None else "; ".join(cell.step_faults)


def _find_counterpart(
    config: Configuration, before: Sequence[Configuration], factor: str, sides: tuple[str, str]
) -> Configuration | Refused:
    a, b = sides
    if not config.values("global_samples_per_s"):
        if config.uncounted:
            return Refused(config, f"no samples/s in {b}: {config.uncounted}")
        last = config.cells[-1]
        why = last.ending.message or _fault(last) or "its throughput was not measured"
        return Refused(config, f"no run in {b}: {why}")
    if not before:
        return Refused(config, f"no configuration of {a} has a run")
    # Of several that a factor makes equal, the one that has least of that factor's differences.
    nearest = min(
        before,
        key=lambda c: [len(differences(c.identity, config.identity, f)) for f in (factor, "")],
    )
    found = differences(nearest.identity, config.identity, factor)
    # What no factor frees stands first: nothing that one types helps there.
    found.sort(key=lambda d: any(within(d.field, f) for f in FACTORS.values()))
    if found:
        return Refused.differs(config, f"the nearest in {a}", found)
    for side, one in ((a, nearest), (b, config)):
        if invalid := one.invalid:
            return Refused(config, f"in {side}, {invalid[0].text}")
    return nearest


def find_link(config: Configuration) -> str:
    """``NVLink (NV18)``; empty for one device, and where nobody recorded how they are joined."""
    kinds: dict[str, None] = {}
    off = False
    for run in config.runs:
        known = run.cell.provenance
        if known is None or run.world_size < 2:
            continue
        off |= bool(known.emulated)
        used = {str(rank.device.index) for rank in run.ranks}
        for pair, kind in known.topology.items():
            if set(pair.split("-")) <= used:
                kinds[kind] = None
    names = [f"{'NVLink' if kind.startswith('NV') else 'PCIe'} ({kind})" for kind in kinds]
    return " and ".join(names) + (" with peer-to-peer off, an emulated PCIe" if off else "")


def _judged(paired: Sequence[tuple[Configuration, Configuration]]) -> Iterator[Match]:
    """Fewer than three runs on a side have a ratio and its interval, and no verdict."""
    rates = [[c.values("global_samples_per_s") for c in pair] for pair in paired]
    enough = [min(map(len, each)) >= VERDICT_RUNS for each in rates]
    level = bonferroni(sum(enough))
    for (old, new), (below, above), judged in zip(paired, rates, enough, strict=True):
        ratio = estimate_ratio(above, below, level)
        change: Change = "no difference shown" if judged else "undecided"
        if judged and ratio.interval and not ratio.interval.low <= 1 <= ratio.interval.high:
            change = "faster" if ratio.value > 1 else "slower"
        changed = tuple(differences(old.identity, new.identity, ""))
        links = find_link(old), find_link(new)
        known = links if all(links) else None
        label = new.label if new.label == old.label else f"{new.label} against {old.label}"
        yield Match(label, ratio, change, changed, known, tuple(_learned(old, new)))


def _learned(old: Configuration, new: Configuration) -> Iterator[Learned]:
    for key in filter(is_compared, dict.fromkeys((*old.logged, *new.logged))):
        before, after = old.estimate(key), new.estimate(key)
        both = before and after and estimate_difference(new.rounds(key), old.rounds(key))
        yield Learned(key, before, after, both)

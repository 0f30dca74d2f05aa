"""Classes and data files of the user's own, and repeats that were not made of the same ones.

A configuration names a class or a file, and its id stays the same whatever is written there while
a sweep runs. Results of two states of it are of two programs, or of two sets of data: their mean
would be of neither. So the repeats of one state are compared, and the others are set aside.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from scalewise.analysis.cells import Cell
from scalewise.analysis.parted import ENOUGH_RUNS, Aside, Parted

_VERBS = {"code": "ran", "data": "read"}
_REMEDY = "with these files left as they are"


class Source(NamedTuple):
    """A class or a data file that a configuration names."""

    kind: Literal["code", "data"]
    name: str
    """``your mine.Net``, or ``dataset.path=x.csv``."""


State = Mapping[Source, str]
"""What each source was, by size and sum; of what nobody recorded nothing is said."""


def part(groups: Mapping[str, Sequence[Cell]]) -> dict[str, Parted]:
    """The finished cells of every configuration, by its id, those of another state told apart.

    Configurations that are made of the same sources keep repeats of one state: of which most of
    the configurations have enough, then that of most runs, then the latest. Where the user wants
    them mixed (``sweep.allow_mixed``) all are kept, and doubted: :func:`mixed_sources`.
    """
    done = {key: [c for c in cells if c.result is not None] for key, cells in groups.items()}
    found = {key: Parted(tuple(cells), {}) for key, cells in done.items()}
    mixed = {key for key, cells in done.items() if _changed(cells) and not mixing_allowed(cells)}
    for keys in _of_same_sources(done) if mixed else ():
        if not mixed.isdisjoint(keys):
            ranked = _ranked([done[key] for key in keys])
            found |= {key: _parted(done[key], ranked) for key in mixed.intersection(keys)}
    return found


def changed_sources(cells: Iterable[Cell]) -> list[str]:
    """A line for each source that was not the same for all finished ``cells`` that name it."""
    changed = _changed(cell for cell in cells if cell.result is not None)
    return [
        f"{source.name} changed between cells ({', '.join(states)}): their results are of "
        f"different {source.kind}"
        for source, states in changed.items()
    ]


def mixed_sources(cells: Iterable[Cell]) -> list[str]:
    """A line for each source of which the ``cells`` that are compared saw several states."""
    return [
        f"its runs {_VERBS[source.kind]} different {source.kind}: {source.name} was "
        f"{' and '.join(states)}"
        for source, states in _changed(cells).items()
    ]


def mixing_allowed(cells: Iterable[Cell]) -> bool:
    """Whether any of these cells was started with ``sweep.allow_mixed``."""
    sweeps = [(cell.config or {}).get("sweep") for cell in cells]
    return any(isinstance(s, Mapping) and s.get("allow_mixed") is True for s in sweeps)


def _state(cell: Cell) -> State:
    if cell.provenance is None:
        return {}
    dataset = (cell.config or {}).get("dataset")
    arguments = dataset if isinstance(dataset, Mapping) else {}
    data = {
        # However it is spelt: one file.
        Source("data", f"dataset.{name}={os.path.normpath(str(arguments.get(name)))}"): told
        for name, told in cell.provenance.data.items()
    }
    own = cell.provenance.own_code.items()
    return {**data, **{Source("code", f"your {target}"): told for target, told in own}}


def _changed(cells: Iterable[Cell]) -> dict[Source, list[str]]:
    """Each source with several states, to those, sorted."""
    seen: dict[Source, set[str]] = {}
    for cell in cells:
        for source, told in _state(cell).items():
            seen.setdefault(source, set()).add(told)
    return {source: sorted(states) for source, states in seen.items() if len(states) > 1}


def _of_same_sources(done: Mapping[str, Sequence[Cell]]) -> Iterable[list[str]]:
    """Ids of configurations that name the same classes and files."""
    groups: dict[frozenset[Source], list[str]] = {}
    for key, cells in done.items():
        groups.setdefault(frozenset(s for c in cells for s in _state(c)), []).append(key)
    return groups.values()


def _ranked(groups: Sequence[Sequence[Cell]]) -> list[State]:
    """The states of these configurations, the one to compare first."""
    states: list[State] = []
    for cell in (cell for cells in groups for cell in cells):
        if _state(cell) not in states:
            states.append(_state(cell))
    # What tells least fits with everything.
    most = max(map(len, states))

    def rank(state: State) -> tuple[int, int, float]:
        fitting = [[c for c in cells if _fits(c, state)] for cells in groups]
        sizes = zip(fitting, groups, strict=True)
        enough = sum(len(fit) >= min(ENOUGH_RUNS, len(cells)) for fit, cells in sizes)
        ended = [c.result.finished_at for cells in fitting for c in cells if c.result]
        return enough, len(ended), max(ended)

    return sorted((s for s in states if len(s) == most), key=rank, reverse=True)


def _parted(cells: Sequence[Cell], ranked: Sequence[State]) -> Parted:
    """The repeats of the first state of which enough are there."""
    found = [(state, tuple(c for c in cells if _fits(c, state))) for state in ranked]
    enough = min(ENOUGH_RUNS, max(len(kept) for _, kept in found))
    state, kept = next((state, kept) for state, kept in found if len(kept) >= enough)
    others = [c for c in cells if not _fits(c, state)]
    return Parted(kept, {c.planned.name: Aside(_reason(c, state), _REMEDY) for c in others})


def _fits(cell: Cell, state: State) -> bool:
    return all(state.get(source, told) == told for source, told in _state(cell).items())


def _reason(cell: Cell, kept: State) -> str:
    other = {s: told for s, told in _state(cell).items() if kept.get(s, told) != told}
    kinds = [f"{_VERBS[kind]} other {kind}" for kind in dict.fromkeys(s.kind for s in other)]
    each = "; ".join(f"{s.name} was {told}, not {kept[s]}" for s, told in other.items())
    return f"{' and '.join(kinds)} than the repeats that are compared: {each}"

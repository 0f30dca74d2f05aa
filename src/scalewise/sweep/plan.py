"""From overrides to cells: stable ids, readable names, and an order that treats all alike."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalewise.config import (
    FEWEST_ADAPTIVE_REPEATS,
    CellConfig,
    ConfigError,
    build_cell,
    config_id,
    keep_own_arguments,
    repeat_id,
    without_absent_groups,
)
from scalewise.errors import escaped
from scalewise.policies import MAX_CELLS, too_many_cells
from scalewise.records import PlannedCell
from scalewise.sweep.component_checks import check_components, check_fit, check_samples
from scalewise.sweep.extras import examination


@dataclass(frozen=True)
class Request:
    """One configuration as Hydra composed it."""

    overrides: tuple[str, ...]
    plain: dict[str, Any]
    """Resolved, without ``hydra``."""
    cell: CellConfig

    @functools.cached_property
    def config_id(self) -> str:
        """:func:`scalewise.config.config_id` of ``plain``."""
        return config_id(self.plain)


@dataclass(frozen=True)
class Cell:
    """One run of one configuration."""

    planned: PlannedCell
    request: Request


def request(
    overrides: Iterable[str], plain: dict[str, Any], written: Sequence[str] = ()
) -> Request:
    """Check a composed configuration. Raises :class:`ConfigError`.

    ``written`` are the keys that its experiment file sets: see :func:`keep_own_arguments`.
    """
    typed = tuple(overrides)
    whole = keep_own_arguments(plain, typed, written)
    cell = build_cell(whole)  # what leaves no trace is wrong all the same if it is typed wrong
    plain = without_absent_groups(whole)
    if not cell.is_timed:
        # Repeats are samples of a time, and here none is taken.
        plain = {**plain, "repeats": 1}
        cell = replace(cell, repeats=1)
    check_components(cell)
    check_fit(plain)
    check_samples(cell)
    return Request(typed, plain, cell)


def plan(
    requests: Sequence[Request],
    order_seed: int,
    earlier: Mapping[str, int] | None = None,
) -> list[Cell]:
    """Every repeat of every distinct configuration, in the order in which they are to run.

    ``earlier`` is the number of repeats a resumed folder has planned already, by ``config_id``:
    none of them is forgotten, and ``sweep.extend`` counts from there.

    Repeats are interleaved in rounds, each round in a random order of its own (randomised
    blocks), so that a drift of the host meets all configurations alike. An examination of the
    devices (``sweep.doctor``) comes before all of them, and then the searches for batch sizes.

    Raises :class:`ConfigError` for more cells than ``sweep.max_cells``, before any is made.
    """
    doctor = examination(requests, request)
    first = [] if doctor is None else [make_cell(doctor, 0)]
    distinct: dict[str, Request] = {}
    for one in requests:
        known = distinct.setdefault(one.config_id, one)
        if first_repeats(one.cell) > first_repeats(known.cell):
            distinct[one.config_id] = one
    repeats = {i: _repeats(one, (earlier or {}).get(i, 0)) for i, one in distinct.items()}
    most = max((one.cell.sweep.max_cells for one in requests), default=MAX_CELLS)
    if sum(repeats.values()) > most:
        each = f"{len(repeats):,} configurations, up to {max(repeats.values()):,} repeats of each"
        raise ConfigError(too_many_cells(f"{sum(repeats.values()):,}", most, each))
    rounds: dict[int, list[Cell]] = {}
    for identity, one in distinct.items():
        for repeat in range(repeats[identity]):
            cell = make_cell(one, repeat)
            (first if one.cell.workload == "find_batch" else rounds.setdefault(repeat, [])).append(
                cell
            )
    return first + in_rounds(rounds, order_seed)


def _repeats(one: Request, planned: int) -> int:
    """Of a configuration of which ``planned`` repeats are in the folder already."""
    wanted = max(first_repeats(one.cell), planned)
    return max(wanted, planned + one.cell.sweep.extend) if planned else wanted


def folded(requests: Sequence[Request]) -> str | None:
    """A line about requests that ask for the same configuration, which runs once; None if none do.

    A value that is given twice (``seed=1,1``) is meant otherwise, more often than not.
    """
    first: dict[str, Request] = {}
    twice = [one for one in requests if first.setdefault(one.config_id, one) is not one]
    if not twice:
        return None
    shared = set.intersection(*(set(one.overrides) for one in requests))
    own = " ".join(word for word in twice[0].overrides if word not in shared)
    return (
        f"folded: {len(twice)} of {len(requests)} configurations are the same as another that is "
        f"asked for{own and f' ({own})'} and run with it; to run one more than once, set repeats=N"
    )


def given_twice(typed: Sequence[str]) -> list[str]:
    """A line for each key that was typed with several values apart (``seed=1,2 seed=3``).

    Hydra takes the last of them, so that scripts can add to what they were given.
    """
    given: dict[str, list[str]] = {}
    for override in typed:
        if not override.startswith("~"):
            given.setdefault(override.partition("=")[0].lstrip("+"), []).append(override)
    lines = []
    for key, words in given.items():
        lost = [word for word in words if word != words[-1]]
        if lost:
            found = f"{key}: given {len(words)} times; {words[-1]} counts, not {' '.join(lost)}"
            lines.append(escaped(found))
    return lines


def first_repeats(cell: CellConfig) -> int:
    """Repeats that run before anything is looked at."""
    return FEWEST_ADAPTIVE_REPEATS if cell.repeats == "auto" else cell.repeats


def in_rounds(rounds: Mapping[int, Sequence[Cell]], order_seed: int) -> list[Cell]:
    """Round by round, each in a random order of its own."""
    shuffler = random.Random(order_seed)
    ordered: list[Cell] = []
    for repeat in sorted(rounds):
        # Sorted first, so that the order depends on the seed and not on how it was typed.
        block = sorted(rounds[repeat], key=lambda c: c.planned.cell_id)
        shuffler.shuffle(block)
        ordered += block
    return ordered


def make_cell(one: Request, repeat: int) -> Cell:
    """One run of a configuration: its id and the name of its folder."""
    identity = repeat_id(one.config_id, repeat)
    devices = one.cell.strategy.devices
    trains = one.cell.workload == "train"
    parts = [
        *(() if trains else (one.cell.workload,)),
        *(() if one.cell.workload == "doctor" else (one.cell.model.name, one.cell.dataset.name)),
        one.cell.strategy.name + ("" if devices in ("auto", 1) else str(devices)),
        f"r{repeat}",
        identity[:8],
    ]
    name = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", part) for part in parts)
    return Cell(
        PlannedCell(
            cell_id=identity,
            config_id=one.config_id,
            name=name,
            overrides=one.overrides,
            repeat=repeat,
            devices=None if devices == "auto" else devices,
        ),
        one,
    )

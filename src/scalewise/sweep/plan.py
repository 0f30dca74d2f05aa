"""From overrides to cells: stable ids, readable names, and an order that treats all alike."""

from __future__ import annotations

import functools
import random
import re
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalewise.config import (
    DEFAULT_BUDGET_MIN,
    FEWEST_ADAPTIVE_REPEATS,
    MAX_CELLS,
    NAMES_A_SCRIPT,
    TOO_MANY_CELLS,
    CellConfig,
    Component,
    ConfigError,
    as_typed,
    build_cell,
    check_samples,
    choose_end,
    config_id,
    devices_as_typed,
    instantiate,
    is_shipped,
    keep_own_arguments,
    key_of,
    place_on_devices,
    refuse_unseen,
    rehearsed,
    repeat_id,
    without_absent_groups,
)
from scalewise.host import seal
from scalewise.records import PlannedCell, SweepFolder, SweepPlan, redacted_words
from scalewise.train import import_for_building


def check_components(cell: CellConfig) -> None:
    """Build what costs nothing to build, so that wrong arguments are found before any start.

    Our models are built without memory (on torch's ``meta`` device), our datasets read nothing
    before they are asked for samples, and an optimizer is content with one parameter. A user's
    own classes are looked at elsewhere, and our own options are known to build. Raises
    :class:`ConfigError`.
    """
    for key, component in cell.components.items():
        known = f"{key} {component!r}"
        ours = component.target.startswith("scalewise.")
        if ours and known not in _sound and not is_shipped(key, component):
            _check_component(key, component)
        _sound.add(known)


_sound: set[str] = set()
"""Components that were checked once: thousands of cells share a few."""


def _check_component(key: str, component: Component) -> None:
    import_for_building()
    import torch

    given: dict[str, Any] = {}
    if key == "optimizer":
        given = {"params": [("weight", torch.nn.Parameter(torch.zeros(2, 2)))]}
    with torch.device("meta" if key == "model" else "cpu"):
        instantiate(key, component, **given)


def check_fit(plain: dict[str, Any]) -> None:
    """Refuse a model and a dataset that say they do not fit. Raises :class:`ConfigError`."""
    takes = plain["model"].get("takes")
    gives = plain["dataset"].get("gives")
    if takes is not None and gives is not None and takes != gives:
        raise ConfigError(
            f"dataset: found {plain['dataset'].get('name')!r}, which gives {gives}; model "
            f"{plain['model'].get('name')!r} takes {takes}: choose a dataset that gives {takes}"
        )


def wrapped(plain: Mapping[str, Any], wrap: str | None) -> dict[str, Any]:
    """``plain`` with ``hydra.launcher.wrap`` in it: the cell's own processes read it there."""
    return {**plain, "sweep": {**plain.get("sweep", {}), "wrap": wrap}} if wrap else {**plain}


@dataclass(frozen=True)
class Request:
    """One configuration as Hydra composed it."""

    overrides: tuple[str, ...]
    plain: dict[str, Any]
    """Resolved, without ``hydra``."""
    written: tuple[str, ...] = ()
    """Keys that its experiment file sets, of those that :func:`written_keys` looks for."""

    @functools.cached_property
    def cell(self) -> CellConfig:
        """``plain``, typed. Raises :class:`ConfigError`."""
        return build_cell(self.plain)

    @functools.cached_property
    def config_id(self) -> str:
        return config_id(self.plain)

    @functools.cached_property
    def workload_id(self) -> str:
        """The same without the strategy: a pair, several devices and one, shares it."""
        return config_id({k: v for k, v in self.plain.items() if k != "strategy"})


@dataclass(frozen=True)
class Cell:
    planned: PlannedCell
    request: Request


def request(
    overrides: Iterable[str], plain: dict[str, Any], written: Sequence[str] = ()
) -> Request:
    """Check a composed configuration. Raises :class:`ConfigError`.

    ``written`` are the keys that its experiment file sets: see :func:`keep_own_arguments` and
    :func:`choose_end`.
    """
    typed = tuple(as_typed(tuple(overrides)))
    own = keep_own_arguments(plain, typed, written)
    whole = choose_end(place_on_devices(own, typed), typed, written)
    try:
        cell = build_cell(whole)  # what leaves no trace is wrong all the same if it is typed wrong
    except ConfigError as error:
        raise ConfigError(devices_as_typed(str(error), typed)) from error
    if cell.script is not None:
        known = _planned_words(cell.sweep.resume)  # an earlier version refused none
        refuse_unseen([w for w in typed if w not in known and key_of(w) not in NAMES_A_SCRIPT])
    # Of kept sweeps they are read; whoever asks for them anew would get something else.
    for key in sorted(whole["strategy"].keys() & getattr(cell.strategy, "GONE", frozenset())):
        raise ConfigError(f"strategy.{key}: unknown key; allowed: without it (CHANGELOG.md, Gone)")
    plain = without_absent_groups(whole)
    if cell.profile.profiles:
        # Repeats are samples of a time, and here none is taken.
        plain = {**plain, "repeats": 1}
    check_components(cell)
    check_fit(plain)
    check_samples(cell)
    return Request(typed, plain, tuple(written))


@functools.cache
def _planned_words(folder: str | None) -> frozenset[str]:
    if folder is None or not (sweep := SweepFolder(folder)).plan_path.exists():
        return frozenset()
    return frozenset(word for one in sweep.load_plan().cells for word in one.overrides)


def settle_repeats(requests: Sequence[Request]) -> list[Request]:
    """``repeats=auto`` within a budget for those that left it out and are compared by time.

    Numbers of devices that train the same are compared. Runs whose length was asked for are
    somebody's training and run once.
    """
    devices: dict[str, set[int | str]] = {}
    for one in requests:
        cell, rehearsal = one.cell, rehearsed(one.cell)
        if cell.repeats is None and not cell.is_counted:
            number = rehearsal.ranks if rehearsal else cell.strategy.devices
            devices.setdefault(one.workload_id, set()).add(number)
    return [
        _until_decided(one) if len(devices.get(one.workload_id, ())) > 1 else one
        for one in requests
    ]


def run_once(one: Request) -> Request:
    return one if one.cell.repeats else Request(one.overrides, {**one.plain, "repeats": 1})


def _until_decided(one: Request) -> Request:
    sweep = {**one.plain["sweep"], "budget_min": one.cell.sweep.budget_min or DEFAULT_BUDGET_MIN}
    return Request(one.overrides, {**one.plain, "repeats": "auto", "sweep": sweep})


def plan(
    requests: Sequence[Request],
    order_seed: int,
    earlier: Mapping[str, Collection[int]] | None = None,
) -> list[Cell]:
    """Every repeat of every distinct configuration, in the order in which they are to run.

    ``earlier`` are the repeats that a resumed folder has planned already, by ``config_id``: none
    of them is forgotten, and ``sweep.extend`` counts from there.

    Repeats are interleaved in rounds (:func:`in_order`), so that a drift of the host meets all
    configurations alike.

    Raises :class:`ConfigError` for more cells than :data:`MAX_CELLS`, before any is made.
    """
    requests = settle_repeats(requests)
    distinct: dict[str, Request] = {}
    for one in requests:
        known = distinct.setdefault(one.config_id, one)
        if first_repeats(one.cell) > first_repeats(known.cell):
            distinct[one.config_id] = one
    repeats: dict[str, list[Sequence[int]]] = {}
    for identity, one in distinct.items():
        wanted, planned = first_repeats(one.cell), (earlier or {}).get(identity, ())
        kept = sorted(repeat for repeat in planned if repeat >= wanted)
        after = max(planned, default=wanted) + 1
        more = range(max(after, wanted), after + one.cell.sweep.extend) if planned else ()
        repeats[identity] = [range(wanted), kept, more]
    counts = [sum(map(len, parts)) for parts in repeats.values()]
    if sum(counts) > MAX_CELLS:
        raise ConfigError(TOO_MANY_CELLS.format(f"{sum(counts):,}"))
    cells = [
        make_cell(distinct[identity], repeat)
        for identity, parts in repeats.items()
        for part in parts
        for repeat in part
    ]
    return in_order(cells, order_seed)


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


def first_repeats(cell: CellConfig) -> int:
    """Repeats that run before anything is looked at."""
    return FEWEST_ADAPTIVE_REPEATS if cell.repeats == "auto" else cell.repeats or 1


def in_order(cells: Iterable[Cell], order_seed: int) -> list[Cell]:
    """Round by round, each in a random order of its own.

    A round is a block in time: repeat k of every configuration. Ratios are taken within it, so
    what is compared, the cells of one workload, follow one another there.
    """
    ordered: list[Cell] = []
    rounds: dict[int, dict[str, list[Cell]]] = {}
    for cell in cells:
        workloads = rounds.setdefault(cell.planned.repeat, {})
        workloads.setdefault(cell.request.workload_id, []).append(cell)
    for repeat, workloads in sorted(rounds.items()):
        # Of its own seed, so that a round has the same order whatever runs before it. Sorted
        # first, so that the order depends on the seed and not on how it was typed.
        shuffler = random.Random(f"{order_seed}/{repeat}")
        blocks = [sorted(workloads[i], key=lambda c: c.planned.cell_id) for i in sorted(workloads)]
        shuffler.shuffle(blocks)
        for block in blocks:
            shuffler.shuffle(block)
            ordered += block
    return ordered


def make_cell(one: Request, repeat: int) -> Cell:
    """One run of a configuration: its id and the name of its folder."""
    identity = repeat_id(one.config_id, repeat)
    devices = one.cell.strategy.devices
    parts = [
        one.cell.model.name,
        one.cell.dataset.name,
        one.cell.strategy.name + ("" if devices in ("auto", 1) else str(devices)),
        f"r{repeat}",
        identity[:8],
    ]
    return Cell(
        PlannedCell(
            cell_id=identity,
            config_id=one.config_id,
            name="-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", part) for part in parts),
            overrides=redacted_words(one.overrides),
            repeat=repeat,
            devices=None if devices == "auto" else devices,
        ),
        one,
    )


def add_to_plan(folder: SweepFolder, cells: Sequence[Cell], policy: str, slots: int | None) -> None:
    """Add the cells to the folder's plan; those it already has keep their place.

    ``slots`` are the devices of the host that runs them; None where that is not one host.
    """
    planned = {c.planned.cell_id: c.planned for c in cells}
    earlier = folder.load_plan() if folder.plan_path.exists() else None
    before = earlier.cells if earlier is not None else ()
    known = {p.cell_id for p in before}
    new = tuple(p for i, p in planned.items() if i not in known)
    seed = cells[0].request.cell.sweep.order_seed if cells else 0
    created_at = time.time() if earlier is None else earlier.created_at
    if slots is None and earlier is not None:
        slots = earlier.slots
    command = redacted_words(as_typed(sys.argv))
    mark = seal(str(folder.path.resolve()), *command)
    folder.save_plan(SweepPlan(created_at, command, seed, (*before, *new), policy, slots, mark))

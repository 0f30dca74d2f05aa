"""From overrides to cells: stable ids, readable names, and an order that treats all alike."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalewise.config import (
    FEWEST_ADAPTIVE_REPEATS,
    CellConfig,
    ConfigError,
    build_cell,
    cell_id,
    check_module,
    config_id,
    instantiate,
    keep_own_arguments,
    without_absent_fault,
)
from scalewise.records import PlannedCell


@dataclass(frozen=True)
class Request:
    """One configuration as Hydra composed it."""

    overrides: tuple[str, ...]
    plain: dict[str, Any]
    """Resolved, without ``hydra``."""
    cell: CellConfig


@dataclass(frozen=True)
class Cell:
    """One run of one configuration."""

    planned: PlannedCell
    request: Request


def request(overrides: Iterable[str], plain: dict[str, Any]) -> Request:
    """Check a composed configuration. Raises :class:`ConfigError`."""
    typed = tuple(overrides)
    plain = without_absent_fault(keep_own_arguments(plain, typed))
    cell = build_cell(plain)
    check_components(cell)
    check_fit(plain)
    return Request(typed, plain, cell)


def check_components(cell: CellConfig) -> None:
    """Build what costs nothing to build, so that wrong arguments are found before any start.

    Our models are built without memory (on torch's ``meta`` device), our datasets read nothing
    before they are asked for samples, and an optimizer is content with one parameter. A user's
    own classes are only looked for. Raises :class:`ConfigError`.
    """
    import torch

    given: dict[str, dict[str, Any]] = {
        "model": {},
        "dataset": {},
        "optimizer": {
            "params": [("weight", torch.nn.Parameter(torch.zeros(2, 2)))],
            "device_kind": "cpu",
        },
    }
    for key, arguments in given.items():
        component = getattr(cell, key)
        if not component.target.startswith("scalewise."):
            check_module(key, component)
            continue
        with torch.device("meta" if key == "model" else "cpu"):
            instantiate(key, component, **arguments)


def check_fit(plain: dict[str, Any]) -> None:
    """Refuse a model and a dataset that say they do not fit. Raises :class:`ConfigError`."""
    takes = plain["model"].get("takes")
    gives = plain["dataset"].get("gives")
    if takes is not None and gives is not None and takes != gives:
        raise ConfigError(
            f"dataset: found {plain['dataset'].get('name')!r}, which gives {gives}; model "
            f"{plain['model'].get('name')!r} takes {takes}: choose a dataset that gives {takes}"
        )


def plan(requests: Sequence[Request], order_seed: int) -> list[Cell]:
    """Every repeat of every distinct configuration, in the order in which they are to run.

    Repeats are interleaved in rounds, each round in a random order of its own (randomised
    blocks), so that a drift of the host meets all configurations alike.
    """
    distinct: dict[str, Request] = {}
    for one in requests:
        known = distinct.setdefault(config_id(one.plain), one)
        if first_repeats(one.cell) > first_repeats(known.cell):
            distinct[config_id(one.plain)] = one
    rounds: dict[int, list[Cell]] = {}
    for one in distinct.values():
        for repeat in range(first_repeats(one.cell)):
            rounds.setdefault(repeat, []).append(make_cell(one, repeat))
    return in_rounds(rounds, order_seed)


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
    identity = cell_id(one.plain, repeat)
    devices = one.cell.strategy.devices
    parts = [
        one.cell.model.name,
        one.cell.dataset.name,
        one.cell.strategy.name + ("" if devices in ("auto", 1) else str(devices)),
        f"r{repeat}",
        identity[:8],
    ]
    name = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", part) for part in parts)
    return Cell(
        PlannedCell(
            cell_id=identity,
            config_id=config_id(one.plain),
            name=name,
            overrides=one.overrides,
            repeat=repeat,
            devices=None if devices == "auto" else devices,
        ),
        one,
    )

"""Decides what a sweep leaves to measurement: strategy and number of repeats.

The first stage runs short probes of each strategy; the second trains what they speak for.
Everything is decided from records, so that a resumed sweep decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalewise.config import (
    FEWEST_ADAPTIVE_REPEATS,
    REHEARSALS,
    AutoConfig,
    ConfigError,
    HardwareConfig,
    as_rehearsal,
)
from scalewise.records import UNFINISHED, StrategyDecision, SweepFolder
from scalewise.sweep.plan import Cell, Request, in_order, make_cell

if TYPE_CHECKING:
    from scalewise.analysis import Repeats


def undecided_requests(requests: Iterable[Request]) -> tuple[Request, ...]:
    found = [r for r in requests if isinstance(r.cell.strategy, AutoConfig)]
    return tuple({one.config_id: one for one in found}.values())


def settle_alone(
    requests: Iterable[Request], devices_of: Callable[[HardwareConfig], int | None]
) -> tuple[list[Request], list[str]]:
    """Put ``single`` in place of ``strategy=auto`` where there is one device: nothing to choose.

    ``devices_of`` counts the devices of a profile; None where nobody knows. Returns the requests,
    and a line where that was done. A number of devices that was typed stays, to be refused.
    """
    settled, said = [], dict[str, None]()
    for one in requests:
        strategy = one.cell.strategy
        if isinstance(strategy, AutoConfig) and strategy.devices == "auto":
            alone = [own for own in strategy.plain().values() if own.get("kind") == "single"]
            if alone and devices_of(one.cell.hardware) == 1:
                typed = (*one.overrides, "strategy=single")
                one = Request(typed, {**one.plain, "strategy": alone[0]})
                line = "strategy=auto: this host has one device, so strategy=single is trained"
                said[line] = None
        settled.append(one)
    return settled, list(said)


def rehearse_absent(
    requests: Iterable[Request],
    devices_of: Callable[[HardwareConfig], int | None],
    models_of: Callable[[HardwareConfig], str],
) -> tuple[list[Request], list[Request], list[str]]:
    """The requests, those rehearsed that ask for ``rehearse`` and for more devices than there are.

    Returns them, with ``rehearse.all`` rehearsals of what fits too, and a line for each link.
    Raises :class:`ConfigError` for what cannot be rehearsed.
    """
    settled, beside, lines = [], list[Request](), dict[str, None]()
    for one in requests:
        asked = one.cell.rehearse
        plain = {key: value for key, value in one.plain.items() if key != "rehearse"}
        real = Request(one.overrides, plain)
        strategy, available = one.cell.strategy, devices_of(one.cell.hardware)
        if not asked.on or strategy.kind == "single":
            settled.append(real)
            continue
        if available is None:
            raise ConfigError(
                f"rehearse: found {asked.name} on hosts that are not known yet, or without devices "
                "that fit; allowed: hydra/launcher=local, or rehearse=none"
            )
        if strategy.kind in REHEARSALS and strategy.devices == "auto" and available < 2:
            raise ConfigError(
                f"rehearse: found {asked.name} with strategy.devices=auto on {available} device; "
                "allowed: a number to rehearse (strategy.devices=8)"
            )
        devices = available if strategy.devices == "auto" else strategy.devices
        fits = devices <= available
        if devices < 2 or (fits and not asked.all):
            settled.append(real)
            continue
        if strategy.kind not in REHEARSALS:
            raise ConfigError(
                f"rehearse: found {asked.name} with strategy={strategy.name} on {devices} devices; "
                f"allowed: strategy=ddp or fsdp, or at most {available} devices"
            )
        key = "--link " if one.cell.script else "rehearse="
        link = asked.link(models_of(one.cell.hardware), key)
        lines[
            f"rehearse: one rank of N on this host, the others emulated over {link.name} "
            f"({link.source})"
        ] = None
        rehearsal = Request(one.overrides, as_rehearsal(plain, devices, link))
        settled.append(real if fits else rehearsal)
        beside += [rehearsal] if fits else []
    option = "--set " if any(one.cell.script for one in settled) else ""
    none = f"all of it fits this host ({option}rehearse.all=true: that too)"
    if all(one.cell.strategy.devices == 1 for one in settled):
        none = "one device has no others to emulate"
    return settled, beside, list(lines) or [f"rehearse: nothing, as {none}"]


def first_stage(requests: Iterable[Request]) -> Iterator[Request]:
    """Every request, or in its place what decides it: a short run of each candidate strategy."""
    for one in requests:
        yield from _probes(one).values() if isinstance(one.cell.strategy, AutoConfig) else [one]


def describe_later(requests: Sequence[Request]) -> list[str]:
    return [
        f"the better of {' and '.join(one.cell.strategy.candidates)}, model={one.cell.model.name}"
        for one in undecided_requests(requests)
        if isinstance(one.cell.strategy, AutoConfig)
    ]


def choose(folder: SweepFolder, asked: Request) -> tuple[Request, StrategyDecision]:
    """The request with the strategy that the records of its short runs speak for, and why.

    Raises :class:`~scalewise.analysis.UndecidedError`.
    """
    from scalewise.analysis import choose_strategy, configurations, load_sweep

    strategy = asked.cell.strategy
    assert isinstance(strategy, AutoConfig)
    found = configurations(load_sweep(folder.path))
    known = {cell.planned.config_id: one for one in found for cell in one.cells}
    probes = {name: one.config_id for name, one in _probes(asked).items()}
    candidates = {name: known[identity] for name, identity in probes.items() if identity in known}
    batch = asked.cell.batch_of(max((c.devices or 1 for c in candidates.values()), default=1))
    decision = choose_strategy(
        candidates, strategy.probe_steps, batch * asked.cell.accumulate_grad_batches
    )
    plain = {**asked.plain, "strategy": strategy.plain()[decision.chosen]}
    return Request((*asked.overrides, f"strategy={decision.chosen}"), plain), decision


def _probes(asked: Request) -> dict[str, Request]:
    strategy = asked.cell.strategy
    assert isinstance(strategy, AutoConfig)
    found = {}
    for name, settings in strategy.plain().items():
        plain: dict[str, Any] = {
            **{k: v for k, v in asked.plain.items() if k != "measure"},
            "strategy": settings,
            "max_steps": strategy.probe_steps,
            "max_epochs": None,
            "warmup_steps": strategy.probe_warmup_steps,
            "validation": "never",
            "repeats": strategy.probe_repeats,
            # A short run without validation can tell no loss.
            "sweep": {**asked.plain["sweep"], "objective": "global_samples_per_s"},
        }
        typed = (*asked.overrides, f"strategy={name}", f"max_steps={strategy.probe_steps}")
        found[name] = Request(typed, plain)
    return found


def adaptive_requests(cells: Sequence[Cell]) -> dict[str, Request]:
    """``config_id`` to request of every configuration that leaves its repeats to the data."""
    return {
        cell.planned.config_id: cell.request
        for cell in cells
        if cell.request.cell.repeats == "auto"
    }


@dataclass(frozen=True)
class NextRounds:
    cells: list[Cell]
    """In the order in which they are to run."""
    looked_at: Sequence[Repeats]
    """Every comparison, decided or not."""
    left_open: Sequence[Repeats]
    """Undecided ones whose next rounds would take too long."""


def next_rounds(
    folder: SweepFolder,
    requests: Mapping[str, Request],
    fits: Callable[[Collection[Cell]], bool] = lambda cells: True,
) -> NextRounds:
    """The cells that undecided comparisons still need until they are looked at again.

    They are whole new rounds: every member of an undecided pair runs in each of them, a single
    device once for all its partners. So a pair that lost a half, or came later, is not completed
    by a run of another time. Rounds that are planned and have not ended count as if they had, so
    that the rounds come to an end whatever keeps them from running.

    ``fits`` says whether there is time for so many cells. What needs fewest is asked first; runs
    that a verdict needs at least are not asked for.
    """
    from scalewise.analysis import judge_sweep, load_sweep

    found = judge_sweep(load_sweep(folder.path)).repeats
    undecided = []
    for one in found:
        if one.wanted is not None and all(m.config_id in requests for m in one.members):
            cells_of_pair = [c for m in one.members for c in m.cells if c.state in UNFINISHED]
            open_rounds = len({c.planned.repeat for c in cells_of_pair})
            undecided.append((one, one.wanted - one.runs - open_rounds))
    known = (
        c.planned.repeat
        for one, _ in undecided
        for m in one.members
        for c in (*m.cells, *m.elsewhere)
    )
    first = max(known, default=-1) + 1
    needed: dict[str, Cell] = {}
    left_open: list[Repeats] = []
    for one, rounds in sorted(undecided, key=lambda each: each[1]):
        more = {
            cell.planned.cell_id: cell
            for member in one.members
            # One request a seed: the runs of all of them are those of one row.
            for ids in [dict.fromkeys(cell.planned.config_id for cell in member.cells)]
            for own in [[requests[i] for i in ids if i in requests]]
            for repeat in range(first, first + math.ceil(rounds / len(own)))
            for cell in [make_cell(one_seed, repeat) for one_seed in own]
        }
        # One more than a verdict needs: on a host that others share, any number may not count.
        is_needed = one.runs < FEWEST_ADAPTIVE_REPEATS and first <= FEWEST_ADAPTIVE_REPEATS
        if is_needed or fits((needed | more).values()):
            needed |= more
        else:
            left_open.append(one)
    cells = list(needed.values())
    seed = cells[0].request.cell.sweep.order_seed if cells else 0
    return NextRounds(in_order(cells, seed), found, left_open)


def budget_of_rounds(requests: Iterable[Request]) -> float | None:
    """Minutes within which rounds are added: the least that was given, None for no limit."""
    given = (one.cell.sweep.budget_min for one in requests)
    return min((minutes for minutes in given if minutes is not None), default=None)


def describe_rounds(cells: Sequence[Cell]) -> list[str]:
    """A line on the rounds that follow ``cells`` until their comparisons are decided."""
    requests = adaptive_requests(cells)
    if not requests:
        return []
    minutes = budget_of_rounds(requests.values())
    most = max(one.cell.max_repeats for one in requests.values())
    limit = "" if minutes is None else f", at most {minutes:g} min (sweep.budget_min)"
    return [f"until decided: {FEWEST_ADAPTIVE_REPEATS} to {most} runs each{limit}"]


def decide(
    folder: SweepFolder, asked: Iterable[Request], note: Callable[[str], None]
) -> dict[str, tuple[Request, StrategyDecision]]:
    """What is trained for those of ``asked`` that their records decide, and why, by ``config_id``.

    ``note`` is told why, and of the others why not.
    """
    from scalewise.analysis import UndecidedError

    decided, said = {}, dict[str, None]()
    for one in asked:
        try:
            decided[one.config_id] = _, evidence = choose(folder, one)
        except UndecidedError as reason:
            said[f"not decided: {reason}"] = None
        else:
            said |= dict.fromkeys(evidence.lines())
    for line in said:
        note(f"strategy {line}")
    return decided

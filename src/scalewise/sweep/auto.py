"""``strategy=auto``: short runs of every candidate, and then the better one.

Two stages, like ``repeats=auto``: what is trained is decided from the records of stage one,
through ``analysis``, so that a sweep that is resumed decides the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewise.config import AutoConfig, ConfigError, build_cell
from scalewise.records import (
    BatchSearchRecord,
    RecordError,
    StrategyDecision,
    SweepFolder,
    load_batch_search,
    save_batch_search,
    save_decision,
)
from scalewise.sweep.cell_state import is_done
from scalewise.sweep.plan import Cell, Request, check_samples, in_rounds, make_cell, plan
from scalewise.sweep.resume import is_rerun, planned_repeats

if TYPE_CHECKING:
    from scalewise.analysis import Configuration, Repeats


@dataclass(frozen=True)
class Chosen:
    """What one request for ``strategy=auto`` has come to."""

    trained: Request | None
    """It with the chosen strategy; None where nothing could be decided."""
    decision: StrategyDecision | None
    lines: tuple[str, ...]
    """To say it in."""


def stage_one(requests: Iterable[Request]) -> Iterator[Request]:
    """Every request; in place of one for ``strategy=auto``, short runs of its candidates."""
    for one in requests:
        if isinstance(one.cell.strategy, AutoConfig):
            yield from _probes(one).values()
        else:
            yield one


def open_strategies(requests: Iterable[Request]) -> tuple[Request, ...]:
    """The distinct requests among these that leave the strategy to measurement."""
    found = [one for one in requests if isinstance(one.cell.strategy, AutoConfig)]
    return tuple({one.config_id: one for one in found}.values())


def describe_strategies(requests: Iterable[Request]) -> list[str]:
    """What every request of ``strategy=auto`` will train, as far as that is known before."""
    return [
        f"{' and '.join(one.cell.strategy.candidates)}, model={one.cell.model.name}"
        for one in open_strategies(requests)
        if isinstance(one.cell.strategy, AutoConfig)
    ]


def choose(folder: SweepFolder, asked: Request) -> Chosen:
    """Decide from the records of the short runs."""
    from scalewise.analysis import UndecidedError, choose_strategy, configurations, load_sweep

    strategy = asked.cell.strategy
    assert isinstance(strategy, AutoConfig)
    known = {c.config_id: c for c in configurations(load_sweep(folder.path))}
    probes = {name: one.config_id for name, one in _probes(asked).items()}
    candidates = {name: known[identity] for name, identity in probes.items() if identity in known}
    most = max((c.devices or 1 for c in candidates.values()), default=1)
    batch = asked.cell.batch_of(most)
    try:
        decision = choose_strategy(
            candidates, strategy.probe_steps, batch * asked.cell.accumulate_grad_batches
        )
    except UndecidedError as reason:
        return Chosen(None, None, (f"not decided: {reason}",))
    plain = {**asked.plain, "strategy": strategy.plain()[decision.chosen]}
    typed = (*asked.overrides, f"strategy={decision.chosen}")
    trained = Request(typed, plain, build_cell(plain))
    return Chosen(trained, decision, decision.lines())


def _probes(asked: Request) -> dict[str, Request]:
    strategy = asked.cell.strategy
    assert isinstance(strategy, AutoConfig)
    found = {}
    for name, settings in strategy.plain().items():
        plain: dict[str, Any] = {
            **asked.plain,
            "strategy": settings,
            "max_steps": strategy.probe_steps,
            "max_epochs": None,
            "warmup_steps": strategy.probe_warmup_steps,
            "validation": "never",
            "repeats": strategy.probe_repeats,
            # What a short run without validation can tell.
            "sweep": {**asked.plain["sweep"], "objective": "global_samples_per_s"},
        }
        typed = (*asked.overrides, f"strategy={name}", f"max_steps={strategy.probe_steps}")
        found[name] = Request(typed, plain, build_cell(plain))
    return found


# ``batch_size=auto``: a search for the largest batch that fits, and then training with it.
#
# The search is a cell of its own, with the ranks and devices of those that wait for it, so that it
# is leased, watched, recorded and resumed like any other. Configurations that differ in nothing
# that takes memory (seed, steps, scaling) share one, and all their repeats train with what it
# found.


_SETTLED: dict[str, Any] = {
    "workload": "find_batch", "scaling": "weak", "seed": 0, "max_steps": 1000, "max_epochs": None,
    "warmup_steps": 0, "validation": "never", "log_every_n_steps": 1, "repeats": 1,
}  # fmt: skip
"""What a search does not depend on, set alike so that it is not repeated for it."""
_LEFT_OUT = ("profile", "checkpoint", "fault", "experiment")


@dataclass(frozen=True)
class FoundBatch:
    """What one request for ``batch_size=auto`` has come to."""

    trained: Request | None
    """It with the batch size found; None where none was."""
    record: BatchSearchRecord | None
    lines: tuple[str, ...]
    """To say it in."""


def is_open(one: Request) -> bool:
    """Whether it leaves its batch size to a search."""
    return one.cell.batch_size == "auto" and one.cell.workload == "train"


def search_for(asked: Request) -> Request:
    """The search that ``asked`` waits for."""
    plain = {k: v for k, v in asked.plain.items() if k not in _LEFT_OUT} | _SETTLED
    plain["tracking"] = {**plain["tracking"], "name": "none", "trackers": []}
    plain["sweep"] = {
        **plain["sweep"], "objective": "per_device_batch_size", "extend": 0, "wrap": None,
    }  # fmt: skip
    return Request((*asked.overrides, "workload=find_batch"), plain, build_cell(plain))


def with_searches(requests: Iterable[Request], folder: SweepFolder) -> Iterator[Request]:
    """``requests``, each that is open after its search, and left out until that is done."""
    for one in requests:
        if not is_open(one):
            yield one
            continue
        search = search_for(one)
        yield search
        planned = make_cell(search, 0).planned
        if is_done(folder, planned) and not is_rerun(planned, one.cell.sweep.rerun):
            found = resolve(folder, one)
            if found.trained is not None:
                yield found.trained


def resolve(folder: SweepFolder, asked: Request) -> FoundBatch:
    """Put what the search found in place of ``auto``."""
    planned = make_cell(search_for(asked), 0).planned
    cell = folder.cell(planned.name)
    try:
        record = load_batch_search(cell.path) if is_done(folder, planned) else None
        if record is None:
            attempts = list(cell.attempts())
            why = attempts[-1].message if attempts else "its search has not ended"
            return FoundBatch(None, None, (f"not found for {_name(asked)}: {why}",))
        trained = _with_size(asked, record)
    except (RecordError, ConfigError) as error:
        return FoundBatch(None, None, (f"not found for {_name(asked)}: {error}",))
    said = f"{_name(asked)}: {record.line(asked.cell.scaling)}"
    return FoundBatch(trained, record, (said, f"evidence: {cell.path / 'find_batch.json'}"))


def useless(requests: Iterable[Request], folder: SweepFolder) -> frozenset[str]:
    """Ids of searches that are done and from which no batch size can be read any longer."""
    searches = [(one, make_cell(search_for(one), 0).planned) for one in open_batches(requests)]
    return frozenset(
        planned.cell_id
        for one, planned in searches
        if is_done(folder, planned) and resolve(folder, one).trained is None
    )


def open_batches(requests: Iterable[Request]) -> tuple[Request, ...]:
    """The distinct requests among these that are open."""
    return tuple({one.config_id: one for one in requests if is_open(one)}.values())


def describe_batches(requests: Iterable[Request], folder: SweepFolder) -> list[str]:
    """What will be trained once the searches are done, a line each."""
    waiting = [
        one for one in open_batches(requests) if len(list(with_searches([one], folder))) == 1
    ]
    names = Counter(_name(one) for one in waiting)
    return [
        f"{name}, the largest that fits" + (f" ({n} configurations)" if n > 1 else "")
        for name, n in names.items()
    ]


def is_search(cell: Cell) -> bool:
    return cell.request.cell.workload == "find_batch"


def _with_size(asked: Request, record: BatchSearchRecord) -> Request:
    size = record.batch_size(asked.cell.scaling)
    plain = {k: v for k, v in asked.plain.items() if k != "batch_search"} | {"batch_size": size}
    typed = [o for o in asked.overrides if o.lstrip("+") != "batch_size=auto"]
    trained = Request((*typed, f"batch_size={size}"), plain, build_cell(plain))
    check_samples(trained.cell)
    return trained


def _name(asked: Request) -> str:
    cell = asked.cell
    devices = cell.strategy.devices
    width = f" x{devices}" if devices != "auto" else ""
    return f"{cell.model.name} {cell.dataset.name} {cell.strategy.name}{width} batch_size=auto"


# Stage two of a sweep: more rounds for ``repeats=auto``, decided from the records so far.


@dataclass(frozen=True)
class NextRounds:
    """What a look at the records asks for."""

    cells: tuple[Cell, ...]
    """In the order in which they are to run; empty once everything is decided."""
    repeats: tuple[Repeats, ...]


def adaptive_requests(cells: Sequence[Cell]) -> dict[str, Request]:
    """``config_id`` to request of every configuration that leaves its repeats to the data."""
    return {
        cell.planned.config_id: cell.request
        for cell in cells
        if cell.request.cell.repeats == "auto"
    }


def next_rounds(
    folder: SweepFolder, requests: Mapping[str, Request], tried: Collection[str]
) -> NextRounds:
    """The cells that every undecided comparison still needs before its next look.

    ``tried`` are the ids of cells that this sweep has ended with, however they ended: none of
    them is run again, so that the rounds come to an end whatever fails.
    """
    from scalewise.analysis import load_sweep, reach_verdicts

    found = reach_verdicts(load_sweep(folder.path)).repeats
    rounds: dict[int, dict[str, Cell]] = {}
    undecided = [(m, r.wanted) for r in found if r.wanted is not None for m in r.members]
    for member, wanted in undecided:
        request = requests.get(member.config_id)
        if request is None:
            continue
        for repeat in range(wanted + _lost(member)):
            cell = make_cell(request, repeat)
            if cell.planned.cell_id not in tried:
                rounds.setdefault(repeat, {})[cell.planned.cell_id] = cell
    if not rounds:
        return NextRounds((), found)
    seed = next(iter(requests.values())).cell.sweep.order_seed
    # Rounds begin at different numbers: the same seed must not give each look the same order.
    blocks = {repeat: tuple(cells.values()) for repeat, cells in rounds.items()}
    return NextRounds(tuple(in_rounds(blocks, seed + min(blocks))), found)


def _lost(member: Configuration) -> int:
    """Runs that gave no figure and are made up for by others."""
    measured = len(member.values("samples_per_s"))
    ended = [c for c in member.cells if c.state in ("done", "failed", "skipped")]
    return len(ended) - measured


# Stage two of ``batch_size=auto`` and ``strategy=auto``: what is trained, and by what evidence.


class Stages:
    """What the first stage of a sweep comes to.

    Args:
        folder: the sweep's.
        note: says a line to whoever watches.
    """

    def __init__(self, folder: SweepFolder, note: Callable[[str], None]) -> None:
        self._folder = folder
        self._note = note
        self._evidence: dict[str, Callable[[Path], object]] = {}
        """``config_id`` of what was decided to what writes its evidence into a folder."""
        self.chosen: dict[str, str] = {}
        """``config_id`` of a request that was open to that of what is trained for it."""

    def batch_sizes(self, left_open: Sequence[Request]) -> list[Request]:
        """Those that left their batch size to a search, with what it found."""
        trained, said = [], dict[str, None]()
        for asked in filter(is_open, left_open):
            found = resolve(self._folder, asked)
            said |= dict.fromkeys(found.lines)
            if found.trained is not None and found.record is not None:
                self._decide(asked, found.trained, partial(save_batch_search, record=found.record))
                trained.append(found.trained)
        # Once for all that share a search.
        for line in said:
            self._note(f"batch    {line}")
        return trained

    def strategies(self, left_open: Sequence[Request]) -> list[Request]:
        """Those that left their strategy to short runs, with the one that these speak for."""
        trained = []
        for asked in left_open:
            if is_open(asked):
                continue
            chosen = choose(self._folder, asked)
            for line in chosen.lines:
                self._note(f"strategy {line}")
            if chosen.trained is not None and chosen.decision is not None:
                write = partial(save_decision, decision=chosen.decision)
                self._decide(asked, chosen.trained, write)
                trained.append(chosen.trained)
        return trained

    def write_evidence(self, cell: Cell) -> None:
        """Leave in a cell's folder why it is trained as it is; nothing where that was typed."""
        write = self._evidence.get(cell.planned.config_id)
        if write is not None:
            write(self._folder.cell(cell.planned.name).path)

    def _decide(self, asked: Request, trained: Request, write: Callable[[Path], object]) -> None:
        self.chosen[asked.config_id] = trained.config_id
        self._evidence[trained.config_id] = write


def split(cells: Sequence[Cell]) -> tuple[Sequence[Cell], Sequence[Cell]]:
    """The searches, and what waits for them; without any, nothing waits."""
    searches = [cell for cell in cells if is_search(cell)]
    if not searches:
        return cells, ()
    return searches, [cell for cell in cells if not is_search(cell)]


def later_cells(
    folder: SweepFolder, requests: Sequence[Request], known: Collection[str]
) -> list[Cell]:
    """The cells of what a first stage decided, but for those that were asked for anyway.

    ``known`` is the ``config_id`` of whatever the sweep has.
    """
    decided = [one for one in requests if one.config_id not in known]
    seed = decided[0].cell.sweep.order_seed if decided else 0
    planned = plan(decided, seed, planned_repeats(folder))
    # The devices were examined with the first stage.
    return [cell for cell in planned if cell.request.cell.workload == "train"]


def reruns(folder: SweepFolder, cells: Sequence[Cell]) -> frozenset[str]:
    """Ids of those of ``cells`` that are done and by ``sweep.rerun`` are to run once more."""
    return frozenset(
        cell.planned.cell_id
        for cell in cells
        if is_rerun(cell.planned, cell.request.cell.sweep.rerun) and is_done(folder, cell.planned)
    )


def interleaved(cells: Sequence[Cell]) -> list[Cell]:
    """Round by round; an examination of the devices comes before all."""
    rounds: dict[int, list[Cell]] = {}
    for cell in cells:
        if cell.request.cell.workload == "train":
            rounds.setdefault(cell.planned.repeat, []).append(cell)
    seed = cells[0].request.cell.sweep.order_seed if cells else 0
    first = [cell for cell in cells if cell.request.cell.workload != "train"]
    return first + in_rounds(rounds, seed)

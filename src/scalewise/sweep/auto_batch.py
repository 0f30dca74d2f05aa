"""``batch_size=auto``: a search for the largest batch that fits, and then training with it.

The search is a cell of its own, with the ranks and devices of those that wait for it, so that it
is leased, watched, recorded and resumed like any other. Configurations that differ in nothing that
takes memory (seed, steps, scaling) share one, and all their repeats train with what it found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scalewise.config import ConfigError, build_cell
from scalewise.records import RecordError, SweepFolder
from scalewise.records.batch_search import BatchSearchRecord, load_batch_search
from scalewise.sweep.component_checks import check_samples
from scalewise.sweep.plan import Cell, Request, make_cell
from scalewise.sweep.resume import is_done, is_rerun

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

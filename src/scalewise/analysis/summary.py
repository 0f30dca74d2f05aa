"""One sweep, analysed: everything a report prints, computed once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from scalewise.analysis.best import BestOfEach, find_best
from scalewise.analysis.choice import Ladder, ladders
from scalewise.analysis.communication import (
    Communication,
    measure_communication,
    timed_only,
    windows,
)
from scalewise.analysis.comparability import grouped
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.cost import NO_COST, Cost, measure_cost
from scalewise.analysis.disturbances import Disturbance, disturbances
from scalewise.analysis.figures import listed
from scalewise.analysis.investment import (
    Alternative,
    Owned,
    Return,
    find_alternatives,
    measure_owned,
    measure_return,
)
from scalewise.analysis.mfu import MfuResult, find_doctor, measure_mfu
from scalewise.analysis.model import CellRecords, Sweep, is_profiled
from scalewise.analysis.scaling import Pair, Refused
from scalewise.analysis.verdict import MIN_EFFICIENCY
from scalewise.analysis.verdicts import Verdicts, reach_verdicts
from scalewise.config import Prices, conf_dir, load_profiles, read_prices
from scalewise.host import from_here
from scalewise.records import Attempt, CellFolder, DoctorReport, load_or_none

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d|^<")
_OURS = re.compile(r"(^|/)src/scalewise/")

_MOST_NAMED = 2
"""Cells named where many ended of the same."""


@dataclass(frozen=True)
class Blame:
    """Where to look; None where nothing was recorded."""

    at: str | None
    """``file:line`` of the user's code that was running, of ours where none of theirs was."""
    log: Path | None
    """Standard error of the rank that failed first."""


def blame_last(cell: Path, attempts: Sequence[Attempt]) -> Blame:
    """Of the last try, unless it was skipped: then there is nothing to look into."""
    if not attempts or attempts[-1].outcome == "skipped":
        return Blame(None, None)
    return blame(cell, attempts[-1])


def blame(cell: Path, attempt: Attempt) -> Blame:
    """Where the try ``attempt`` of the cell in folder ``cell`` broke."""
    folder, rank = CellFolder(cell), attempt.rank or 0
    # A later try moves the logs of the earlier ones.
    logs = (cell / "attempts" / f"{attempt.number}.logs" / f"rank{rank}.err",
            folder.log_path(rank, "err"))  # fmt: skip
    log = next((path for path in logs if path.exists()), None)
    if attempt.outcome != "failed" or attempt.cause == "config":
        return Blame(None, log)  # a message for the user names the setting; no line of code does
    return Blame(_raised_at(_traceback(folder, rank, attempt)), log)


def _traceback(folder: CellFolder, rank: int, attempt: Attempt) -> str:
    """The rank's own words if they are of this try, else the end of its log."""
    error = load_or_none(folder.load_rank_error, rank)  # None too if the fault itself tore it
    if error is not None and attempt.started_at <= error.time <= attempt.finished_at:
        return error.traceback
    return "\n".join(attempt.last_lines)


def _raised_at(text: str) -> str | None:
    """The innermost frame of the user's code, of the last error that has one; else of ours."""
    errors = [
        [(found["file"], found["line"]) for found in _FRAME.finditer(part)]
        for part in text.split("Traceback (most recent call last)")
    ]
    frames = [frame for part in reversed(errors) for frame in reversed(part)]
    theirs = (f for f in frames if not _INSTALLED.search(f[0]) and not _OURS.search(f[0]))
    ours = (f for f in frames if _OURS.search(f[0]) or "/scalewise/" in f[0])
    found = next(theirs, None) or next(ours, None)
    return None if found is None else ":".join(found)


@dataclass(frozen=True)
class Fate:
    """How a cell came to have no result."""

    name: str
    state: str
    reason: str
    blame: Blame


def fate_lines(fates: Sequence[Fate]) -> Iterator[str]:
    """Cells of one fate in one line, then the line of code and the log of the first of them."""
    for (state, reason), cells in grouped(fates, lambda f: (f.state, f.reason)).items():
        names = listed([cell.name for cell in cells], _MOST_NAMED)
        yield f"{state}: {names}: {reason}"
        first = cells[0].blame
        if first.at is not None:
            yield f"  raised at {from_here(first.at)}"
        if first.log is not None:
            yield f"  log: {from_here(first.log)}"


@dataclass(frozen=True, eq=False)
class Analysis(Verdicts):
    """A sweep with its configurations measured and paired; equal to itself alone."""

    sweep: Sweep
    mfu: Mapping[str, tuple[MfuResult, ...]] = field(default_factory=dict)
    """``config_id`` to the MFU of each of its runs."""

    communication: Mapping[str, Communication] = field(default_factory=dict)
    """``config_id`` to what its gradients cost, of multi-device configurations."""
    doctor: DoctorReport | None = None
    """The examination of the devices that lies beside the cells."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """``config_id`` to what a sample costs, of timed configurations that ran."""
    prices: Prices = field(default_factory=Prices)
    """What devices cost to buy and to feed."""
    owned: Mapping[str, Owned] = field(default_factory=dict)
    """``config_id`` to what it costs on devices of one's own, where their price is known."""
    returns: Mapping[str, Return] = field(default_factory=dict)
    """``config_id`` of several devices to what the added ones bring in."""
    disturbances: tuple[Disturbance, ...] = ()
    """What disturbed each cell, or why that cannot be told, in the order of the plan."""
    alternatives: tuple[Alternative, ...] = ()
    """What else a single device would gain from, and what that costs."""
    best: tuple[BestOfEach, ...] = ()
    """The best of each number of devices, where one of them had several candidates."""

    @cached_property
    def ladders(self) -> tuple[Ladder, ...]:
        """Numbers of devices side by side."""
        return ladders(self.pairs)

    @property
    def measured(self) -> tuple[Configuration, ...]:
        """Those that are timed, with at least one finished run."""
        return tuple(c for c in timed_only(self.configurations) if c.runs)

    @property
    def profiled(self) -> tuple[Configuration, ...]:
        """Those that ran under a profiler: no time of theirs counts."""
        return tuple(c for c in self.configurations if c.runs and is_profiled(c.cells[0].config))

    @property
    def unfinished(self) -> tuple[CellRecords, ...]:
        """Cells without a result."""
        return tuple(c for c in self.sweep.cells if c.state != "done")

    def cost(self, config: Configuration) -> Cost:
        """What a sample costs, or why that is not known."""
        return self.costs.get(config.config_id, NO_COST)

    def pair(self, config: Configuration) -> Pair | None:
        return next((p for p in self.pairs if p.multi.config_id == config.config_id), None)

    def valid_pair(self, config: Configuration) -> Pair | None:
        """As :meth:`pair`; None where its verdict is *invalid*: no figure of it is shown."""
        pair = self.pair(config)
        return None if pair is None or pair.invalid else pair

    def refusal(self, config: Configuration) -> Refused | None:
        return next((r for r in self.refused if r.multi.config_id == config.config_id), None)


def speedup_at_equal_clocks(analysis: Analysis, pair: Pair) -> float | None:
    """Bounds the part of the SM clocks in a speedup; None where a clock was not read."""
    budget = analysis.budgets.get(pair.multi.config_id)
    factor = budget.at_equal_clocks if budget is not None else None
    return None if factor is None else factor * pair.speedup.value


def analyse(
    sweep: Sweep, min_efficiency: float = MIN_EFFICIENCY, prices: Prices | None = None
) -> Analysis:
    """Measure every finished cell and compare what may be compared, at the shipped prices."""
    prices = prices or read_prices(conf_dir() / "prices.yaml")
    found = reach_verdicts(sweep, min_efficiency)
    configs = found.configurations
    doctor = find_doctor(sweep.path)
    profiles = load_profiles(conf_dir() / "hardware")
    mfu = {
        c.config_id: tuple(measure_mfu(run, doctor, profiles) for run in c.runs) for c in configs
    }
    seen = windows(configs)
    communication = {
        c.config_id: cost
        for c in timed_only(configs)
        if (cost := measure_communication(c, seen.get(c.config_id), doctor)) is not None
    }
    measured = [c for c in timed_only(configs) if c.runs]
    costs = {
        c.config_id: measure_cost(c, profiles, found.invalid.get(c.config_id, ()), prices.rent)
        for c in measured
    }
    owned = {
        c.config_id: one
        for c in measured
        if c.config_id not in found.invalid
        and (one := measure_owned(c, prices, profiles, costs[c.config_id])) is not None
    }
    returns = {
        p.multi.config_id: back
        for p in found.pairs
        if (back := measure_return(p, owned, costs, prices)) is not None
    }
    return Analysis(
        **vars(found),
        sweep=sweep,
        mfu=mfu,
        communication=communication,
        doctor=doctor,
        costs=costs,
        prices=prices,
        owned=owned,
        returns=returns,
        disturbances=tuple(one for cell in sweep.cells for one in disturbances(cell)),
        alternatives=find_alternatives(measured, found.pairs, returns, owned),
        best=find_best(
            [c for c in measured if c.config_id not in found.invalid],
            min_efficiency,
        ),
    )

"""One sweep, analysed: everything a report prints, computed once.

``repeats=auto`` stops for the verdicts that a report says: none is called decided to one of them
and undecided to the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.analysis.communication import Communication, measure_communications
from scalewise.analysis.comparability import grouped
from scalewise.analysis.configuration import (
    Configuration,
    configurations,
    describe_inferred_scaling,
    read_scaling,
)
from scalewise.analysis.cost import (
    NO_COST,
    Alternative,
    Cost,
    Owned,
    Return,
    find_alternatives,
    measure_costs,
)
from scalewise.analysis.decisions import Repeats, assess
from scalewise.analysis.doubts import Budgets, doubt_speedup, find_remarks
from scalewise.analysis.figures import factor, listed
from scalewise.analysis.loss_budget import lost_words, make_budget
from scalewise.analysis.model import CellRecords, Sweep, rehearsed_kind
from scalewise.analysis.ranking import Ladder, ladders
from scalewise.analysis.rehearsal import Rehearsal, rehearsals
from scalewise.analysis.remarks import Remark
from scalewise.analysis.remedies import Remedies, find_remedies
from scalewise.analysis.run import MfuResult, measure_mfu
from scalewise.analysis.scaling import Pair, Refused, pair_all
from scalewise.analysis.statistics import RatioEstimate
from scalewise.config import Prices, conf_dir, read_prices
from scalewise.host import from_here
from scalewise.records import DoctorReport, Ending, load_json, load_or_none, source_line

_MOST_NAMED = 2
"""Cells named where many ended of the same."""


def ending_lines(cells: Sequence[tuple[str, Ending, str | Path | None]]) -> Iterator[str]:
    """Names, how their cells ended, and their logs: those that ended alike in one line.

    Then the line of code and the log of the first of them.
    """
    alike = grouped(cells, lambda cell: (cell[1].outcome, cell[1].message))
    for (outcome, message), group in alike.items():
        yield f"{outcome}: {listed([name for name, _, _ in group], _MOST_NAMED)}: {message}"
        _, first, log = group[0]
        if first.raised_at is not None:
            code = source_line(first)
            yield f"  raised at {from_here(first.raised_at)}{f': {code}' if code else ''}"
        if log is not None:
            yield f"  log: {from_here(log)}"


@dataclass(frozen=True, eq=False)
class Judged:
    """The configurations of a sweep, paired and doubted: what decides how many runs they need."""

    configurations: tuple[Configuration, ...]
    pairs: tuple[Pair, ...]
    refused: tuple[Refused, ...]
    budgets: Budgets
    """``config_id`` to where its time goes, of what was timed."""
    invalid: Mapping[str, tuple[Remark, ...]]
    """``config_id`` to why its figures mean nothing; sound configurations are absent."""
    repeats: tuple[Repeats, ...]
    """Who needs how many runs under ``repeats=auto``, and why."""
    rehearsals: tuple[Rehearsal, ...]
    """What was rehearsed: in none of the others."""


@dataclass(frozen=True, eq=False)
class Analysis(Judged):
    """A sweep with all that is said of it; equal to itself alone."""

    sweep: Sweep
    unfinished: tuple[CellRecords, ...]
    """Cells without a result."""
    measured: tuple[Configuration, ...]
    """Those that are timed, with at least one finished run."""
    reasons: Mapping[str, str]
    """``config_id`` of a pair to its verdict's whole sentence."""
    remarks: tuple[Remark, ...]
    """What must be known of the figures, the gravest first."""
    remedies: Mapping[str, Remedies]
    """``config_id`` to what to try, of ``measured``."""
    ladders: tuple[Ladder, ...]
    """Numbers of devices side by side."""
    doctor: DoctorReport | None
    """The examination of the devices that lies beside the cells."""
    mfu: Mapping[str, tuple[MfuResult, ...]]
    """``config_id`` to the MFU of each of its runs."""
    communication: Mapping[str, Communication]
    """``config_id`` to what its gradients cost, of multi-device configurations."""
    prices: Prices
    """What devices cost to buy and to feed."""
    costs: Mapping[str, Cost]
    """``config_id`` to what a sample costs, of timed configurations that ran."""
    owned: Mapping[str, Owned]
    """``config_id`` to what it costs on devices of one's own, where their price is known."""
    returns: Mapping[str, Return]
    """``config_id`` of several devices to what the added ones bring in."""
    alternatives: tuple[Alternative, ...]
    """What else a single device would gain from, and what that costs."""

    @property
    def tried_on_several(self) -> bool:
        """Whether a cell was to run on several devices, or to rehearse them, however it ended."""
        several = any(config.devices != 1 for config in self.configurations)
        return several or any(rehearsed_kind(cell.config) for cell in self.sweep.cells)

    def cost(self, config: Configuration) -> Cost:
        """What a sample costs, or why that is not known."""
        return self.costs.get(config.config_id, NO_COST)

    def pair(self, config: Configuration) -> Pair | None:
        return next((p for p in self.pairs if p.multi.config_id == config.config_id), None)

    def refusal(self, config: Configuration) -> Refused | None:
        return next((r for r in self.refused if r.config.config_id == config.config_id), None)

    def verdict_word(self, config: Configuration) -> str | None:
        """The word in every table and file; None where there is nothing to judge."""
        if not config.is_timed:
            return None
        if config.config_id in self.invalid:
            return "invalid"
        if pair := self.pair(config):
            return pair.verdict
        if not config.runs:
            return None
        if config.devices == 1:
            return "baseline"
        return "not comparable" if self.refusal(config) else None

    def cost_ratio(self, pair: Pair) -> RatioEstimate | None:
        """A sample's cost over that on the single device: ``1 / efficiency`` at equal prices.

        Two unknown prices are taken to be equal; None where that of one side alone is known. The
        interval is that of the speedup turned over, so that it says what the verdict was judged on.
        """
        at_equal_prices = pair.efficiency.inverted()
        multi, single = (self.cost(side).rent for side in (pair.multi, pair.single))
        if multi is None and single is None:
            return at_equal_prices
        return None if multi is None or single is None else at_equal_prices.scaled(multi / single)


def say_why(pair: Pair, budgets: Budgets) -> str:
    """The verdict's whole sentence: the interval, the largest losses, and the remarks."""
    if pair.invalid:
        return "; ".join(one.text for one in pair.invalid)
    said = [pair.judgement.reason, describe_inferred_scaling(pair.multi)]
    if pair.multi.is_ceiling:
        said = [
            f"{pair.devices} independent models, not one: the most that data parallelism could "
            f"reach on these devices is a speedup of {factor(pair.speedup.value)}"
        ]
    said.append(lost_words(budgets.get(pair.multi.config_id)))
    for one in pair.remarks:
        whose = f"{pair.single.device_words}: " * (one.about == pair.single.config_id)
        said.append(f"{whose}{one.text if one.gravity == 'undecided' else one.brief}")
    return "; ".join(dict.fromkeys(filter(None, said)))


def judge_sweep(sweep: Sweep) -> Judged:
    """Measure every finished cell, compare what may be compared, and doubt what has to be."""
    every = configurations(sweep)
    configs = read_scaling([config for config in every if config.rehearsed_kind is None])
    timed = tuple(config for config in configs if config.is_timed)
    paired, refused = pair_all(timed)
    baselines = {pair.multi.config_id: pair.single for pair in paired}
    every_budget = ((c.config_id, make_budget(c, baselines.get(c.config_id))) for c in configs)
    budgets = {key: budget for key, budget in every_budget if budget is not None}
    pairs = tuple(doubt_speedup(p, budgets) for p in paired)
    invalid = {p.multi.config_id: p.invalid for p in pairs if p.invalid}
    invalid |= {c.config_id: found for c in timed if (found := c.invalid)}
    played = rehearsals(every, configs)
    return Judged(configs, pairs, refused, budgets, invalid, assess(timed, pairs, played), played)


def analyse(sweep: Sweep, prices: Prices | None = None, datasets: Collection[str] = ()) -> Analysis:
    """Compare a sweep's cells, and say what the figures cost, lack and advise.

    At the shipped prices, unless others are given. With ``datasets``, what is said of these alone.
    """
    found = judge_sweep(sweep)
    if datasets:
        found = replace(
            found,
            configurations=tuple(c for c in found.configurations if c.name("dataset") in datasets),
            pairs=tuple(p for p in found.pairs if p.multi.name("dataset") in datasets),
            refused=tuple(r for r in found.refused if r.config.name("dataset") in datasets),
        )
    configs, pairs, budgets = found.configurations, found.pairs, found.budgets
    measured = tuple(c for c in configs if c.is_timed and c.runs)
    doctor = load_or_none(load_json, sweep.path / DoctorReport.FILE, DoctorReport)
    prices = prices or read_prices(conf_dir() / "prices.yaml")
    costs, owned, returns = measure_costs(measured, pairs, found.invalid, prices)
    return Analysis(
        sweep=sweep,
        unfinished=tuple(cell for cell in sweep.cells if cell.state != "done"),
        **vars(found),
        measured=measured,
        reasons={pair.multi.config_id: say_why(pair, budgets) for pair in pairs},
        remarks=find_remarks(sweep, configs, pairs, budgets),
        remedies=find_remedies(measured, budgets),
        ladders=ladders(pairs),
        doctor=doctor,
        mfu={c.config_id: tuple(measure_mfu(run, doctor) for run in c.runs) for c in configs},
        communication=measure_communications(configs, pairs, doctor),
        prices=prices,
        costs=costs,
        owned=owned,
        returns=returns,
        alternatives=find_alternatives(measured, pairs, returns, owned),
    )

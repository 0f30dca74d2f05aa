"""Rows of several sweeps, or of several kinds of device, side by side: who wins at what?

Rows are of one work where they agree in all of the configuration but the strategy and the hardware.
A metric has a winner only where the intervals of its ratios to all others exclude a tie, together
at 95 % (Bonferroni), from three runs a side: in pairs within one sweep, else of two samples.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from scalewise.analysis.comparability import Identity, differences, grouped, grouped_alike
from scalewise.analysis.configuration import Configuration, has_own_batches, identity_beside
from scalewise.analysis.cost import usd_per_million_samples
from scalewise.analysis.ranking import rank
from scalewise.analysis.run import RUN_FIGURES, Run
from scalewise.analysis.scaling import Pair
from scalewise.analysis.statistics import (
    Estimate,
    RatioEstimate,
    adaptive,
    estimate_at,
    estimate_positive,
    estimate_ratio,
)
from scalewise.analysis.step_path import step_edges_s
from scalewise.analysis.summary import Analysis
from scalewise.analysis.table import Row

_MAY_DIFFER = "devices,gpu,link,versions,code"
_HOW_LONG = (
    "max_steps", "max_epochs", "measure", "warmup_steps", "log_every_n_steps", "validation",
    "started", "monitor",
)  # fmt: skip
"""Fields on how long and how closely a run is watched."""


@dataclass(frozen=True)
class Entry(Row):
    """A row of one of the sweeps."""

    side: str = ""
    """``A`` for the first sweep that was named, and so on."""

    @property
    def name(self) -> str:
        """``A ddp x2``; the model is that of all rows beside it."""
        model, label = self.config.name("model"), self.config.label
        return f"{self.side} {label.removeprefix(f'{model} ')}"

    @property
    def usd_per_hour(self) -> float | None:
        """Of one device; None where no price is known."""
        return self.analysis.cost(self.config).rent


@dataclass(frozen=True)
class Metric:
    """What entries can win at: a figure of each run."""

    key: str
    words: str
    unit: str
    read: Callable[[Entry, Run], float | None]
    more_is_better: bool = False
    needs: str = "it"
    """What an entry without it lacks."""

    def values(self, entry: Entry) -> list[tuple[Run, float]]:
        """Of each run that has it and is above 0."""
        each = ((run, self.read(entry, run)) for run in entry.config.runs)
        return [(run, value) for run, value in each if value]

    def estimate(self, entry: Entry) -> Estimate | None:
        """Over runs; None where no run has it."""
        values = [value for _, value in self.values(entry)]
        return estimate_positive(values) if values else None

    def goodness(self, entry: Entry) -> float:
        """Its mean of an entry that has it, or one over that: more is better."""
        found = self.estimate(entry)
        assert found is not None
        return found.value if self.more_is_better else 1 / found.value

    def ratio(self, best: Entry, other: Entry, confidence: float) -> RatioEstimate:
        above, below = (
            entry.config.by_round(self.values(entry))
            if best.side == other.side
            else [value for _, value in self.values(entry)]
            for entry in ((best, other) if self.more_is_better else (other, best))
        )
        looked = best.side == other.side and adaptive(best.config.asked) is not None
        return (estimate_at if looked else estimate_ratio)(above, below, confidence)


def _of_runs(key: str, *, more_is_better: bool = False) -> Metric:
    figure = RUN_FIGURES[key]
    return Metric(key, figure.heading, figure.unit, lambda _, run: run.value(key), more_is_better)


METRICS = (
    replace(_of_runs("global_samples_per_s", more_is_better=True), unit=""),
    _of_runs("step_time_p50_ms"),
    _of_runs("peak_memory_per_device_mib"),
    Metric("energy_j_per_sample", "energy", "J/sample",
           lambda _, run: (j := run.value("energy_j_per_million_samples")) and j / 1e6),
)  # fmt: skip
"""All but the cost, which :func:`cost_metric` chooses."""


def cost_metric(entries: Sequence[Entry]) -> Metric:
    """USD where every device has a price; device-seconds where no device has one and all are equal.

    Devices of several kinds without prices have no common unit: their USD are missing.
    """

    def device_ms(_: Entry, run: Run) -> float | None:
        return run.world_size / run.samples_per_s * 1e3 if run.samples_per_s else None

    def usd(entry: Entry, run: Run) -> float | None:
        price, rate = entry.usd_per_hour, run.samples_per_s
        return usd_per_million_samples(run.world_size, price, rate) if price and rate else None

    kinds = {entry.config.identity.get("device_model") for entry in entries}
    if len(kinds) == 1 and any(entry.usd_per_hour is None for entry in entries):
        return Metric("device_ms_per_sample", "cost", "device-ms/sample", device_ms)
    return Metric("usd_per_million_samples", "cost", "USD/M samples", usd,
                  needs="a price (hardware.price)")  # fmt: skip


@dataclass(frozen=True)
class Winner:
    """The best at one metric; ``entry`` is None where none is shown to be."""

    metric: Metric
    entry: Entry | None
    rivals: tuple[Entry, ...]
    """Those that may be the best, the best by its mean first; empty where one has won."""
    advantage: RatioEstimate | None
    """How many times as good the best is by its mean as the first rival, else as the second."""
    unmeasured: tuple[Entry, ...]
    """Entries without the metric, which are not compared."""
    reason: str = ""
    """Why nothing can be compared; empty where it can."""


@dataclass(frozen=True)
class Workload:
    """Entries that train on equal samples in the same way."""

    entries: tuple[Entry, ...]
    winners: tuple[Winner, ...]
    """Of the speed first, of the cost last."""

    @property
    def fastest(self) -> Winner:
        return self.winners[0]

    @property
    def cheapest(self) -> Winner:
        return self.winners[-1]


def workloads(analyses: Sequence[Analysis]) -> tuple[Workload, ...]:
    """The entries of all sweeps by their work, without those that are alone with it."""
    entries = (
        Entry(analysis, config, side=side)
        for side, analysis in zip(sides(len(analyses)), analyses, strict=True)
        for config in analysis.measured
        if config.config_id not in analysis.invalid and config.values("global_samples_per_s")
    )
    pairs = [pair for analysis in analyses for pair in analysis.pairs]
    groups = grouped_alike(entries, lambda e: _work(e.config, pairs), _MAY_DIFFER, _HOW_LONG)
    found = []
    for group in (group for group in groups if len(group) > 1):
        trained = [entry for entry in group if not entry.config.is_ceiling]
        winners = (_winner(metric, trained) for metric in (*METRICS, cost_metric(trained)))
        found.append(Workload(tuple(group), tuple(winners)))
    return tuple(found)


def _work(config: Configuration, pairs: Iterable[Pair]) -> Identity:
    """A script on one device is of either scaling: of that of all whose baseline is like it."""
    if config.devices != 1 or not has_own_batches(config):
        return config.identity
    free, own = (_MAY_DIFFER, _HOW_LONG), config.identity
    beside = [p.multi for p in pairs if not differences(p.single.identity, own, *free)]
    is_known = len({multi.identity.get("scaling") for multi in beside}) == 1
    return identity_beside(config, beside[0]) if is_known else own


def sides(count: int) -> list[str]:
    """``A``, ``B`` and so on. Raises ValueError for more sweeps than letters."""
    if count > len(string.ascii_uppercase):
        raise ValueError(f"found {count} folders; allowed: {len(string.ascii_uppercase)} at most")
    return list(string.ascii_uppercase[:count])


def _winner(metric: Metric, entries: Sequence[Entry]) -> Winner:
    known = [entry for entry in entries if metric.values(entry)]
    without = tuple(entry for entry in entries if not metric.values(entry))
    if len(known) < 2:
        return Winner(metric, None, (), None, without, f"fewer than two have {metric.needs}")
    kinds = {entry.config.is_cpu for entry in known}
    if metric.key == "peak_memory_per_device_mib" and len(kinds) > 1:
        return Winner(metric, None, (), None, without, "of CPUs and of GPUs it is another memory")
    if metric.key == "step_time_p50_ms" and len({entry.config.global_batch for entry in known}) > 1:
        return Winner(metric, None, (), None, without, "samples a step differ: see samples/s")
    found = rank(known, metric.goodness, metric.ratio)
    if found.rivals:
        return Winner(metric, None, (found.first, *found.rivals), found.lead, without)
    return Winner(metric, found.first, (), found.lead, without)


@dataclass(frozen=True)
class ConcurrentTraining:
    """Cells of several tasks that trained at the same time."""

    side: str
    tasks: tuple[str, ...]
    """Labels, one a cell; of independent models in one cell, its own."""
    samples_per_s: Estimate
    """Of all together, while all of them trained: over rounds, or over times that they met."""
    seconds: float
    """How long they trained beside each other."""


_FEWEST_STEPS = 5
"""Steps of each cell in a time that is counted: fewer are no rate."""


def concurrent_trainings(side: str, analysis: Analysis) -> tuple[ConcurrentTraining, ...]:
    """What cells of a sweep that overlapped in time did in all, and cells of several models.

    Between any two moments at which one of them began or ended its timed steps, the same cells
    train. Samples count where their step ends; times with the same tasks are joined, and each set
    of runs is one value.
    """
    found = [
        ConcurrentTraining(
            side,
            (config.label,),
            figure,
            sum(run.throughput.seconds for run in config.runs if run.throughput),
        )
        for config in analysis.measured
        if config.is_ceiling and (figure := config.estimate("global_samples_per_s"))
    ]
    runs = [
        (config.label, run.cell.planned.name, ends, fed.samples / fed.steps)
        for config in analysis.measured
        for run in config.runs
        if (fed := run.throughput) and fed.samples and (ends := _timed_edges(run))
    ]
    moments = sorted({moment for _, _, ends, _ in runs for moment in (ends[0], ends[-1])})
    sums: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for begin, end in pairwise(moments):
        active = [run for run in runs if run[2][0] <= begin and run[2][-1] >= end]
        steps = [sum(begin < moment <= end for moment in run[2][1:]) for run in active]
        if len(active) < 2 or min(steps) < _FEWEST_STEPS:
            continue
        key = tuple(sorted((label, name) for label, name, _, _ in active))
        total = sums.setdefault(key, [0.0, 0.0])
        total[0] += sum(n * run[3] for n, run in zip(steps, active, strict=True))
        total[1] += end - begin
    for labels, keys in grouped(sums, lambda key: tuple(label for label, _ in key)).items():
        totals = [sums[key] for key in keys]
        rates = estimate_positive([samples / seconds for samples, seconds in totals])
        found.append(ConcurrentTraining(side, labels, rates, sum(seconds for _, seconds in totals)))
    return tuple(found)


def _timed_edges(run: Run) -> list[float]:
    """Unix time at which rank 0's first timed step began and each of them ended."""
    warm_up = run.cell.warm_up
    if not run.cell.steps or warm_up is None:
        return []
    return [float(moment) for moment in step_edges_s(run.cell.steps[0])[warm_up.timed_from :]]


def devices_of(analysis: Analysis) -> Mapping[str, int]:
    """Kind of device to the most that one cell had of it."""
    found: Counter[str] = Counter()
    for config in analysis.measured:
        for run in config.runs:
            found |= Counter(rank.device.name for rank in run.ranks)
    return found

"""The best measured configuration of each number of devices, and the speedup one would use.

The batch that is best on one device is not best on several, so the speedup between two equal
batches is nobody's. Candidates may differ in how they run and in their batch; in the optimizer and
the precision only where losses show that they learn (docs/method.md has the rules).

With the true speeds s of the candidates a on n devices and b on one, the speedup one would use is

    R = max over a of min over b of s(a) / s(b)

If the intervals [L, U] of all s(a) / s(b) hold, R lies in [max min L, max min U]. The lower end is
wrong only if an interval beside the one best b is, and the upper only if one of the best a is: one
of as many as the larger side has candidates, whichever these are. So it is at 95 % with intervals
corrected for that many (Bonferroni), and no winner is taken for granted that noise may have made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import scipy

from scalewise.analysis.choice import SAMPLES_PER_S, Speed, find_fastest, samples_per_s
from scalewise.analysis.comparability import MIN_RUNS, Difference, differences
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.losses import LossCurve, Reached, recent_loss, samples_to
from scalewise.analysis.model import is_monitored
from scalewise.analysis.scaling import (
    MIN_LOSS_INCREASE,
    is_ceiling,
    loss_at_equal_samples,
    rate_ratio,
)
from scalewise.analysis.statistics import Interval, RatioEstimate, bonferroni, finite_exp
from scalewise.analysis.verdict import Judgement, adaptive, judge

_HOW_IT_RUNS = (
    "execution", "batch", "scaling", "accumulate_grad_batches", "dataset.loader", "max_steps",
    "max_epochs", "measure.min_time_s", "warmup_steps",
)  # fmt: skip
"""Fields of identity in which candidates may differ, beside devices and strategy."""

_WHAT_IS_LEARNT = ("optimizer", "precision")
"""Fields in which they may differ only where their losses are compared."""

_SAME_MATHS = ("single", "ddp", "fsdp", "tensor", "pipeline", "heterogeneous")
"""Kinds of strategy that learn what one device does of the same batches, but for rounding."""


@dataclass(frozen=True)
class EqualLoss:
    """The training loss that all candidates reach, and when each does."""

    name: str
    level: float
    reached: Mapping[str, Reached]
    """``config_id`` to its samples; one and the same of candidates with the same training."""


@dataclass(frozen=True)
class Best:
    """The best candidate of one number of devices."""

    devices: int
    config: Configuration
    rivals: tuple[Configuration, ...]
    """Not shown to be slower."""
    candidates: int
    speedup: RatioEstimate | None
    """The best of these over the best of one device, whichever those are; None of one device."""
    judgement: Judgement | None


@dataclass(frozen=True)
class BestOfEach:
    """The best of each number of devices, fewest first; the first is of one device."""

    rows: tuple[Best, ...]
    equal_loss: EqualLoss | None
    """What it is best at: the time to this loss; None for samples/s."""
    left_out: tuple[tuple[Configuration, str], ...]
    """Candidates that learn clearly less than the fastest on one device, and how that shows."""
    not_compared: tuple[Configuration, ...]
    """Candidates whose loss could not be compared with that one's."""
    apart: tuple[tuple[Configuration, tuple[str, ...]], ...] = ()
    """Of the same model and data, but no candidates, with the fields that stand in the way."""


def find_best(configs: Sequence[Configuration], min_efficiency: float) -> tuple[BestOfEach, ...]:
    """Where some number of devices has several candidates; ``configs`` are timed and sound."""
    found: list[BestOfEach] = []
    candidates = [c for c in configs if _is_candidate(c)]
    groups = []
    for group in _groups(candidates, _WHAT_IS_LEARNT):
        equal = _equal_loss(group)
        groups += [(part, equal) for part in ([group] if equal else _groups(group, ()))]
    taken = {config.config_id for group, _ in groups for config in group}
    rest = [config for config in candidates if config.config_id not in taken]
    for group, equal in groups:
        best = _best(group, equal, min_efficiency)
        apart = [
            (config, tuple(d.field for d in _differences(group[0], config)))
            for config in rest
            if all(config.name(one) == group[0].name(one) for one in ("model", "dataset"))
        ]
        found += [replace(best, apart=tuple(apart))] if best else []
    return tuple(found)


def _is_candidate(config: Configuration) -> bool:
    rates = config.values("samples_per_s")
    few = config.aside and len(config.runs) < MIN_RUNS
    return bool(rates) and min(rates) > 0 and not is_ceiling(config) and not few


def _groups(configs: Sequence[Configuration], learnt: Sequence[str]) -> list[list[Configuration]]:
    """Configurations that are candidates beside each other; unknown fields equal nothing."""
    groups: list[list[Configuration]] = []
    for config in configs:
        for group in groups:
            if not _differences(group[0], config, learnt):
                group.append(config)
                break
        else:
            groups.append([config])
    return [group for group in groups if _is_asked(group)]


def _differences(
    left: Configuration, right: Configuration, learnt: Sequence[str] = ()
) -> list[Difference]:
    return differences(left.identity, right.identity, also=(*_HOW_IT_RUNS, *learnt))


def _is_asked(group: Sequence[Configuration]) -> bool:
    devices = [config.devices for config in group]
    return len(set(devices)) > 1 and 1 in devices and len(set(devices)) < len(devices)


def _best(
    group: Sequence[Configuration], equal: EqualLoss | None, min_efficiency: float
) -> BestOfEach | None:
    less: dict[str, str | None] = {}
    if equal is None:
        reference = max((c for c in group if c.devices == 1), key=samples_per_s)
        less = {c.config_id: _learns_less(c, reference) for c in group if c is not reference}
    left_out = tuple((c, how) for c in group if (how := less.get(c.config_id)))
    not_compared = tuple(c for c in group if less.get(c.config_id, "") is None)
    speed = SAMPLES_PER_S if equal is None else _time_to_loss(equal)
    by_devices: dict[int, list[Configuration]] = {}
    for config in sorted(group, key=lambda c: c.devices or 0):
        if not less.get(config.config_id):
            by_devices.setdefault(config.devices or 0, []).append(config)
    if len(by_devices) < 2:
        return None
    rows = []
    for devices, candidates in by_devices.items():
        speedup = judgement = None
        if devices > 1:
            speedup = _best_over_best(candidates, by_devices[1], speed)
            judgement = _judge(speedup, candidates[0], devices, min_efficiency)
        found = find_fastest(candidates, speed)
        rows.append(Best(devices, found.config, found.rivals, len(candidates), speedup, judgement))
    return BestOfEach(tuple(rows), equal, left_out, not_compared)


def _judge(
    speedup: RatioEstimate, config: Configuration, devices: int, min_efficiency: float
) -> Judgement:
    asked = config.cells[0].config
    repeats = adaptive(asked)
    cap = None if repeats is None else repeats.cap
    return judge(speedup, devices, min_efficiency, monitored=is_monitored(asked), cap=cap)


def _best_over_best(
    above: Sequence[Configuration], below: Sequence[Configuration], speed: Speed
) -> RatioEstimate:
    level = bonferroni(max(len(above), len(below)))
    ratios = [[speed.ratio(a, b, level) for b in below] for a in above]
    every = [ratio for row in ratios for ratio in row]
    found = max((min(row, key=lambda r: r.value) for row in ratios), key=lambda r: r.value)
    n = (min(r.n[0] for r in every), min(r.n[1] for r in every))
    paired = all(r.paired for r in every)
    ends = [[r.interval for r in row if r.interval is not None] for row in ratios]
    if found.df is None or any(len(row) < len(below) for row in ends):
        return replace(found, n=n, interval=None, p_value=None, paired=paired, log_error=None)
    low = max(min(one.low for one in row) for row in ends)
    high = max(min(one.high for one in row) for row in ends)
    # Of the whole choice: what more runs would bring is told from it.
    half = (math.log(high) - math.log(low)) / 2
    error = half / float(scipy.stats.t.ppf(0.975, found.df))
    return replace(
        found, n=n, interval=Interval(low, high), p_value=None, paired=paired, log_error=error
    )


def _learns_less(config: Configuration, reference: Configuration) -> str | None:
    """How it shows that ``config`` learns clearly less; empty if it does not, None if unknown.

    Validation losses are compared as those of a pair are. A training loss is that of one batch,
    so means over the last half of equal samples are compared, beyond their 95 % interval.
    """
    found = loss_at_equal_samples(config, reference)
    if found is not None and found.name.startswith("val"):
        if found.ratio is None or found.ratio.interval is None:
            return None
        told = f"{found.name} at {found.where}: {found.multi:.3g} against {found.single:.3g}"
        return told if found.learns_less else ""
    curves = _training_curves([config, reference])
    if curves is None:
        return None
    own, other = (each[0] for each in curves)
    samples = min(own.samples[-1], other.samples[-1])
    recent = [recent_loss(curve, samples) for curve in (own, other)]
    if recent[0] is None or recent[1] is None:
        return None
    a, b = recent[0], recent[1]
    half = math.hypot(*(float(scipy.stats.t.ppf(0.975, r.df)) * r.error for r in (a, b)))
    if a.mean - b.mean <= max(half, MIN_LOSS_INCREASE * abs(b.mean)):
        return ""
    return f"{own.name} towards {samples:,} samples: {a.mean:.3g} against {b.mean:.3g}"


def _training_curves(group: Sequence[Configuration]) -> list[list[LossCurve]] | None:
    """A curve of each run, all of one loss; None where a run has none."""
    runs = [run for config in group for run in config.runs]
    # Damaged metrics have a history, and no loss that was reached.
    if any(run.loss is None or run.loss_history is None for run in runs):
        return None
    curves = [[run.loss_history for run in c.runs if run.loss_history] for c in group]
    return curves if len({curve.metric for each in curves for curve in each}) == 1 else None


def _equal_loss(group: Sequence[Configuration]) -> EqualLoss | None:
    """When every candidate reaches the loss that all do; None where a curve does not tell it.

    None too where all train alike: then samples/s say it, without the noise of the batches.
    """
    trainings: dict[tuple[object, ...], list[str]] = {}
    for config in group:
        trainings.setdefault(_training(config), []).append(config.config_id)
    curves = _training_curves(group)
    if curves is None or len(trainings) < 2:
        return None
    # Before its end, so that of every curve as much lies beyond the level.
    lasts = [recent_loss(c, int(c.samples[-1] / math.sqrt(2))) for each in curves for c in each]
    if any(last is None for last in lasts):
        return None
    level = max(last.mean for last in lasts if last is not None)
    reached: dict[str, list[Reached]] = {}
    for config, own in zip(group, curves, strict=True):
        found = [one for curve in own if (one := samples_to(curve, level)) is not None]
        if len(found) < len(own):
            return None
        reached[config.config_id] = found
    pooled: dict[str, Reached] = {}
    for ids in trainings.values():
        # Runs of one seed see the same batches: their noise is one, and no mean lessens it.
        each = [one for config_id in ids for one in reached[config_id]]
        place, error = (
            sum(values) / len(each)
            for values in ([one.log_samples for one in each], [one.error for one in each])
        )
        mean = Reached(place, error, min(one.df for one in each))
        pooled |= dict.fromkeys(ids, mean)
    return EqualLoss(curves[0][0].name, level, pooled)


def _training(config: Configuration) -> tuple[object, ...]:
    """What decides after how many samples a loss is reached; equal of those that learn alike."""
    fields, result = config.identity, config.runs[0].cell.result
    learnt = [(k, v) for k, v in fields.items() if k.partition(".")[0] in _WHAT_IS_LEARNT]
    strategy = fields.get("strategy.kind", fields.get("strategy.name", "single"))
    whole = fields.get("strategy.compression", "none") == "none"
    return (
        result and result.global_batch_size,
        fields.get("accumulate_grad_batches"),
        "same" if strategy in _SAME_MATHS and whole else strategy,
        *sorted(learnt),
    )


def _time_to_loss(equal: EqualLoss) -> Speed:
    """How often a second the loss would be reached: samples/s over the samples that it takes."""

    def of(config: Configuration) -> float:
        return samples_per_s(config) / math.exp(equal.reached[config.config_id].log_samples)

    def ratio(above: Configuration, below: Configuration, confidence: float) -> RatioEstimate:
        rates = rate_ratio(above, below, confidence)
        a, b = equal.reached[above.config_id], equal.reached[below.config_id]
        if a is b:
            return rates
        value = rates.value * math.exp(b.log_samples - a.log_samples)
        interval = None
        if rates.interval is not None:
            # The rates' half as they state it, which is wider under repeats=auto.
            halves = [math.log(rates.interval.high / rates.value)]
            halves += [float(scipy.stats.t.ppf(0.5 + confidence / 2, r.df)) * r.error
                       for r in (a, b)]  # fmt: skip
            centre, half = math.log(value), math.hypot(*halves)
            interval = Interval(finite_exp(centre - half), finite_exp(centre + half), confidence)
        return replace(rates, value=value, interval=interval, p_value=None)

    return Speed(of, ratio)

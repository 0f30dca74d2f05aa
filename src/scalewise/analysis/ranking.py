"""Rows ranked by a figure: the fastest, numbers of devices side by side, the best of each, and the
rows that learned best.

Numbers of devices stand in one ladder where all of them have the same single-device baseline and
strategy, and no field of identity in which they differ but the devices.

With samples/s ``r(n)`` of n devices and ``r(m)`` of the next smaller number, the gain is
``r(n) / r(m)``, and each added device brings, of what one of the m does,

    (r(n) / r(m) - 1) * m / (n - m)

which is 1 where the added devices work as well as those before them. Both rise together, so the
ends of the gain's interval are those of the other.

The batch that is best on one device is not best on several: docs/method.md has the rules of who is
a candidate.

With the true speeds s of the candidates a on n devices and b on one, the speedup one would use is

    R = max over a of min over b of s(a) / s(b)

If the intervals [L, U] of all s(a) / s(b) hold, R lies in [max min L, max min U]. The lower end is
wrong only if an interval beside the one best b is, and the upper only if one of the best a is: one
of as many as the larger side has candidates, whichever these are. So it is at 95 % with intervals
corrected for that many (Bonferroni), and no winner is taken for granted that noise may have made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Generic, Literal, TypeVar

import scipy

from scalewise.analysis.comparability import (
    MIN_RUNS,
    differences,
    grouped,
    grouped_alike,
    shared_part,
)
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.figures import bounding
from scalewise.analysis.losses import SamplesToLoss
from scalewise.analysis.run import RUN_FIGURES
from scalewise.analysis.scaling import Pair, judge_config, loss_at_equal_samples, rate_ratio
from scalewise.analysis.statistics import (
    VERDICT_RUNS,
    Interval,
    RatioEstimate,
    bonferroni,
    estimate_ratio,
    finite_exp,
)
from scalewise.analysis.verdict import Judgement
from scalewise.config import DEFAULT_OBJECTIVE, Mode, known_mode, of_validation

Ranked = TypeVar("Ranked")


@dataclass(frozen=True)
class Speed(Generic[Ranked]):
    """What rows are ranked by; more is better."""

    of: Callable[[Ranked], float]
    ratio: Callable[[Ranked, Ranked, float], RatioEstimate]
    """Of the first over the second, with an interval of this confidence."""


@dataclass(frozen=True)
class Ranking(Generic[Ranked]):
    """Rows, the fastest first, and those that may be as fast."""

    rows: tuple[Ranked, ...]
    rivals: tuple[Ranked, ...]
    """Not shown to be slower than the first, the fastest of them first."""
    lead: RatioEstimate | None
    """Of the first over its first rival, else over the second; None of one row."""

    @property
    def first(self) -> Ranked:
        return self.rows[0]


def samples_per_s(config: Configuration) -> float:
    """The mean over runs; 0 where none has it."""
    found = config.estimate("global_samples_per_s")
    return found.value if found is not None else 0.0


SAMPLES_PER_S = Speed(samples_per_s, rate_ratio)


def rank(rows: Iterable[Ranked], by: Speed[Ranked]) -> Ranking[Ranked]:
    """Sort rows that have the figure, one or more.

    A row is beaten if the first's ratio to it lies above 1 with its whole interval, of three runs
    or more. The intervals hold for all rows together (Bonferroni).
    """
    first, *others = sorted(rows, key=by.of, reverse=True)
    level = bonferroni(len(others))
    ratios = [by.ratio(first, other, level) for other in others]
    near = [i for i, ratio in enumerate(ratios) if not _is_won(ratio)]
    lead = ratios[near[0] if near else 0] if ratios else None
    return Ranking((first, *others), tuple(others[i] for i in near), lead)


def _is_won(ratio: RatioEstimate) -> bool:
    interval = ratio.interval
    return min(ratio.n) >= VERDICT_RUNS and interval is not None and interval.low > 1


Step = Literal["faster", "slower", "not shown"]


@dataclass(frozen=True)
class Gain:
    """A number of devices beside the next smaller one."""

    smaller: int
    """Devices of that one."""
    ratio: RatioEstimate
    """Samples/s over those of the smaller number."""
    added: RatioEstimate
    """What each added device brings, of what one of the smaller number does; may be negative."""

    @property
    def step(self) -> Step:
        """What the whole interval says of the larger number; without an interval nothing."""
        interval = self.ratio.interval
        if interval is None or interval.low <= 1 <= interval.high:
            return "not shown"
        return "faster" if interval.low > 1 else "slower"


@dataclass(frozen=True)
class LadderRow:
    """One number of devices in a ladder."""

    config: Configuration
    devices: int
    pair: Pair | None
    """None of the single device."""
    gain: Gain | None
    """None of the single device, and where the next smaller number is not comparable."""


Ladder = tuple[LadderRow, ...]
"""One workload and strategy from one device up; more devices below fewer."""


def ladders(pairs: Sequence[Pair]) -> tuple[Ladder, ...]:
    """Every workload and strategy that ran on one device and on several, in the pairs' order.

    Independent models are left out: they are a bound, and nothing that one could choose. So are
    invalid pairs.
    """
    sound = (pair for pair in pairs if not pair.multi.is_ceiling and not pair.invalid)
    groups = grouped(sound, lambda pair: (pair.single.config_id, _same(pair.multi)))
    return tuple(map(_ladder, groups.values()))


def _same(config: Configuration) -> tuple[tuple[str, str], ...]:
    """What those of one ladder share: the strategy's settings but its devices, and the scaling,
    which a script of the user's own may be read as one or the other."""
    fields = {k: v for k, v in config.identity.items() if k.startswith("strategy.")}
    fields.pop("strategy.devices", None)
    return tuple(sorted({**fields, "scaling": config.identity.get("scaling", "")}.items()))


def _ladder(pairs: Sequence[Pair]) -> Ladder:
    found = [LadderRow(pairs[0].single, 1, None, None)]
    for pair in sorted(pairs, key=lambda p: p.devices):
        smaller = [rung for rung in found if rung.devices < pair.devices]
        found.append(
            LadderRow(pair.multi, pair.devices, pair, _gain(pair, fastest_of_each(smaller)[-1]))
        )
    return tuple(found)


def fastest_of_each(rungs: Sequence[LadderRow]) -> tuple[LadderRow, ...]:
    """One of each number of devices, in their order.

    Of two with as many (other GPUs of the host) neither is the other's next, and nobody who adds
    devices would begin with the slower one.
    """
    each = grouped(rungs, lambda rung: rung.devices).values()
    return tuple(max(same, key=lambda rung: samples_per_s(rung.config)) for same in each)


def devices_to_take(ladder: Ladder) -> LadderRow:
    """The most devices that pay and are faster than the next smaller number; else one device."""
    worth = [
        rung
        for rung in fastest_of_each(ladder)
        if rung.pair is not None
        and rung.pair.verdict == "pays"
        and (rung.gain is None or rung.gain.step == "faster")
    ]
    return worth[-1] if worth else ladder[0]


def _gain(pair: Pair, below: LadderRow) -> Gain | None:
    if below.pair is not None and differences(below.config.identity, pair.multi.identity):
        return None
    ratio = pair.speedup if below.pair is None else rate_ratio(pair.multi, below.config)
    return Gain(below.devices, ratio, _of_each_added(ratio, below.devices, pair.devices))


def _of_each_added(ratio: RatioEstimate, smaller: int, devices: int) -> RatioEstimate:
    def of_each(value: float) -> float:
        return (value - 1) * smaller / (devices - smaller)

    found = bounding(ratio)
    interval = found and Interval(of_each(found.low), of_each(found.high), found.confidence)
    return replace(ratio, value=of_each(ratio.value), interval=interval, p_value=None)


_HOW_IT_RUNS = (
    "execution", "batch", "scaling", "accumulate_grad_batches", "dataset.loader", "max_steps",
    "max_epochs", "measure.min_time_s", "warmup_steps",
)  # fmt: skip
"""Fields of identity in which candidates may differ, beside devices and strategy."""
_WHAT_IS_LEARNT = ("optimizer", "precision")
"""Fields in which they may differ only where the time to equal loss is told."""
_SAME_MATHS = ("single", "ddp", "fsdp", "pipeline", "heterogeneous")
"""Kinds of strategy that learn what one device does of the same batches, but for rounding."""


@dataclass(frozen=True)
class EqualLoss:
    """The training loss that all candidates reach, and when each does."""

    name: str
    level: float
    reached: Mapping[str, SamplesToLoss]
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
    seconds_to_loss: float | None
    """At the rate of the timed steps, without start-up and validation; None without that loss."""


@dataclass(frozen=True)
class BestOfEach:
    """The best of each number of devices, fewest first; the first is of one device."""

    rows: tuple[Best, ...]
    equal_loss: EqualLoss | None
    """What it is best at: the time to this loss; None for samples/s."""
    left_out: tuple[Configuration, ...]
    """Candidates that learn clearly less at equal samples than the fastest on one device."""


def find_best(configs: Sequence[Configuration]) -> tuple[BestOfEach, ...]:
    """Where some number of devices has several candidates; ``configs`` are timed and sound."""
    found = []
    for group in _groups([c for c in configs if _is_candidate(c)], _WHAT_IS_LEARNT):
        equal = _equal_loss(group)
        for part in [group] if equal else _groups(group, ()):
            best = _best(part, equal)
            found += [best] if best else []
    return tuple(found)


def _is_candidate(config: Configuration) -> bool:
    rates = config.values("global_samples_per_s")
    few = config.set_aside and len(config.runs) < MIN_RUNS
    return bool(rates) and min(rates) > 0 and not config.is_ceiling and not few


def _groups(configs: Sequence[Configuration], learnt: Sequence[str]) -> list[list[Configuration]]:
    """Candidates beside each other, of one device and others, several of some number."""
    free = (*_HOW_IT_RUNS, *learnt)
    groups = grouped_alike(
        configs,
        lambda a, b: not differences(a.identity, b.identity, also=free),
        lambda config: shared_part(config.identity, also=free),
    )
    return [g for g in groups if 1 < len({c.devices for c in g}) < len(g) and _alone(g)]


def _alone(group: Sequence[Configuration]) -> list[Configuration]:
    return [config for config in group if config.devices == 1]


def _best(group: Sequence[Configuration], equal: EqualLoss | None) -> BestOfEach | None:
    left_out: tuple[Configuration, ...] = ()
    if equal is None:
        reference = max(_alone(group), key=samples_per_s)
        beside = ((c, loss_at_equal_samples(c, reference)) for c in group if c is not reference)
        left_out = tuple(c for c, loss in beside if loss is not None and loss.learns_less)
    speed = SAMPLES_PER_S if equal is None else _time_to_loss(equal)
    kept = (config for config in group if config not in left_out)
    by_devices = dict(sorted(grouped(kept, lambda c: c.devices or 0).items()))
    if len(by_devices) < 2:
        return None
    rows = []
    for devices, candidates in by_devices.items():
        speedup = judgement = None
        if devices > 1:
            speedup = _best_over_best(candidates, by_devices[1], speed)
            judgement = judge_config(candidates[0], speedup, None)
        found = rank(candidates, speed)
        seconds = 1 / speed.of(found.first) if equal else None
        rows.append(Best(devices, found.first, found.rivals, len(candidates), speedup, judgement,
                         seconds))  # fmt: skip
    return BestOfEach(tuple(rows), equal, left_out)


def _best_over_best(
    above: Sequence[Configuration], below: Sequence[Configuration], speed: Speed[Configuration]
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


def _equal_loss(group: Sequence[Configuration]) -> EqualLoss | None:
    """When every candidate reaches the loss that all do; None where a curve does not tell it.

    None too where all train alike: then samples/s say it, without the noise of the batches.
    """
    trainings = grouped(group, _training)
    runs = [run for config in group for run in config.runs]
    # Damaged metrics have a history, and no loss that was reached.
    curves = [run.loss_history for run in runs if run.loss and run.loss_history]
    metrics = {curve.metric for curve in curves}
    if len(trainings) < 2 or len(curves) < len(runs) or len(metrics) > 1:
        return None
    level = max(curve.lately(curve.samples[-1]) or math.inf for curve in curves)
    reached: dict[str, SamplesToLoss] = {}
    for same in trainings.values():
        # Runs of one seed see the same batches: their noise is one, and no mean lessens it.
        own = [run.loss_history for config in same for run in config.runs]
        places = [place for curve in own if curve and (place := curve.samples_to(level))]
        if len(places) < len(own):
            return None
        mean = SamplesToLoss(
            math.exp(fmean(math.log(place.samples) for place in places)),
            fmean(place.log_error for place in places),
            min(place.df for place in places),
        )
        reached |= dict.fromkeys((config.config_id for config in same), mean)
    return EqualLoss(curves[0].name, level, reached)


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


def _time_to_loss(equal: EqualLoss) -> Speed[Configuration]:
    """How often a second the loss would be reached: samples/s over the samples that it takes.

    Its intervals hold the noise of the batches of one seed; other seeds scatter more.
    """
    reached = equal.reached

    def ratio(above: Configuration, below: Configuration, confidence: float) -> RatioEstimate:
        rates = rate_ratio(above, below, confidence)
        a, b = reached[above.config_id], reached[below.config_id]
        if a is b or rates.interval is None:
            return rates.scaled(b.samples / a.samples)
        # The rates' half as they state it, which is wider under repeats=auto.
        halves = [math.log(rates.interval.high / rates.value)]
        halves += [
            float(scipy.stats.t.ppf(0.5 + confidence / 2, place.df)) * place.log_error
            for place in (a, b)
        ]
        value, spread = rates.value * b.samples / a.samples, finite_exp(math.hypot(*halves))
        interval = Interval(value / spread, value * spread, confidence)
        return replace(rates, value=value, interval=interval, p_value=None)

    return Speed(lambda config: samples_per_s(config) / reached[config.config_id].samples, ratio)


@dataclass(frozen=True)
class Objective:
    """A metric that modules logged, and which value is the better one."""

    metric: str
    mode: Mode
    was_typed: bool
    """Else it is the first score of validation that runs logged."""


def asked_in_vain(configs: Sequence[Configuration]) -> str | None:
    """An objective that was typed and that no run logged; None where there is none such."""
    typed = {config.setting("sweep.objective"): None for config in configs}
    known = {None, DEFAULT_OBJECTIVE, *RUN_FIGURES, *(k for one in configs for k in one.logged)}
    return next((key for key in typed if key not in known), None)


def objective_of(configs: Sequence[Configuration]) -> Objective | None:
    """What the rows of a sweep are to be ranked by; None where nobody says, or nothing has it."""
    if asked_in_vain(configs) is not None:
        return None
    logged = dict.fromkeys(key for config in configs for key in config.logged)
    for config in configs:
        key, mode = config.setting("sweep.objective"), config.setting("sweep.mode")
        if key != DEFAULT_OBJECTIVE and key in logged and (known := mode or known_mode(key)):
            return Objective(key, known, True)
    scores = ((key, known_mode(key)) for key in logged if of_validation(key))
    return next((Objective(key, mode, False) for key, mode in scores if mode is not None), None)


def rank_by(
    objective: Objective, configs: Sequence[Configuration]
) -> Iterator[Ranking[Configuration]]:
    """The rows of each data set that have the metric, two or more, the best first.

    Runs are samples by their seed, and are compared seed by seed where rows have the same ones.
    """
    having = [config for config in configs if config.estimate(objective.metric) is not None]
    for rows in grouped(having, lambda config: config.name("dataset")).values():
        if len(rows) > 1:
            yield rank(rows, _speed(objective))


def _speed(objective: Objective) -> Speed[Configuration]:
    sign = 1.0 if objective.mode == "max" else -1.0

    def value(config: Configuration) -> float:
        found = config.estimate(objective.metric)
        assert found is not None
        return sign * found.value

    def ratio(above: Configuration, below: Configuration, level: float) -> RatioEstimate:
        """How much better the first is; without an interval where a value is not positive."""
        sides = above.rounds(objective.metric), below.rounds(objective.metric)
        if objective.mode == "min":
            sides = sides[::-1]
        each = [[*(s.values() if isinstance(s, dict) else s)] for s in sides]
        if min(min(one) for one in each) <= 0:
            n = (len(each[0]), len(each[1]))
            return RatioEstimate(1.0, n, None, None)
        return estimate_ratio(*sides, level)

    return Speed(value, ratio)

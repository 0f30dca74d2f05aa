"""Do more devices pay? Speedup and efficiency against the single-device baseline, and a verdict.

A multi-device configuration is compared with the one single-device configuration of the same
sweep that equals it in every field of identity but devices and strategy; else the comparison is
refused, with the fields that differ (docs/method.md). Speedup is the ratio of global samples/s,
under strong scaling (same global batch) and weak scaling (same batch a device) alike;
``efficiency = speedup / devices``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalewise.analysis.comparability import ENOUGH_RUNS, Difference, differences
from scalewise.analysis.configuration import Configuration, identity_beside, said_of
from scalewise.analysis.labels import factor, interval_words
from scalewise.analysis.model import is_monitored
from scalewise.analysis.statistics import (
    RatioEstimate,
    detectable_effect,
    estimate_positive,
    estimate_ratio,
    holm,
)
from scalewise.analysis.validity import Found, Invalid
from scalewise.analysis.verdict import (
    MIN_EFFICIENCY,
    Judgement,
    SeedLabel,
    adaptive,
    estimate_at,
    judge,
    judge_at,
    last_look,
    nominal_level,
    seed_label,
    way_to_get,
)


def is_ceiling(config: Configuration) -> bool:
    """Whether its ranks trained models of their own: a bound, and no way to train one model."""
    results = [run.cell.result for run in config.runs]
    return any(result is not None and result.models > 1 for result in results)


def under_ceiling(
    config: Configuration, configs: Sequence[Configuration]
) -> tuple[Configuration, RatioEstimate] | None:
    """The independent replicas that differ from ``config`` in the strategy alone, and its
    samples/s over theirs."""
    own = config.values("samples_per_s")
    if is_ceiling(config) or (config.devices or 1) < 2 or config.invalid or not own:
        return None
    for other in configs:
        most = other.values("samples_per_s")
        if not most or not is_ceiling(other) or other.invalid:
            continue
        if not differences(config.identity, other.identity, "strategy"):
            return other, estimate_ratio(own, most)
    return None


def rate_ratio(above: Configuration, below: Configuration) -> RatioEstimate:
    """Samples/s of ``above`` over those of ``below``.

    Runs that ``repeats=auto`` added until a verdict was reached carry the price of having looked.
    """
    rates = above.values("samples_per_s"), below.values("samples_per_s")
    asked = adaptive(above.cells[0].config)
    return estimate_ratio(*rates) if asked is None else estimate_at(*rates, cap=asked.cap)


LEARNS_LESS_FROM = 0.01
"""Share of the single device's loss from which a higher one is said: seeds that are equal make
intervals of no width, and the order of a sum alone moves a loss by less."""


@dataclass(frozen=True)
class LossAtEqualSamples:
    """The loss both sides have reached once they have fed the same number of samples."""

    name: str
    """Of the side with several devices: whose loss it is stands there, where it is not plain."""
    samples: int
    single: float
    multi: float
    ratio: RatioEstimate | None = None
    """``multi / single`` with its interval over runs; None where a loss is not positive."""

    @property
    def learns_less(self) -> bool:
        """Whether several devices reach a higher loss, beyond the interval and 1 % of it."""
        interval = self.ratio.interval if self.ratio else None
        return interval is not None and interval.low > 1 + LEARNS_LESS_FROM


@dataclass(frozen=True)
class Pair:
    """A multi-device configuration beside its single-device baseline."""

    multi: Configuration
    single: Configuration
    devices: int
    speedup: RatioEstimate
    efficiency: RatioEstimate
    judgement: Judgement
    seed_label: SeedLabel
    loss: LossAtEqualSamples | None
    statistical: Judgement
    """What the interval alone says, of a ceiling too."""
    doubts: tuple[str, ...] = ()
    """Reasons outside of the interval to doubt the speedup; they stand in ``judgement`` too."""
    p_value_holm: float | None = None
    """That the speedup is 1, adjusted for all pairs of the sweep; None with one run a side."""
    invalid: Found = ()
    """Why its verdict is *invalid*; empty for every other verdict."""


@dataclass(frozen=True)
class Refused:
    """A multi-device configuration that nothing may be compared with."""

    multi: Configuration
    reason: str
    differing: tuple[Difference, ...] = ()
    """From the nearest single-device configuration."""


def pair_all(
    configs: Sequence[Configuration], min_efficiency: float = MIN_EFFICIENCY
) -> tuple[tuple[Pair, ...], tuple[Refused, ...]]:
    """Pair every multi-device configuration that has a run with its single-device baseline."""
    singles = [c for c in configs if c.devices == 1]
    pairs: list[Pair] = []
    refused: list[Refused] = []
    for multi in configs:
        if multi.devices == 1 or not multi.runs:
            continue
        found: Pair | Refused
        try:
            found = _pair(multi, singles, min_efficiency)
        except (ArithmeticError, ValueError) as error:  # it refuses this pair, not the report
            found = Refused(multi, f"its speedup cannot be computed: {error}")
        if isinstance(found, Pair):
            pairs.append(found)
        else:
            refused.append(found)
    return _adjusted(pairs), tuple(refused)


def _pair(
    multi: Configuration, singles: Sequence[Configuration], min_efficiency: float
) -> Pair | Refused:
    if not singles:
        monitored = is_monitored(multi.cells[0].config)
        return Refused(multi, way_to_get("one device", monitored=monitored))
    ran = [s for s in singles if s.runs]
    single = min(ran or singles, key=lambda s: len(_differing(s, multi)))
    differing = _differing(single, multi)
    if differing:
        baseline = next((s for s in singles if not s.runs and _same_request(s, multi)), None)
        if baseline is not None:
            why = baseline.cells[-1].failure
            return Refused(multi, f"its single-device baseline {baseline.label} has no run: {why}")
        words = "; ".join(_in_words(d, single, multi) for d in differing[:4])
        more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
        way_out = _way_out(differing, single, multi)
        return Refused(multi, f"{single.label} differs in {words}{more}{way_out}", differing)
    for side in (multi, single):
        if side.aside and len(side.runs) < ENOUGH_RUNS:
            return Refused(multi, too_few(side))
    for side in (multi, single):
        if not side.values("samples_per_s"):
            why = side.runs[0].missing.get("throughput", "not measured")
            return Refused(multi, f"{side.label} has no throughput: {why}")
    speedup, devices, config = rate_ratio(multi, single), multi.runs[0].world_size, multi.cells[0]
    if adaptive(config.config) is None:
        monitored = is_monitored(config.config)
        judgement = judge(speedup, devices, min_efficiency, monitored=monitored)
    else:
        judgement = judge_at(speedup, devices, min_efficiency)
    return _measured_pair(multi, single, speedup, judgement)


def _invalid(multi: Configuration, single: Configuration) -> Found:
    """Why neither side may be judged; a baseline that means nothing makes its speedups so."""
    baseline = tuple(
        Invalid("invalid_baseline", f"its baseline {single.label} is invalid: {one.reason}")
        for one in single.invalid
    )
    return multi.invalid or baseline[:1]


def _differing(single: Configuration, multi: Configuration) -> tuple[Difference, ...]:
    return tuple(differences(identity_beside(single, multi), multi.identity))


def _in_words(difference: Difference, single: Configuration, multi: Configuration) -> str:
    """A batch with whose it is: 64 a device beside 64 in all are no equal ones."""
    scaling = multi.identity.get("scaling")
    if difference.field != "batch" or identity_beside(single, multi).get("scaling") != scaling:
        return str(difference)
    whose = "batch a device" if scaling == "weak" else "global batch"
    return f"{replace(difference, field=whose)}, with scaling={scaling}"


def _way_out(differing: Sequence[Difference], single: Configuration, multi: Configuration) -> str:
    """What would compare a pair that differs in its hosts or its batches a device alone; empty for
    any other."""
    if [d.field for d in differing] == ["host"]:
        return "; repeats of both on the same hosts compare them"
    if [d.field for d in differing] != ["batch"] or multi.identity.get("scaling") != "weak":
        return ""
    batches = [{r.cell.result and r.cell.result.global_batch_size for r in c.runs}
               for c in (single, multi)]  # fmt: skip
    return "; scaling=strong compares equal global batches" if batches[0] == batches[1] else ""


def too_few(config: Configuration) -> str:
    """Why a configuration has too few repeats left, once those unlike them are set aside."""
    reasons = dict.fromkeys(f"{a.cell.planned.name} {a.reason}" for a in config.aside)
    left, all_ = len(config.runs), len(config.runs) + len(config.aside)
    remedies = " and ".join(dict.fromkeys(a.remedy for a in config.aside))
    more = "Run it again" if is_monitored(config.cells[0].config) else "Add repeats"
    return (
        f"{left} of {all_} repeats of {config.label} is left, too few: {'; '.join(reasons)}. "
        f"{more} {remedies}"
    )


def _measured_pair(
    multi: Configuration, single: Configuration, speedup: RatioEstimate, judgement: Judgement
) -> Pair:
    devices, statistical = multi.runs[0].world_size, judgement
    loss = loss_at_equal_samples(multi, single)
    if is_ceiling(multi):
        judgement = Judgement(
            "ceiling",
            f"{devices} independent models, not one: the most that data parallelism could reach "
            f"on these devices is a speedup of {factor(speedup.value)}",
        )
    else:
        less = _less_learnt(multi, speedup, loss)
        reasons = [judgement.reason, less, said_of(multi)]
        judgement = replace(judgement, reason="; ".join(r for r in reasons if r))
    invalid = _invalid(multi, single)
    if invalid:
        judgement = Judgement("invalid", "; ".join(one.reason for one in invalid))
    return Pair(
        multi=multi,
        single=single,
        devices=devices,
        speedup=speedup,
        efficiency=speedup.scaled(1 / devices),
        judgement=judgement,
        seed_label=seed_label(speedup.value),
        loss=loss,
        invalid=invalid,
        statistical=statistical,
    )


def _less_learnt(
    multi: Configuration, speedup: RatioEstimate, loss: LossAtEqualSamples | None
) -> str:
    """That the time saved is paid in what was learnt; empty where it is not, or not known.

    Under weak scaling several devices take larger steps, of which there are fewer.
    """
    strong = multi.identity.get("scaling") == "strong"
    if not strong or speedup.value <= 1 or loss is None or not loss.learns_less:
        return ""
    assert loss.ratio is not None
    return (
        f"but it learns less: {loss.name} at {loss.samples:,} samples is "
        f"{factor(loss.ratio.value)} times the single device's ({interval_words(loss.ratio)})"
    )


def _same_request(single: Configuration, multi: Configuration) -> bool:
    """Whether what was asked for agrees: all that is known of a cell that never ran."""
    known = set(single.identity)
    return not [d for d in differences(single.identity, multi.identity) if d.field in known]


def _adjusted(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    tested = [p for p in pairs if p.speedup.p_value is not None]
    adjusted = holm([p.speedup.p_value for p in tested if p.speedup.p_value is not None])
    by_id = {p.multi.config_id: value for p, value in zip(tested, adjusted, strict=True)}
    return tuple(replace(p, p_value_holm=by_id.get(p.multi.config_id)) for p in pairs)


def loss_at_equal_samples(multi: Configuration, single: Configuration) -> LossAtEqualSamples | None:
    """Mean loss over runs at the largest number of samples that every run has fed.

    None for models that never met: none of them has seen the samples of the others.
    """
    if is_ceiling(multi):
        return None
    curves = [[r.loss for r in c.runs if r.loss is not None] for c in (single, multi)]
    everything = [curve for side in curves for curve in side]
    if not all(curves) or len({curve.metric for curve in everything}) != 1:
        return None
    samples = min(curve.samples[-1] for curve in everything)
    sides = [[curve.at(samples) for curve in side] for side in curves]
    known = [[value for value in side if value is not None] for side in sides]
    if not all(known):
        return None
    means = [sum(side) / len(side) for side in known]
    name = " / ".join(dict.fromkeys(curve.name for curve in curves[1]))
    positive = min(min(side) for side in known) > 0
    ratio = estimate_ratio(known[1], known[0]) if positive else None
    return LossAtEqualSamples(name, samples, means[0], means[1], ratio)


def detectable_speedup(pair: Pair) -> float | None:
    """The smallest speedup above 1 that such runs would show four times in five.

    To show one is an interval that excludes 1, at the level of the pair's own: 95 %, or under
    ``repeats=auto`` that of its last look, with the runs that this look saw. None where
    :func:`~scalewise.analysis.statistics.detectable_effect` has none.
    """
    above, below = pair.multi.values("samples_per_s"), pair.single.values("samples_per_s")
    asked = adaptive(pair.multi.cells[0].config)
    if asked is None:
        return detectable_effect(above, below)
    runs = last_look(min(len(above), len(below)), asked.cap)
    return detectable_effect(above[:runs], below[:runs], nominal_level(runs, cap=asked.cap))


WORTH_SAYING = 1.10
"""Ratio of the two speedups, either way, from which both are told."""


@dataclass(frozen=True)
class TypicalSpeedup:
    """A pair's speedup by median step times, and how far means and medians lie apart.

    A training takes what its mean step takes, so that is what verdicts judge. Where a few long
    steps make the mean, the speedup of the medians says what would be left without them.
    """

    of_means: float
    of_medians: float
    """Samples of a step over its median time, geometric means over runs."""
    multi_mean_over_median: float
    """Step time on several devices; 1 where no step is long."""
    single_mean_over_median: float

    @property
    def differs(self) -> bool:
        return abs(math.log(self.of_medians / self.of_means)) > math.log(WORTH_SAYING)


def typical_speedup(pair: Pair) -> TypicalSpeedup | None:
    """Both speedups; None where a side has no step times or a median of 0 ms."""
    sides = [_rate_and_mean_of_medians(config) for config in (pair.multi, pair.single)]
    if sides[0] is None or sides[1] is None:
        return None
    (above, multi), (below, single) = sides[0], sides[1]
    return TypicalSpeedup(pair.speedup.value, above / below, multi, single)


def _rate_and_mean_of_medians(config: Configuration) -> tuple[float, float] | None:
    """Samples/s of the slowest rank's median step, and its mean step over the median.

    Geometric means over the runs that have a median.
    """
    found = [run.throughput for run in config.runs if run.throughput]
    known = [one for one in found if one.step_time_ms.p50 > 0]
    if not known:
        return None
    rates = [one.samples / one.steps / (one.step_time_ms.p50 / 1e3) for one in known]
    ratios = [one.step_time_ms.mean / one.step_time_ms.p50 for one in known]
    return estimate_positive(rates).value, estimate_positive(ratios).value

"""Speedup and efficiency against the single-device baseline, with a verdict: do more devices pay?

A multi-device configuration is compared with the one single-device configuration of the same
sweep that equals it in every field of identity except devices and strategy. Otherwise the
comparison is refused, with the fields that differ (docs/method.md). Speedup is the ratio of global
samples/s, under strong scaling (same global batch) and weak scaling (same batch a device) alike;
``efficiency = speedup / devices``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scalewise.analysis.comparability import MIN_RUNS, Difference, differences
from scalewise.analysis.configuration import (
    Configuration,
    describe_inferred_scaling,
    identity_beside,
)
from scalewise.analysis.figures import factor, interval_words
from scalewise.analysis.losses import LossCurve, equal_samples
from scalewise.analysis.model import is_monitored
from scalewise.analysis.run import Run
from scalewise.analysis.statistics import (
    RatioEstimate,
    estimate_positive,
    estimate_ratio,
)
from scalewise.analysis.validity import Doubt, Invalid
from scalewise.analysis.verdict import (
    MIN_EFFICIENCY,
    Judgement,
    Money,
    SeedLabel,
    adaptive,
    estimate_at,
    judge,
    judge_money,
    sample_cost,
    seed_label,
    way_to_get,
)


def is_ceiling(config: Configuration) -> bool:
    """Whether each rank trained its own model: an upper bound, not a way to train one model."""
    results = [run.cell.result for run in config.runs]
    return any(result is not None and result.models > 1 for result in results)


def under_ceiling(
    config: Configuration, configs: Sequence[Configuration]
) -> tuple[Configuration, RatioEstimate] | None:
    """The ceiling that differs from ``config`` in its strategy alone, and the ratio to it.

    The ratio is samples/s of ``config`` over those of the ceiling. None if there is no ceiling.
    """
    rates = config.rounds("global_samples_per_s")
    if is_ceiling(config) or (config.devices or 1) < 2 or config.invalid or not rates:
        return None
    for ceiling in configs:
        ceiling_rates = ceiling.rounds("global_samples_per_s")
        if not ceiling_rates or not is_ceiling(ceiling) or ceiling.invalid:
            continue
        if not differences(config.identity, ceiling.identity, "strategy"):
            return ceiling, estimate_ratio(rates, ceiling_rates)
    return None


def rate_ratio(
    above: Configuration, below: Configuration, confidence: float = 0.95
) -> RatioEstimate:
    """Samples/s of ``above`` over those of ``below``, within rounds where both ran in rounds.

    With ``repeats=auto`` the interval is wider, since the runs were looked at several times.
    """
    rates = above.rounds("global_samples_per_s"), below.rounds("global_samples_per_s")
    repeats = adaptive(above.cells[0].config)
    if repeats is None:
        return estimate_ratio(*rates, confidence)
    return estimate_at(*rates, confidence, repeats.cap)


def round_s(above: Configuration, below: Configuration) -> float | None:
    """Seconds that a run of each takes, one after the other; None if a side has no result."""
    sides = [[r.cell.result.took_s for r in c.runs if r.cell.result] for c in (above, below)]
    return sum(sum(side) / len(side) for side in sides) if all(sides) else None


MIN_LOSS_INCREASE = 0.01
"""Smallest reported increase, as a share of the single device's loss.

Runs with equal seeds have intervals of no width, and the order of a sum alone moves a loss by less.
"""


@dataclass(frozen=True)
class LossAtEqualSamples:
    """The losses of both sides after the same number of samples."""

    name: str
    """Name of the loss on several devices."""
    samples: int
    single: float
    multi: float
    ratio: RatioEstimate | None = None
    """``multi / single`` with its interval over runs; None if a loss is not positive."""
    interpolated: bool = False
    """Whether a run logged no loss at ``samples``: it is on the line between those around."""
    in_training: bool = False
    """Whether it is a mean over batches of the training set, as validation was at other samples."""

    @property
    def where(self) -> str:
        return f"{self.samples:,} samples" + (" (interpolated)" if self.interpolated else "")

    @property
    def learns_less(self) -> bool:
        """Whether several devices reach a higher loss, beyond the interval and 1 %.

        Dropout alone moves a mean over few training batches by more, alike in runs of equal seeds.
        """
        interval = self.ratio.interval if self.ratio and not self.in_training else None
        return interval is not None and interval.low > 1 + MIN_LOSS_INCREASE


@dataclass(frozen=True)
class Pair:
    """A multi-device configuration beside its single-device baseline."""

    multi: Configuration
    single: Configuration
    devices: int
    speedup: RatioEstimate
    efficiency: RatioEstimate
    cost_ratio: RatioEstimate
    """Cost of a sample over the single device's, at equal prices: ``devices / speedup``."""
    money: Money
    """What the whole interval of that says; unknown where the speedup is invalid or a ceiling."""
    judgement: Judgement
    seed_label: SeedLabel | None
    loss: LossAtEqualSamples | None
    statistical: Judgement
    """The judgement by the interval alone, also for a ceiling."""
    doubts: tuple[Doubt, ...] = ()
    """Other reasons to doubt the speedup; ``judgement`` includes them."""
    invalid: tuple[Invalid, ...] = ()
    """Why the verdict is *invalid*; empty for every other verdict."""


@dataclass(frozen=True)
class Refused:
    """A multi-device configuration without a comparable baseline."""

    multi: Configuration
    reason: str
    differing: tuple[Difference, ...] = ()
    """Differences from the nearest single-device configuration."""


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
        result: Pair | Refused
        try:
            result = _pair(multi, singles, min_efficiency)
        except (ArithmeticError, ValueError) as error:  # refuses this pair, not the report
            result = Refused(multi, f"its speedup cannot be computed: {error}")
        if isinstance(result, Pair):
            pairs.append(result)
        else:
            refused.append(result)
    return tuple(pairs), tuple(refused)


def _pair(
    multi: Configuration, singles: Sequence[Configuration], min_efficiency: float
) -> Pair | Refused:
    if not singles:
        monitored = is_monitored(multi.cells[0].config)
        return Refused(multi, way_to_get("one device", monitored=monitored))
    ran = [s for s in singles if s.runs]
    single = min(ran or singles, key=lambda s: len(_find_differences(s, multi)))
    differing = _find_differences(single, multi)
    if differing:
        baseline = next((s for s in singles if not s.runs and _same_request(s, multi)), None)
        if baseline is not None:
            why = baseline.cells[-1].ending.message
            return Refused(multi, f"its single-device baseline {baseline.label} has no run: {why}")
        words = "; ".join(_describe_difference(d, single, multi) for d in differing[:4])
        more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
        suggestion = _suggest_comparison(differing, single, multi)
        return Refused(
            multi, f"its baseline {single.label} differs in {words}{more}{suggestion}", differing
        )
    for side in (multi, single):
        if side.set_aside and len(side.runs) < MIN_RUNS:
            return Refused(multi, explain_too_few_runs(side))
    for side in (multi, single):
        if not side.values("global_samples_per_s"):
            why = side.runs[0].missing.get("throughput", "not measured")
            return Refused(multi, f"no throughput of {side.label}: {why}")
    speedup = rate_ratio(multi, single)
    judgement = judge_config(multi, speedup, min_efficiency, round_s(multi, single))
    return _build_pair(multi, single, speedup, judgement)


def judge_config(
    config: Configuration, speedup: RatioEstimate, min_efficiency: float, round_s: float | None
) -> Judgement:
    """The verdict on ``speedup``, in words for how ``config`` was run and repeated."""
    asked = config.cells[0].config
    repeats = adaptive(asked)
    return judge(
        speedup,
        config.runs[0].world_size,
        min_efficiency,
        monitored=is_monitored(asked),
        cap=None if repeats is None else repeats.cap,
        round_s=round_s,
    )


def _find_differences(single: Configuration, multi: Configuration) -> tuple[Difference, ...]:
    return tuple(differences(identity_beside(single, multi), multi.identity))


def _describe_difference(
    difference: Difference, single: Configuration, multi: Configuration
) -> str:
    """Describe a difference; a batch also by its kind, as 64 a device are not 64 in all."""
    scaling = multi.identity.get("scaling")
    if difference.field != "batch" or identity_beside(single, multi).get("scaling") != scaling:
        return str(difference)
    whose = "batch a device" if scaling == "weak" else "global batch"
    return f"{replace(difference, field=whose)}, with scaling={scaling}"


def _suggest_comparison(
    differing: Sequence[Difference], single: Configuration, multi: Configuration
) -> str:
    """How to compare a pair that differs only in its hosts or batches a device; else empty."""
    if [d.field for d in differing] == ["host"]:
        return "; repeats of both on the same hosts compare them"
    if [d.field for d in differing] != ["batch"] or multi.identity.get("scaling") != "weak":
        return ""
    batches = [{r.cell.result and r.cell.result.global_batch_size for r in c.runs}
               for c in (single, multi)]  # fmt: skip
    return "; scaling=strong compares equal global batches" if batches[0] == batches[1] else ""


def explain_too_few_runs(config: Configuration) -> str:
    """Why a configuration has too few repeats, once others are set aside."""
    reasons = dict.fromkeys(f"{a.cell.planned.name} {a.reason}" for a in config.set_aside)
    left, all_ = len(config.runs), len(config.runs) + len(config.set_aside)
    remedies = " and ".join(dict.fromkeys(a.remedy for a in config.set_aside))
    more = "Run it again" if is_monitored(config.cells[0].config) else "Add repeats"
    return (
        f"{left} of {all_} repeats of {config.label} is left, too few: {'; '.join(reasons)}. "
        f"{more} {remedies}"
    )


def _build_pair(
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
        less = _describe_higher_loss(multi, speedup, loss)
        reasons = [judgement.reason, less, describe_inferred_scaling(multi)]
        judgement = replace(judgement, reason="; ".join(r for r in reasons if r))
    invalid = multi.invalid
    if single.invalid and not invalid:
        why = f"its baseline {single.label} is invalid: {single.invalid[0].reason}"
        invalid = (Invalid("invalid_baseline", why),)
    if invalid:
        judgement = Judgement("invalid", "; ".join(one.reason for one in invalid))
    cost = sample_cost(speedup, devices)
    return Pair(
        multi=multi,
        single=single,
        devices=devices,
        speedup=speedup,
        efficiency=speedup.scaled(1 / devices),
        cost_ratio=cost,
        money="unknown" if invalid or is_ceiling(multi) else judge_money(cost),
        judgement=judgement,
        seed_label=None if is_ceiling(multi) else seed_label(speedup.value),
        loss=loss,
        invalid=invalid,
        statistical=statistical,
    )


def _describe_higher_loss(
    multi: Configuration, speedup: RatioEstimate, loss: LossAtEqualSamples | None
) -> str:
    """Say that a faster training reaches a higher loss; empty if it does not, or if unknown.

    Under weak scaling this is not said: several devices take fewer, larger steps there.
    """
    strong = multi.identity.get("scaling") == "strong"
    if not strong or speedup.value <= 1 or loss is None or not loss.learns_less:
        return ""
    assert loss.ratio is not None
    return (
        f"but it learns less: {loss.name} at {loss.where} is "
        f"{factor(loss.ratio.value)} times the single device's ({interval_words(loss.ratio)})"
    )


def _same_request(single: Configuration, multi: Configuration) -> bool:
    """Whether the requests agree, as a cell that never ran has no other fields."""
    known = set(single.identity)
    return not [d for d in differences(single.identity, multi.identity) if d.field in known]


def loss_at_equal_samples(multi: Configuration, single: Configuration) -> LossAtEqualSamples | None:
    """Mean loss over runs at the number of samples of :func:`equal_samples`.

    Runs that time ends score their validation sets at unequal samples: their losses in training
    are compared. None for a ceiling: each of its models has seen only its own samples.
    """
    if is_ceiling(multi):
        return None
    reached = _compare_losses(multi, single, lambda run: run.loss, LossCurve.at)
    if reached is not None:
        return reached
    lately = _compare_losses(multi, single, lambda run: run.loss_history, LossCurve.lately)
    if lately is None:
        return None
    return replace(lately, name=f"{lately.name} (mean of the last fifth)", in_training=True)


def _compare_losses(
    multi: Configuration,
    single: Configuration,
    curve_of: Callable[[Run], LossCurve | None],
    read: Callable[[LossCurve, int], float | None],
) -> LossAtEqualSamples | None:
    """None where a side has no such loss, or none at that number of samples."""
    curves = [[c for run in side.runs if (c := curve_of(run))] for side in (single, multi)]
    all_curves = [curve for side in curves for curve in side]
    if not all(curves) or len({curve.metric for curve in all_curves}) != 1:
        return None
    samples = equal_samples(all_curves)
    sides = [
        [
            (run, value)
            for run in side.runs
            if (curve := curve_of(run)) and (value := read(curve, samples)) is not None
        ]
        for side in (single, multi)
    ]
    if not all(sides):
        return None
    means = [sum(value for _, value in side) / len(side) for side in sides]
    name = " / ".join(dict.fromkeys(curve.name for curve in curves[1]))
    positive = min(value for side in sides for _, value in side) > 0
    below, above = (c.by_round(side) for c, side in zip((single, multi), sides, strict=True))
    ratio = estimate_ratio(above, below) if positive else None
    interpolated = any(samples not in curve.samples for curve in all_curves)
    return LossAtEqualSamples(name, samples, means[0], means[1], ratio, interpolated)


MIN_MEDIAN_RATIO = 1.10
"""Both speedups are reported from this ratio between them, in either direction."""


@dataclass(frozen=True)
class TypicalSpeedup:
    """A pair's speedup by median step times, and how far means and medians lie apart.

    Verdicts judge the mean step, as it determines how long a training takes. If a few long steps
    dominate the mean, the medians give the speedup without them.
    """

    of_means: float
    of_medians: float
    """Ratio of samples per median step time, as geometric means over runs."""
    multi_mean_over_median: float
    """Mean over median step time on several devices; 1 if no step is long."""
    single_mean_over_median: float

    @property
    def differs(self) -> bool:
        return abs(math.log(self.of_medians / self.of_means)) > math.log(MIN_MEDIAN_RATIO)


def typical_speedup(pair: Pair) -> TypicalSpeedup | None:
    """Both speedups; None if a side has no step times or a median of 0 ms."""
    sides = [_rate_and_mean_of_medians(config) for config in (pair.multi, pair.single)]
    if sides[0] is None or sides[1] is None:
        return None
    (above, multi), (below, single) = sides[0], sides[1]
    return TypicalSpeedup(pair.speedup.value, above / below, multi, single)


def _rate_and_mean_of_medians(config: Configuration) -> tuple[float, float] | None:
    """Samples/s of the slowest rank's median step, and its mean step over the median.

    Geometric means over the runs that have a median.
    """
    throughputs = [run.throughput for run in config.runs if run.throughput]
    known = [t for t in throughputs if t.step_time_ms.p50 > 0]
    if not known:
        return None
    rates = [t.samples / t.steps / (t.step_time_ms.p50 / 1e3) for t in known]
    ratios = [t.step_time_ms.mean / t.step_time_ms.p50 for t in known]
    return estimate_positive(rates).value, estimate_positive(ratios).value

"""Speedup and efficiency against the single-device baseline, with a verdict: do more devices pay?

A multi-device configuration is compared with the single-device one of the same sweep that equals it
in every field of identity except devices and strategy. Else the comparison is refused, with the
fields that differ (docs/method.md). Speedup is the ratio of global samples/s, under strong and weak
scaling alike; ``efficiency = speedup / devices``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scalewise.analysis.comparability import (
    MIN_RUNS,
    Difference,
    describe,
    differences,
    remedies_of,
    shared_part,
)
from scalewise.analysis.configuration import Configuration, identity_beside
from scalewise.analysis.figures import estimate
from scalewise.analysis.losses import MetricCurve, equal_samples
from scalewise.analysis.remarks import Remark
from scalewise.analysis.run import Run
from scalewise.analysis.statistics import (
    VERDICT_RUNS,
    RatioEstimate,
    adaptive,
    estimate_at,
    estimate_positive,
    estimate_ratio,
    in_pairs,
)
from scalewise.analysis.verdict import Judgement, SeedLabel, Verdict, judge, seed_label, way_to_get
from scalewise.records import FRESH_START


def rate_ratio(
    above: Configuration, below: Configuration, confidence: float = 0.95
) -> RatioEstimate:
    """Samples/s of ``above`` over those of ``below``, within rounds where both ran in rounds.

    With ``repeats=auto`` the interval is wider, since the runs were looked at several times.
    """
    rates = above.rounds("global_samples_per_s"), below.rounds("global_samples_per_s")
    is_adaptive = adaptive(above.asked) is not None
    return (estimate_at if is_adaptive else estimate_ratio)(*rates, confidence)


def round_s(above: Configuration, below: Configuration) -> float | None:
    """Seconds that a run of each takes, one after the other; None if a side has no result."""
    sides = [[run.result.elapsed_s for run in c.runs] for c in (above, below)]
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
        known = None if self.in_training else self.ratio
        return known is not None and known.is_above(1 + MIN_LOSS_INCREASE)


@dataclass(frozen=True)
class MedianStep:
    """The median step of a configuration, as geometric means over its runs.

    Verdicts judge the mean step, as it determines how long a training takes. If a few long steps
    dominate the mean, the medians give the speedup without them.
    """

    samples_per_s: float
    """By the slowest rank's."""
    mean_over_median: float
    """1 if no step is long."""


@dataclass(frozen=True)
class Pair:
    """A multi-device configuration beside its single-device baseline."""

    multi: Configuration
    single: Configuration
    devices: int
    speedup: RatioEstimate
    efficiency: RatioEstimate
    judgement: Judgement
    """By the interval alone."""
    seed_label: SeedLabel | None
    loss: LossAtEqualSamples | None
    remarks: tuple[Remark, ...] = ()
    """What else must be known of the speedup."""

    @property
    def invalid(self) -> tuple[Remark, ...]:
        """Why the verdict is *invalid*; empty for every other verdict."""
        return tuple(one for one in self.remarks if one.gravity == "invalid")

    @property
    def is_overruled(self) -> bool:
        """Whether what was measured beside it leaves a verdict open that the interval may give."""
        return any(one.gravity == "undecided" for one in self.remarks)

    @property
    def verdict(self) -> Verdict:
        """That of the interval, overruled by the gravest remark."""
        if self.invalid:
            return "invalid"
        if self.is_overruled:
            return "undecided"
        return "ceiling" if self.multi.is_ceiling else self.judgement.verdict

    @property
    def final(self) -> Judgement:
        """The judgement without what it says of an interval that is not believed."""
        if self.verdict == self.judgement.verdict and not self.is_overruled:
            return self.judgement
        return Judgement(self.verdict, "", self.judgement.wanted)

    @property
    def run_speedups(self) -> list[float]:
        """Of each round that both sides ran in; else of each run over the mean of one."""
        rates = (side.rounds("global_samples_per_s") for side in (self.multi, self.single))
        above, below, in_rounds = in_pairs(*rates)
        against = below if in_rounds else estimate_positive(below).value
        return [float(ratio) for ratio in above / against]

    @property
    def median_steps(self) -> tuple[MedianStep, MedianStep] | None:
        """On several devices and on one; None if a side has no step times or a median of 0 ms."""
        multi, single = map(_median_step, (self.multi, self.single))
        return (multi, single) if multi and single else None

    @property
    def speedup_of_medians(self) -> float | None:
        """By the samples per median step of both sides."""
        if (steps := self.median_steps) is None:
            return None
        return steps[0].samples_per_s / steps[1].samples_per_s


@dataclass(frozen=True)
class Refused:
    """A configuration with nothing comparable on the other side: of several devices a baseline."""

    config: Configuration
    reason: str
    differing: tuple[Difference, ...] = ()
    """From the nearest one there."""

    @classmethod
    def differs(cls, config: Configuration, nearest: str, found: Sequence[Difference]) -> Refused:
        """Of several differences the first are named."""
        words = describe(found)
        more = f" and {len(words[4:])} more" if words[4:] else ""
        return cls(config, f"{nearest} differs in {'; '.join(words[:4])}{more}", tuple(found))


def pair_all(configs: Sequence[Configuration]) -> tuple[tuple[Pair, ...], tuple[Refused, ...]]:
    """Pair every multi-device configuration that has a run with its single-device baseline."""
    singles = [c for c in configs if c.devices == 1]
    found: list[Pair | Refused] = []
    for multi in (c for c in configs if c.devices != 1 and c.runs):
        try:
            found.append(_pair(multi, singles))
        except (ArithmeticError, ValueError) as error:  # refuses this pair, not the report
            found.append(Refused(multi, f"its speedup cannot be computed: {error}"))
    pairs = tuple(one for one in found if isinstance(one, Pair))
    return pairs, tuple(one for one in found if isinstance(one, Refused))


def _pair(multi: Configuration, singles: Sequence[Configuration]) -> Pair | Refused:
    if not singles:
        return Refused(multi, way_to_get("one device", multi.started_by, command=multi.on_both))
    ran = [s for s in singles if s.runs]
    part = shared_part(multi.identity)
    same = (s for s in ran if s.shared_part == part and not _find_differences(s, multi))
    single = next(same, None) or min(ran or singles, key=lambda s: len(_find_differences(s, multi)))
    sides = [one for one in (multi, single) if one.runs]
    untimed = (c for c in sides if not c.uncounted and not c.values("global_samples_per_s"))
    if side := next(untimed, None):  # what took few steps may lack more, as its optimizer's name
        reason = side.runs[0].missing.get("throughput", "not measured")
        return Refused(multi, f"no throughput of {side.label}: {reason}")
    if differing := _find_differences(single, multi):
        baseline = next((s for s in singles if not s.runs and _same_request(s, multi)), None)
        if baseline is not None:
            reason = baseline.cells[-1].ending.message
            said = f"its single-device baseline {baseline.label} has no run: {reason}"
            return Refused(multi, said)
        return Refused.differs(multi, f"its baseline {single.label}", differing)
    for side in (multi, single):
        if side.set_aside and len(side.runs) < MIN_RUNS:
            names = "; ".join(f"{one.cell.planned.name} {one.reason}" for one in side.set_aside)
            more = f"run {VERDICT_RUNS - len(side.runs)} more {remedies_of(side.set_aside)}"
            return Refused(multi, f"{count_set_aside(side)}: {more}. {names}")
    runs = (*single.runs, *multi.runs)
    before = [(run.cell.planned.name, run.ranks[0].missing.get(FRESH_START)) for run in runs]
    if len({why for _, why in before}) > 1:
        said = next(f"{name} {why}" for name, why in before if why)
        return Refused(multi, f"runs begin at unlike steps: {said}")
    counted = [run.ranks[0].missing.get("sample count") for run in runs]
    if any(counted[: len(single.runs)]) != any(counted[len(single.runs) :]):
        told = f"on one side {next(filter(None, counted))}"
        return Refused(multi, f"samples are counted unlike: {told}. Call the model once a batch")
    for side in (multi, single):
        if why := side.uncounted:
            each = ((estimate(c.estimate("step_time_ms")), c.device_words) for c in (single, multi))
            took = " and ".join(f"{ms} ms on {devices}" for ms, devices in each)
            return Refused(multi, f"no samples/s of {side.label}: {why}. Steps took {took}")
    speedup = rate_ratio(multi, single)
    devices, invalid = multi.runs[0].world_size, multi.invalid
    if single.invalid and not invalid:
        figures = {"baseline": single.label, "reason": single.invalid[0].text}
        invalid = (Remark("invalid_baseline", figures, multi.config_id),)
    return Pair(
        multi=multi,
        single=single,
        devices=devices,
        speedup=speedup,
        efficiency=speedup.scaled(1 / devices),
        judgement=judge_config(multi, speedup, round_s(multi, single)),
        seed_label=None if multi.is_ceiling else seed_label(speedup.value),
        loss=loss_at_equal_samples(multi, single),
        remarks=invalid,
    )


def judge_config(config: Configuration, speedup: RatioEstimate, round_s: float | None) -> Judgement:
    """The verdict on ``speedup``, in words for how ``config`` was run and repeated."""
    repeats, devices = adaptive(config.asked), config.runs[0].world_size
    cap = None if repeats is None else repeats.cap
    return judge(speedup, devices, by=config.started_by, cap=cap, round_s=round_s)


def _find_differences(single: Configuration, multi: Configuration) -> tuple[Difference, ...]:
    return tuple(differences(identity_beside(single, multi), multi.identity))


def count_set_aside(config: Configuration) -> str:
    """``1 of your 3 runs was disturbed``; empty where all its finished runs count."""
    aside = config.set_aside
    if not aside:
        return ""
    verb = "was" if len(aside) == 1 else "were"
    why = "disturbed" if all(one.is_disturbed for one in aside) else "set aside"
    return f"{len(aside)} of your {len(config.runs) + len(aside)} runs {verb} {why}"


def _same_request(single: Configuration, multi: Configuration) -> bool:
    """Whether the requests agree, as a cell that never ran has no other fields."""
    known = set(single.identity)
    return not [d for d in differences(single.identity, multi.identity) if d.field in known]


def loss_at_equal_samples(multi: Configuration, single: Configuration) -> LossAtEqualSamples | None:
    """Mean loss over runs at the number of samples of :func:`equal_samples`.

    Runs that time ends score their validation sets at unequal samples: their losses in training
    are compared. None for a ceiling: each of its models has seen only its own samples.
    """
    if multi.is_ceiling:
        return None
    reached = _compare_losses(multi, single, lambda run: run.loss, MetricCurve.at)
    if reached is not None:
        return reached
    lately = _compare_losses(multi, single, lambda run: run.loss_history, MetricCurve.lately)
    if lately is None:
        return None
    return replace(lately, name=f"{lately.name} (mean of the last fifth)", in_training=True)


def _compare_losses(
    multi: Configuration,
    single: Configuration,
    curve_of: Callable[[Run], MetricCurve | None],
    read: Callable[[MetricCurve, int], float | None],
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


def _median_step(config: Configuration) -> MedianStep | None:
    known = [
        (t.step_time_ms, t.samples / t.steps)
        for t in (run.throughput for run in config.runs)
        if t and t.step_time_ms.p50 > 0 and t.samples
    ]
    if not known:
        return None
    rates = [samples / (step.p50 / 1e3) for step, samples in known]
    ratios = [step.mean / step.p50 for step, _ in known]
    return MedianStep(estimate_positive(rates).value, estimate_positive(ratios).value)

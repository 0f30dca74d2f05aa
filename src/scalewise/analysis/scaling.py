"""Do more devices pay? Speedup and efficiency against the single-device twin, and a verdict.

A multi-device configuration is compared with the one single-device configuration of the same
sweep that equals it in every field of identity but devices and strategy; else the comparison is
refused, with the fields that differ (DESIGN, law 6). Speedup is the ratio of global samples/s,
under strong scaling (same global batch) and weak scaling (same batch a device) alike;
``efficiency = speedup / devices``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalewise.analysis.identity import Difference, differences
from scalewise.analysis.limits import explain_loss
from scalewise.analysis.runs import Configuration
from scalewise.analysis.statistics import Interval, RatioEstimate, estimate_ratio, holm

Verdict = Literal["beneficial", "marginal", "prefer single", "inconclusive"]
SeedLabel = Literal["beneficial", "marginal", "single"]

BENEFICIAL_FROM = 1.1
MARGINAL_FROM = 0.95
MIN_EFFICIENCY = 0.5


@dataclass(frozen=True)
class Judgement:
    """A verdict and why."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class LossAtEqualSamples:
    """The loss both sides have reached once they have fed the same number of samples."""

    name: str
    samples: int
    single: float
    multi: float


@dataclass(frozen=True)
class Pair:
    """A multi-device configuration beside its single-device twin."""

    multi: Configuration
    single: Configuration
    devices: int
    speedup: RatioEstimate
    efficiency: RatioEstimate
    judgement: Judgement
    seed_label: SeedLabel
    loss: LossAtEqualSamples | None
    p_value_holm: float | None = None
    """That the speedup is 1, adjusted for all pairs of the sweep; None with one run a side."""


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
    """Pair every multi-device configuration that has a run with its single-device twin."""
    singles = [c for c in configs if c.devices == 1]
    pairs: list[Pair] = []
    refused: list[Refused] = []
    for multi in configs:
        if multi.devices == 1 or not multi.runs:
            continue
        found = _pair(multi, singles, min_efficiency)
        if isinstance(found, Pair):
            pairs.append(found)
        else:
            refused.append(found)
    return _adjusted(pairs), tuple(refused)


def judge(
    speedup: RatioEstimate, devices: int, min_efficiency: float = MIN_EFFICIENCY
) -> Judgement:
    """The verdict of law 12, which needs the whole interval inside one band.

    Bands of the speedup: *prefer single* below 0.95; *marginal* from there to 1.1, and beyond
    while the efficiency stays under ``min_efficiency``; *beneficial* above both.
    """
    wanted = max(BENEFICIAL_FROM, min_efficiency * devices)
    figure = f"speedup {speedup.value:.2f} on {devices} devices"
    if speedup.interval is None:
        n = " and ".join(str(n) for n in speedup.n)
        return Judgement(
            "inconclusive", f"{figure}, from {n} runs: no interval; add repeats (repeats=5)"
        )
    low, high = speedup.interval.low, speedup.interval.high
    figure += f" (95 % interval {low:.2f}-{high:.2f}), efficiency {speedup.value / devices:.2f}"
    if low > BENEFICIAL_FROM and low >= wanted:
        return Judgement("beneficial", figure)
    if high < MARGINAL_FROM:
        return Judgement("prefer single", f"{figure}: slower than one device")
    if low >= MARGINAL_FROM and high <= wanted:
        if low > BENEFICIAL_FROM:
            figure += f": faster, but below the efficiency of {min_efficiency:g} asked for"
        return Judgement("marginal", figure)
    return Judgement(
        "inconclusive", f"speedup {speedup.value:.2f}: {_spans(speedup.interval, wanted)}"
    )


def seed_label(speedup: float) -> SeedLabel:
    """Seed 000's label, from the point estimate whatever the number of devices."""
    if speedup >= BENEFICIAL_FROM:
        return "beneficial"
    return "marginal" if speedup >= MARGINAL_FROM else "single"


def _spans(interval: Interval, wanted: float) -> str:
    edges = [edge for edge in (MARGINAL_FROM, wanted) if interval.low < edge < interval.high]
    bands = {0: "touches the edge of a band", 1: "spans two bands", 2: "spans three bands"}
    at = ", ".join(f"{edge:g}" for edge in edges)
    return (
        f"interval {interval.low:.2f}-{interval.high:.2f} {bands[len(edges)]}"
        f"{f' (edge at {at})' if at else ''}: add repeats"
    )


def _pair(
    multi: Configuration, singles: Sequence[Configuration], min_efficiency: float
) -> Pair | Refused:
    if not singles:
        return Refused(multi, "no single-device cell in this sweep: add strategy=single")
    ran = [s for s in singles if s.runs]
    single = min(ran or singles, key=lambda s: len(differences(s.identity, multi.identity)))
    differing = tuple(differences(single.identity, multi.identity))
    if differing:
        twin = next((s for s in singles if not s.runs and _same_request(s, multi)), None)
        if twin is not None:
            why = twin.cells[-1].failure
            return Refused(multi, f"its single-device twin {twin.label} has no run: {why}")
        words = "; ".join(map(str, differing[:4]))
        more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
        return Refused(multi, f"{single.label} differs in {words}{more}", differing)
    above, below = multi.values("samples_per_s"), single.values("samples_per_s")
    if not above or not below:
        lacking = multi if not above else single
        why = lacking.runs[0].missing.get("throughput", "not measured")
        return Refused(multi, f"{lacking.label} has no throughput: {why}")
    return _measured_pair(multi, single, estimate_ratio(above, below), min_efficiency)


def _measured_pair(
    multi: Configuration, single: Configuration, speedup: RatioEstimate, min_efficiency: float
) -> Pair:
    devices = multi.runs[0].world_size
    judgement = judge(speedup, devices, min_efficiency)
    limit = explain_loss(multi, single)
    if limit:
        judgement = replace(judgement, reason=f"{judgement.reason}; {limit}")
    return Pair(
        multi=multi,
        single=single,
        devices=devices,
        speedup=speedup,
        efficiency=speedup.scaled(1 / devices),
        judgement=judgement,
        seed_label=seed_label(speedup.value),
        loss=loss_at_equal_samples(multi, single),
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
    """Mean loss over runs at the largest number of samples that every run has fed."""
    curves = [[r.loss for r in c.runs if r.loss is not None] for c in (single, multi)]
    everything = [curve for side in curves for curve in side]
    if not all(curves) or len({curve.name for curve in everything}) != 1:
        return None
    samples = min(curve.samples[-1] for curve in everything)
    sides = [[curve.at(samples) for curve in side] for side in curves]
    known = [[value for value in side if value is not None] for side in sides]
    if not all(known):
        return None
    means = [sum(side) / len(side) for side in known]
    return LossAtEqualSamples(everything[0].name, samples, means[0], means[1])

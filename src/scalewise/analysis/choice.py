"""Numbers of devices side by side: what each gains over the next smaller one, not over one alone.

A speedup over one device may still rise while the devices that were added last bring next to
nothing. Numbers of devices stand in one ladder where all of them have the same single-device
baseline, which makes them comparable to it, the same strategy, and no field of identity in which
they differ from each other but the devices (:mod:`scalewise.analysis.comparability`).

With samples/s ``r(n)`` of n devices and ``r(m)`` of the next smaller number, the gain is
``r(n) / r(m)``, and each added device brings, of what one of the m does,

    (r(n) / r(m) - 1) * m / (n - m)

which is 1 where the added devices work as well as those before them. Both rise together, so the
ends of the gain's interval are those of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalewise.analysis.comparability import differences, grouped
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.figures import bounding, factor, interval_words
from scalewise.analysis.scaling import Pair, is_ceiling, rate_ratio
from scalewise.analysis.statistics import Interval, RatioEstimate, bonferroni
from scalewise.analysis.verdict import VERDICT_RUNS
from scalewise.records import CandidateEvidence, StrategyDecision, ThresholdRule

SMALL_PARAMETERS = 1_000_000
MEDIUM_PARAMETERS = 5_000_000
LARGE_PARAMETERS = 10_000_000
BATCH_FOR_LARGE = 64

BATCH_FOR_MEDIUM = 128
"""The published PCIe study's thresholds, kept as the baseline to compare with."""


class UndecidedError(Exception):
    """No candidate has a figure; the message says why."""


def choose_strategy(
    candidates: Mapping[str, Configuration], probe_steps: int, global_batch_size: int
) -> StrategyDecision:
    """The strategy with most samples/s, if it is faster beyond doubt than the one with fewest
    devices; else that one, which costs less.

    ``candidates`` are the short runs of each strategy by its name. Raises
    :class:`UndecidedError` where none of them gave a figure.
    """
    evidence = tuple(_evidence(name, config) for name, config in candidates.items())
    known = {e.name: e for e in evidence if e.global_samples_per_s is not None}
    if not known:
        why = "; ".join(f"{e.name}: {e.problem}" for e in evidence)
        raise UndecidedError(f"no strategy could be measured: {why}")
    fewest = min(known.values(), key=lambda e: e.devices or 0).name
    fastest = max(known.values(), key=lambda e: e.global_samples_per_s or 0.0).name
    # The fastest beside the one with fewest devices; where that is one and the same, any other.
    above = fastest if fastest != fewest else next((n for n in known if n != fewest), None)
    ratio = None
    if above is None or _host(candidates[above]) == _host(candidates[fewest]):
        if above is not None:
            # The fastest is the best of several, each of which may be it by chance.
            level = bonferroni(len(known) - 1)
            ratio = rate_ratio(candidates[above], candidates[fewest], level)
        chosen, reason = _judge(fastest, fewest, ratio, len(evidence) - len(known))
    else:
        chosen, reason = fewest, f"{above} ran on other hosts, so it is compared with nothing"
    interval = ratio.interval if ratio else None
    return StrategyDecision(
        chosen=chosen,
        reason=reason,
        speedup=ratio.value if ratio else None,
        speedup_low=interval.low if interval else None,
        speedup_high=interval.high if interval else None,
        probe_steps=probe_steps,
        candidates=evidence,
        rule=_rule(candidates, global_batch_size),
    )


def _host(config: Configuration) -> str | None:
    return config.identity.get("host")


def threshold_rule(parameters: int, batch_size: int) -> ThresholdRule:
    """What the published PCIe study's rule says of so many parameters at that global batch."""
    told = f"{parameters:,} parameters"
    if parameters < SMALL_PARAMETERS:
        return ThresholdRule("single", f"{told}, under {SMALL_PARAMETERS:,}")
    if MEDIUM_PARAMETERS <= parameters < LARGE_PARAMETERS:
        return ThresholdRule("undecided", f"{told}: benchmark")
    medium = parameters < MEDIUM_PARAMETERS
    least = BATCH_FOR_MEDIUM if medium else BATCH_FOR_LARGE
    if batch_size < least:
        return ThresholdRule("single", f"batch {batch_size}, under {least}, for {told}")
    if medium:
        return ThresholdRule("undecided", f"{told}: evaluate")
    return ThresholdRule("ddp", f"{told} at batch {batch_size}")


def _evidence(name: str, config: Configuration) -> CandidateEvidence:
    invalid = config.invalid
    if invalid:
        return CandidateEvidence(name, None, 0, None, problem=invalid[0].reason)
    figure = config.estimate("global_samples_per_s")
    if figure is None:
        failed = [c.ending.message for c in config.cells if c.ending.message]
        unmeasured = [r.missing.get("throughput", "not measured") for r in config.runs]
        problem = (failed or unmeasured or ["it did not run"])[-1]
        return CandidateEvidence(name, None, 0, None, problem=problem)
    interval = figure.interval
    return CandidateEvidence(
        name,
        config.devices,
        len(config.values("global_samples_per_s")),
        figure.value,
        interval.low if interval else None,
        interval.high if interval else None,
    )


def _judge(
    fastest: str, fewest: str, ratio: RatioEstimate | None, without_figure: int
) -> tuple[str, str]:
    """The strategy to train with, and why."""
    if ratio is None:
        others = "the others" if without_figure > 1 else "the other"
        return fewest, f"{others} gave no figure"
    said = f"{factor(ratio.value)} times the samples/s of {fewest}"
    if ratio.interval is None:
        return fastest, f"{said}, from one run each: no interval"
    said += f" ({interval_words(ratio)})"
    if fastest == fewest:
        return fewest, f"more devices give {said}"
    if ratio.interval.low > 1:
        return fastest, said
    return fewest, f"{fastest} gives {said}, which may be no gain, and takes more devices"


def _rule(candidates: Mapping[str, Configuration], batch_size: int) -> ThresholdRule | None:
    results = [run.cell.result for config in candidates.values() for run in config.runs]
    counted = [rank.parameters_total for result in results if result for rank in result.ranks]
    return threshold_rule(counted[0], batch_size) if counted else None


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
class Rung:
    """One number of devices in a ladder."""

    config: Configuration
    devices: int
    pair: Pair | None
    """None of the single device."""
    gain: Gain | None
    """None of the single device, and where the next smaller number is not comparable."""


Fields = tuple[tuple[str, str], ...]

Ladder = tuple[Rung, ...]
"""One workload and strategy from one device up; more devices below fewer."""


def ladders(pairs: Sequence[Pair]) -> tuple[Ladder, ...]:
    """Every workload and strategy that ran on one device and on several, in the pairs' order.

    Independent models are left out: they are a bound, and nothing that one could choose. So are
    invalid pairs.
    """
    sound = (pair for pair in pairs if not is_ceiling(pair.multi) and not pair.invalid)
    groups = grouped(sound, lambda pair: (pair.single.config_id, _same(pair.multi)))
    return tuple(map(_ladder, groups.values()))


def _same(config: Configuration) -> Fields:
    """What those of one ladder share: the strategy's settings but its devices, and the scaling,
    which a script of the user's own may be read as one or the other."""
    fields = {k: v for k, v in config.identity.items() if k.startswith("strategy.")}
    fields.pop("strategy.devices", None)
    return tuple(sorted({**fields, "scaling": config.identity.get("scaling", "")}.items()))


def _ladder(pairs: Sequence[Pair]) -> Ladder:
    found = [Rung(pairs[0].single, 1, None, None)]
    for pair in sorted(pairs, key=lambda p: p.devices):
        smaller = [rung for rung in found if rung.devices < pair.devices]
        found.append(
            Rung(pair.multi, pair.devices, pair, _gain(pair, fastest_of_each(smaller)[-1]))
        )
    return tuple(found)


def fastest_of_each(rungs: Sequence[Rung]) -> tuple[Rung, ...]:
    """One of each number of devices, in their order.

    Of two with as many (other GPUs of the host) neither is the other's next, and nobody who adds
    devices would begin with the slower one.
    """
    each = grouped(rungs, lambda rung: rung.devices).values()
    return tuple(max(same, key=lambda rung: samples_per_s(rung.config)) for same in each)


def _gain(pair: Pair, below: Rung) -> Gain | None:
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


def samples_per_s(config: Configuration) -> float:
    """The mean over runs; 0 where none has it."""
    found = config.estimate("global_samples_per_s")
    return found.value if found is not None else 0.0


@dataclass(frozen=True)
class Speed:
    """What configurations are ranked by; more is better."""

    of: Callable[[Configuration], float]
    ratio: Callable[[Configuration, Configuration, float], RatioEstimate]
    """Of the first over the second, with an interval of this confidence."""


SAMPLES_PER_S = Speed(samples_per_s, rate_ratio)


@dataclass(frozen=True)
class Fastest:
    """The configuration with most samples/s, and those that may be as fast."""

    config: Configuration
    rivals: tuple[Configuration, ...]
    """Not shown to be slower, the fastest of them first; empty where it is the fastest."""


def find_fastest(rows: Sequence[Configuration], speed: Speed = SAMPLES_PER_S) -> Fastest:
    """Of configurations with samples/s.

    A row is beaten if its ratio to the fastest lies below 1 with its whole interval, of three runs
    or more. The intervals hold for all rivals together (Bonferroni).
    """
    first, *others = sorted(rows, key=speed.of, reverse=True)
    level = bonferroni(len(others))

    def is_beaten(other: Configuration) -> bool:
        ratio = speed.ratio(first, other, level)
        return (
            min(ratio.n) >= VERDICT_RUNS and ratio.interval is not None and ratio.interval.low > 1
        )

    return Fastest(first, tuple(other for other in others if not is_beaten(other)))

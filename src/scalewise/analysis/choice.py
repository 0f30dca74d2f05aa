"""The strategy that short runs choose, beside what the published study's thresholds say."""

from __future__ import annotations

from collections.abc import Mapping

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.figures import factor, interval_words
from scalewise.analysis.scaling import rate_ratio
from scalewise.analysis.statistics import RatioEstimate, bonferroni
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
        return CandidateEvidence(name, None, 0, None, problem=invalid[0].text)
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

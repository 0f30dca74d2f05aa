"""What a sweep leaves to measurement: how many runs ``repeats=auto`` makes, and which strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalewise.analysis.comparability import remedies_of
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.figures import estimate, factor, interval_words, times
from scalewise.analysis.rehearsal import Rehearsal, untold
from scalewise.analysis.scaling import Pair, rate_ratio
from scalewise.analysis.statistics import (
    VERDICT_RUNS,
    Adaptive,
    Interval,
    RatioEstimate,
    adaptive,
    bonferroni,
    estimate_positive,
    look_confidence,
)
from scalewise.analysis.verdict import Verdict
from scalewise.host import plural
from scalewise.records import CandidateEvidence, StrategyDecision, ThresholdRule, words_beside

Because = Literal["verdict", "precision", "cap", "failures", "untold"]


def reason_to_stop(
    verdict: Verdict, interval: Interval | None, runs: int, asked: Adaptive
) -> Because | None:
    """Why no more repeats are needed beside this ``verdict`` and ``interval``; None while they are.

    Every round is looked at, from the third on; the interval allows for that
    (:func:`~scalewise.analysis.statistics.look_confidence`). The verdict is the one that is
    reported: it stops nowhere for a verdict that nobody is told. ``runs`` are the pairs by now, or
    those of the shorter side.
    """
    if runs < VERDICT_RUNS:
        return None
    if verdict != "undecided":
        return "verdict"
    if interval is not None and interval.high / interval.low - 1 <= asked.precision:
        return "precision"
    return "cap" if runs >= asked.cap else None


MOST_FAILURES = 2
"""Runs of a configuration that may fail before no more are added: it would fail for ever."""


@dataclass(frozen=True)
class Repeats:
    """Where configurations that are repeated together stand."""

    members: tuple[Configuration, ...]
    """A multi-device configuration and its single-device baseline, or one without a partner."""
    runs: int
    """Pairs of one round each; alone, or without a common round, runs of the shorter side."""
    because: Because | None
    """Why no more are needed; None while they are."""
    reason: str
    figure: str
    """``1.15x (1.02-1.29): 1.10x is wanted``, with why it is open if it is."""

    @property
    def wanted(self) -> int | None:
        """The same number after the next round; None once it is decided."""
        return None if self.because else max(VERDICT_RUNS, self.runs + 1)

    @property
    def brief(self) -> str:
        """``gpt2 ddp x2: undecided after 3 rounds, 1.15x (1.02-1.29): 1.10x is wanted``."""
        told = self.reason if self.because == "failures" else self.figure
        state = _WHY_STOPPED[self.because] if self.because else "undecided after"
        rounds = f"{self.runs} {plural(self.runs, 'round')}"
        if aside := [one for member in self.members for one in member.set_aside]:
            runs = f"{len(aside)} {plural(len(aside), 'run')}"
            rounds += f" ({runs} set aside: one counts {remedies_of(aside)})"
        return f"{self.members[0].label}: {state} {rounds}, {told}"


_WHY_STOPPED = words_beside(__file__, dict[Because, str])


def assess(
    configs: Sequence[Configuration], pairs: Sequence[Pair], rehearsals: Sequence[Rehearsal] = ()
) -> tuple[Repeats, ...]:
    """Every pair of configurations with ``repeats=auto``, and every such one without a partner.

    Pure and without memory: the same records give the same answer, to the sweep that decides what
    runs next, to the one that resumes it, and to the report that says why it stopped.

    ``pairs`` of ``configs`` with the verdicts that are reported, doubts included: whatever stops
    for a verdict stops for that one.
    """
    asked = {c.config_id: a for c in configs if (a := adaptive(c.asked))}
    adapting = [p for p in pairs if {p.multi.config_id, p.single.config_id} <= asked.keys()]
    found = [_pair(p, asked[p.multi.config_id]) for p in adapting]
    for one in rehearsals:
        own = adaptive(one.config.asked)
        if own and one.speedup and one.single and one.single.config_id in asked:
            found.append(_rehearsed(one, one.single, one.speedup, own))
    paired = {member.config_id for one in found for member in one.members}
    for config in [c for c in configs if c.config_id in asked and c.config_id not in paired]:
        # What one device was to be compared with: the same workload on several.
        several = [c for c in configs if c.workload == config.workload and c.devices != 1]
        partners = several if config.devices == 1 else []
        found.append(_alone(config, asked[config.config_id], partners))
    return tuple(found)


def _pair(pair: Pair, asked: Adaptive) -> Repeats:
    runs = min(pair.speedup.n)
    # What is no verdict about a training job, a ceiling, is measured until its interval would be.
    verdict = pair.judgement.verdict if pair.verdict == "ceiling" else pair.verdict
    reason = "; ".join(dict.fromkeys([pair.judgement.reason, *(r.brief for r in pair.remarks)]))
    because = reason_to_stop(verdict, pair.speedup.interval, runs, asked)
    held = (one.brief for one in pair.remarks if one.gravity == "undecided")
    why = next(held, f"{factor(pair.judgement.wanted)}x is wanted")
    figure = times(pair.speedup) + f": {why}" * (verdict == "undecided")
    return _repeats((pair.multi, pair.single), runs, because, reason, asked.cap, figure)


def _rehearsed(
    one: Rehearsal, single: Configuration, speedup: RatioEstimate, asked: Adaptive
) -> Repeats:
    """Until its runs are as steady as was asked for: beyond that, no more of them tell more."""
    runs = min(speedup.n)
    never, is_told = untold(one.config) is not None, one.word != "cannot tell"
    ends = rate_ratio(one.config, single).interval
    because = reason_to_stop("pays" if never or is_told else "undecided", ends, runs, asked)
    because = "untold" if because and never else because
    said = times(one.shown) if one.shown else "", "" if is_told else one.reason
    figure = ": ".join(filter(None, said))
    return _repeats((one.config, single), runs, because, one.reason, asked.cap, figure)


def _alone(config: Configuration, asked: Adaptive, partners: Sequence[Configuration]) -> Repeats:
    """Until its own mean is known."""
    key, unit = ("global_samples_per_s", "samples/s")
    if config.uncounted:
        key, unit = "step_time_ms", "ms a step"
    values = config.values(key)
    lost = [_failure((partner,)) for partner in partners]
    because: Because | None = None
    reason, wanted = "0 runs a side", ""
    if partners and all(lost):
        because, reason = "failures", f"it has nothing to be compared with: {lost[0]}"
    elif values:
        figure = estimate_positive(values, look_confidence())
        if figure.interval is not None:
            figure = replace(figure, interval=replace(figure.interval, confidence=0.95))
        because = reason_to_stop("undecided", figure.interval, len(values), asked)
        reason = f"{estimate(figure)} {unit}"
        wanted = f": within {100 * asked.precision:g} % is wanted" * (because != "precision")
    return _repeats((config,), len(values), because, reason, asked.cap, reason + wanted)


def _repeats(
    members: tuple[Configuration, ...], runs: int, because: Because | None, reason: str, cap: int,
    figure: str,
) -> Repeats:  # fmt: skip
    """What the rule answered, unless runs fail or are set aside again and again."""
    if failed := _failure(members):
        because, reason = "failures", failed
    elif because is None and (spent := _all_spent(members, cap)):
        because, reason = "cap", f"{spent}; {reason}"
    return Repeats(members, runs, because, reason, figure)


def _all_spent(members: Sequence[Configuration], cap: int) -> str | None:
    """A neighbour that never goes away would have repeats set aside and made up for, for ever."""
    for member in members:
        if member.elsewhere and len(member.cells) + len(member.elsewhere) >= cap:
            return f"{len(member.elsewhere)} runs of {member.label} had other devices or shares"
        if member.set_aside and len(member.runs) + len(member.set_aside) >= cap:
            of = f"{len(member.set_aside)} runs of {member.label}"
            return f"{of} are set aside: run it again {remedies_of(member.set_aside)}"
    return None


def _failure(members: Sequence[Configuration]) -> str | None:
    for member in members:
        if why := member.uncounted or next((one.text for one in member.invalid), None):
            return f"{member.label}: {why}"
        lost = [r.missing["throughput"] for r in member.runs if r.samples_per_s is None]
        lost += [c.ending.message for c in member.cells if c.state in ("failed", "skipped")]
        if len(lost) >= MOST_FAILURES:
            return f"{len(lost)} runs of {member.label} gave no figure ({lost[-1]})"
    return None


SMALL_PARAMETERS = 1_000_000  # The published PCIe study takes one device for fewer.
MEDIUM_PARAMETERS = 5_000_000  # It has no rule from here on.
LARGE_PARAMETERS = 10_000_000  # It takes several devices from here on and BATCH_FOR_LARGE.
BATCH_FOR_LARGE = 64  # Samples a step of all devices.
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
    if len({candidates[n].identity.get("host") for n in (above or fewest, fewest)}) == 1:
        if above is not None:
            # The fastest is the best of several, each of which may be it by chance.
            ratio = rate_ratio(candidates[above], candidates[fewest], bonferroni(len(known) - 1))
        chosen, reason = _judge(fastest, fewest, ratio, len(evidence) - len(known))
    else:
        chosen, reason = fewest, f"{above} ran on other hosts, so it is compared with nothing"
    interval = ratio.interval if ratio else None
    runs = [run for config in candidates.values() for run in config.runs]
    counted = [rank.parameters_total for run in runs for rank in run.ranks]
    return StrategyDecision(
        chosen=chosen,
        reason=reason,
        speedup=ratio.value if ratio else None,
        speedup_low=interval.low if interval else None,
        speedup_high=interval.high if interval else None,
        probe_steps=probe_steps,
        candidates=evidence,
        rule=threshold_rule(counted[0], global_batch_size) if counted else None,
    )


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
    if invalid := config.invalid:
        return CandidateEvidence(name, None, 0, None, problem=invalid[0].text)
    figure = config.estimate("global_samples_per_s")
    if figure is None:
        failed = [c.ending.message for c in config.cells if c.ending.message]
        unmeasured = [r.missing.get("throughput", "not measured") for r in config.runs]
        problem = (failed or unmeasured or ["it did not run"])[-1]
        return CandidateEvidence(name, None, 0, None, problem=problem)
    ends = (figure.interval.low, figure.interval.high) if figure.interval else (None, None)
    runs = len(config.values("global_samples_per_s"))
    return CandidateEvidence(name, config.devices, runs, figure.value, *ends)


def _judge(
    fastest: str, fewest: str, ratio: RatioEstimate | None, without_figure: int
) -> tuple[str, str]:
    if ratio is None:
        return fewest, f"the {'others' if without_figure > 1 else 'other'} gave no figure"
    said = f"{factor(ratio.value)} times the samples/s of {fewest}"
    if ratio.interval is None:
        return fastest, f"{said}, from one run each: no interval"
    said += f" ({interval_words(ratio)})"
    if fastest == fewest:
        return fewest, f"more devices give {said}"
    if ratio.interval.low > 1:
        return fastest, said
    return fewest, f"{fastest} gives {said}, which may be no gain, and takes more devices"

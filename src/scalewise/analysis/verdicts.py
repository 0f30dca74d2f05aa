"""Every verdict of a sweep: what its report says, and what ``repeats=auto`` stops for.

Both come from here, so that no comparison is called decided that the report calls undecided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scalewise.analysis.communication import timed_only
from scalewise.analysis.comparability import mixtures
from scalewise.analysis.configuration import (
    Configuration,
    configurations,
    device_words,
    disturbed_runs,
    read_scaling,
)
from scalewise.analysis.figures import factor, times
from scalewise.analysis.loss_budget import (
    CAUSE_WORDS,
    LossBudget,
    LossCause,
    LostTime,
    make_budget,
    mean_clock_mhz,
)
from scalewise.analysis.model import Sweep
from scalewise.analysis.scaling import Pair, Refused, is_ceiling, pair_all
from scalewise.analysis.step_parts import long_step_clause
from scalewise.analysis.validity import Doubt, Invalid, untrained_steps
from scalewise.analysis.verdict import (
    BANDS,
    LINEAR_UP_TO,
    LOOKS,
    MIN_EFFICIENCY,
    Adaptive,
    Because,
    Judgement,
    StoppingDecision,
    adaptive,
    band,
    count_pairs,
    decide_alone,
    stop_or_go_on,
)
from scalewise.host import plural

Budgets = Mapping[str, LossBudget]
"""``config_id`` to where its time goes; absent where no run of it was timed."""

WORTH_SAYING = 0.02
"""Share of the step below which a loss is not told in an answer."""

_MORE_THAN_LINEAR = "it is more than linear, which few trainings are"

_MOST_LOSSES = 2
"""Losses that an answer names; the report has all of them."""


def add_doubts(pair: Pair, budgets: Budgets, min_efficiency: float = MIN_EFFICIENCY) -> Pair:
    """The pair with its largest losses and the doubts about its verdict in its reason.

    Intervals over runs see noise between runs. A crowd that slows every run of one side alike moves
    the speedup without widening its interval, and more than linear scaling is what that looks like.

    A whole interval beyond linear, after division by the ratio of the SM clocks, is *invalid*:
    something other than the devices made the difference. Where others held the single device's
    cores it is *undecided*, since that explains it; where that device is short of memory, the
    devices do gain what they seem to. *Undecided* too is what would be another verdict without
    the time that other processes held the cores of a side.
    """
    if pair.invalid:
        return pair
    held = [(c, d) for c in (pair.single, pair.multi) if (d := _limit(c, budgets, "contention"))]
    clocks = clock_ratio(pair)
    interval = pair.efficiency.interval
    beyond = interval is not None and interval.low / clocks > LINEAR_UP_TO
    quiet = _without_contention(pair, budgets) if held else None
    stands = pair.judgement.verdict
    explained = beyond and any(side is pair.single for side, _ in held)
    if quiet is not None and stands in BANDS:
        explained |= band(quiet, pair.devices, min_efficiency) != stands
    invalid: tuple[Invalid, ...] = ()
    # Several devices do gain what a single one loses for want of memory.
    thrashes = any(rank.allocation_retries for rank in pair.single.rank_summaries)
    if beyond and not explained and not is_ceiling(pair.multi) and not thrashes:
        invalid = (Invalid("superlinear", _superlinear(pair, clocks)),)
    about = (pair.multi.config_id,)
    doubts = [Doubt("superlinear", one.reason, _MORE_THAN_LINEAR, about=about) for one in invalid]
    if beyond and not invalid and not explained:
        more = f"more than linear: efficiency {factor(pair.efficiency.value)}"
        doubts.append(Doubt("superlinear", more, _MORE_THAN_LINEAR, about=about))
    if explained:
        each = " and ".join(f"{device_words(c)} for {d.ms:.3g} ms a step" for c, d in held)
        brief = f"others held the cores of {each}"
        without = "" if quiet is None else f" (speedup {factor(quiet)} without that)"
        text = f"{brief}{without}: measure again on a quiet host"
        doubts.append(Doubt("contention", text, brief, about=about))
    sides = (pair.single, pair.multi)
    for side in sides:
        own, whose = (side.config_id,), device_words(side)
        if words := untrained_steps(side.rank_summaries):
            brief = f"of {whose} {words.partition(' (')[0]}"
            doubts.append(Doubt("untrained", f"{whose}: {words}", brief, about=own))
        if clause := long_step_clause(side):
            doubts.append(Doubt("long_step", clause, about=own))
        if brief := disturbed_runs(side):
            doubts.append(Doubt("disturbed", f"{brief}: too many to set aside", brief, about=own))
    doubts += dict.fromkeys(
        Doubt("mixed", f"its repeats are of several {name}: {told}",
              f"its repeats are of several {name}", about=about)
        for side in sides
        for name, told in mixtures([r.cell for r in side.runs], ("code", "data_file")).items()
    )  # fmt: skip
    lost = lost_words(budgets.get(pair.multi.config_id))
    said = [*([lost] if lost else []), *(doubt.text for doubt in doubts)]
    if not said:
        return pair
    judgement = replace(pair.judgement, reason="; ".join([pair.judgement.reason, *said]))
    if not invalid and not explained:
        return replace(pair, judgement=judgement, doubts=tuple(doubts))
    # What the speedup cannot be believed for, the cost cannot be either.
    told = Judgement("invalid", judgement.reason)
    if explained:
        open_ = "whether it holds without the disturbance is open"
        told = Judgement("undecided", judgement.reason, judgement.asked, open=open_)
    return replace(pair, judgement=told, doubts=tuple(doubts), invalid=invalid, money="unknown")


def _without_contention(pair: Pair, budgets: Budgets) -> float | None:
    """The speedup without the time for which other processes held the cores of either side."""
    single, multi = (budgets.get(side.config_id) for side in (pair.single, pair.multi))
    if single is None or multi is None or multi.ideal_ms is None:
        return None
    ours, theirs = multi.loss("contention"), single.loss("contention")
    share = theirs.share if theirs else 0.0
    # That of several devices is counted from their ideal on.
    left_ms = multi.measured_ms - (ours.ms if ours else 0.0) - share * multi.ideal_ms
    return pair.speedup.value * (1 - share) * multi.measured_ms / left_ms if left_ms > 0 else None


def _limit(config: Configuration, budgets: Budgets, cause: LossCause) -> LostTime | None:
    """The loss of this cause, if it is a limit."""
    budget = budgets.get(config.config_id)
    found = budget.loss(cause) if budget is not None else None
    return found if found is not None and found.is_limit else None


def lost_words(budget: LossBudget | None) -> str:
    """``lost 18.2 ms a step: 9.5 compute that did not shrink, 6.9 ...``; empty if nothing is."""
    if budget is None or budget.ideal_ms is None:
        return ""
    largest = [loss for loss in budget.losses[:_MOST_LOSSES] if loss.share > WORTH_SAYING]
    if not largest:
        return ""
    each = ", ".join(f"{loss.ms:.3g} {CAUSE_WORDS[loss.cause]}" for loss in largest)
    net_ms = budget.measured_ms - budget.ideal_ms
    gained_ms = -sum(loss.ms for loss in budget.losses if loss.ms < 0)
    if gained_ms > WORTH_SAYING * budget.measured_ms:
        # Without it a single loss could exceed what was lost in all.
        return f"lost {net_ms + gained_ms:.3g} ms a step and gained {gained_ms:.3g}: {each}"
    return f"lost {net_ms:.3g} ms a step: {each}"


def clock_ratio(pair: Pair) -> float:
    """Mean SM clock over runs of several devices over that of one; 1 where it was not read.

    One GPU that works hard is held at its power cap, while several that wait run faster.
    """
    multi, single = mean_clock_mhz(pair.multi), mean_clock_mhz(pair.single)
    return multi / single if multi and single else 1.0


def _superlinear(pair: Pair, clocks: float) -> str:
    clock = "" if clocks == 1 else f" (at {factor(clocks)} times the single device's clock)"
    return (
        f"more than linear: efficiency {factor(pair.efficiency.value)}{clock}, and nothing "
        "measured explains it: the single device does other work, or something slowed it"
    )


MOST_FAILURES = 2
"""Runs of a configuration that may fail before no more are added: it would fail for ever."""


@dataclass(frozen=True)
class Repeats:
    """Where configurations that are repeated together stand."""

    members: tuple[Configuration, ...]
    """A multi-device configuration and its single-device baseline, or one without a partner."""
    runs: int
    """Pairs of one round each; alone, or without a common round, runs of the shorter side."""
    wanted: int | None
    """The same number before the next look; None once it is decided."""
    because: Because | None
    """Why no more are needed; None while they are."""
    reason: str
    figure: str = ""
    """``1.15x (1.02-1.29)``; empty for one without a partner."""

    @property
    def label(self) -> str:
        return " against ".join(m.label for m in self.members)

    @property
    def brief(self) -> str:
        """``gpt2 ddp x2: undecided after 3 rounds, 1.15x (1.02-1.29); next look at 5``."""
        figure = f", {self.figure}" if self.figure else ""
        following = f"; next look at {self.wanted}" if self.because is None else ""
        state = {
            None: "undecided after", "verdict": "decided after", "failures": "no more runs after",
            "precision": "as narrow as asked for after", "cap": "undecided at the most,",
        }[self.because]  # fmt: skip
        rounds = f"{self.runs} {plural(self.runs, 'round')}"
        if aside := [one for member in self.members for one in member.set_aside]:
            rounds += f" ({len(aside)} {plural(len(aside), 'run')} set aside)"
        return f"{self.members[0].label}: {state} {rounds}{figure}{following}"

    def __str__(self) -> str:
        if self.because is None:
            return f"{self.label}: undecided after {self.runs} runs each; {self.reason}"
        why = {
            "verdict": "the verdict is decided",
            "precision": "the interval is as narrow as asked for",
            "cap": "the most that were allowed",
            "failures": "no more were added",
        }[self.because]
        return f"{self.label}: {self.runs} runs each; {why}: {self.reason}"


def assess(configs: Sequence[Configuration], pairs: Sequence[Pair]) -> tuple[Repeats, ...]:
    """Every pair of configurations with ``repeats=auto``, and every such one without a partner.

    Pure and without memory: the same records give the same answer, to the sweep that decides what
    runs next, to the one that resumes it, and to the report that says why it stopped.

    ``pairs`` of ``configs`` with the verdicts that are reported, doubts included: whatever stops
    for a verdict stops for that one.
    """
    asked = {c.config_id: a for c in configs if (a := adaptive(c.cells[0].config))}
    adapting = [
        p for p in pairs if p.multi.config_id in asked and p.single.config_id in asked
    ]  # fmt: skip
    paired = {m.config_id for p in adapting for m in (p.multi, p.single)}
    found = [_pair(p, asked[p.multi.config_id]) for p in adapting]
    alone = [c for c in configs if c.config_id in asked and c.config_id not in paired]
    return (*found, *(_alone(c, asked[c.config_id], _partners(c, configs)) for c in alone))


def _partners(config: Configuration, configs: Sequence[Configuration]) -> list[Configuration]:
    """What one device was to be compared with: the same workload on several."""
    if config.devices != 1:
        return []
    return [c for c in configs if c.workload == config.workload and c.devices != 1]


def _pair(pair: Pair, asked: Adaptive) -> Repeats:
    members = (pair.multi, pair.single)
    runs = count_pairs(*(m.rounds("global_samples_per_s") for m in members))
    # What is no verdict about a training job, a ceiling, is measured until its interval would be.
    judgement = pair.statistical if pair.judgement.verdict == "ceiling" else pair.judgement
    doubts = [doubt.text for doubt in pair.doubts]
    short = replace(judgement, reason="; ".join([pair.statistical.reason, *doubts]))
    ends = pair.speedup.interval
    found = stop_or_go_on(short, ends, runs, precision=asked.precision, cap=asked.cap)
    return replace(_repeats(members, runs, found, asked.cap), figure=times(pair.speedup))


def _alone(config: Configuration, asked: Adaptive, partners: Sequence[Configuration]) -> Repeats:
    values = config.values("global_samples_per_s")
    lost = [_failure((partner,)) for partner in partners]
    if partners and all(lost):
        found = StoppingDecision("failures", None, f"it has nothing to be compared with: {lost[0]}")
    elif not values:
        found = StoppingDecision(None, LOOKS[0], f"0 runs a side; the next look is at {LOOKS[0]}")
    else:
        found = decide_alone(values, precision=asked.precision, cap=asked.cap)
    return _repeats((config,), len(values), found, asked.cap)


def _repeats(
    members: tuple[Configuration, ...], runs: int, found: StoppingDecision, cap: int
) -> Repeats:
    """What the rule answered, unless runs fail or are set aside again and again."""
    failed, spent = _failure(members), _all_spent(members, cap)
    if failed is not None:
        found = StoppingDecision("failures", None, failed)
    elif found.because is None and spent is not None:
        found = StoppingDecision("cap", None, f"{spent}; {found.reason}")
    return Repeats(members, runs, found.wanted, found.because, found.reason)


def _all_spent(members: Sequence[Configuration], cap: int) -> str | None:
    """A neighbour that never goes away, or a file that changes again and again, would have repeats
    set aside and made up for, for ever."""
    for member in members:
        if member.elsewhere and len(member.cells) + len(member.elsewhere) >= cap:
            return f"{len(member.elsewhere)} runs of {member.label} had other devices or shares"
        if member.set_aside and len(member.runs) + len(member.set_aside) >= cap:
            remedies = " and ".join(dict.fromkeys(a.remedy for a in member.set_aside))
            count = len(member.set_aside)
            return f"{count} runs of {member.label} are set aside: run it again {remedies}"
    return None


def _failure(members: Sequence[Configuration]) -> str | None:
    for member in members:
        invalid = member.invalid
        if invalid:
            return f"{member.label}: {invalid[0].reason}"
        failed = [c for c in member.cells if c.state in ("failed", "skipped")]
        unmeasured = [r for r in member.runs if r.throughput is None]
        if len(failed) + len(unmeasured) >= MOST_FAILURES:
            why = failed[-1].ending.message if failed else unmeasured[-1].missing["throughput"]
            lost = len(failed) + len(unmeasured)
            return f"{lost} runs of {member.label} gave no figure ({why})"
    return None


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The configurations of a sweep, and what they say about one another."""

    configurations: tuple[Configuration, ...]
    pairs: tuple[Pair, ...]
    refused: tuple[Refused, ...]
    budgets: Budgets
    invalid: Mapping[str, tuple[Invalid, ...]]
    """``config_id`` to why its figures mean nothing; sound configurations are absent."""
    repeats: tuple[Repeats, ...]
    """Who needs how many runs under ``repeats=auto``, and why."""


def reach_verdicts(sweep: Sweep, min_efficiency: float = MIN_EFFICIENCY) -> Verdicts:
    """Measure every finished cell, compare what may be compared, and doubt what has to be."""
    configs = read_scaling(configurations(sweep))
    timed = timed_only(configs)
    pairs, refused = pair_all(timed, min_efficiency)
    baselines = {pair.multi.config_id: pair.single for pair in pairs}
    budgets = {
        i: budget
        for i, c in ((c.config_id, c) for c in configs)
        if (budget := make_budget(c, baselines.get(i))) is not None
    }
    judged = tuple(add_doubts(p, budgets, min_efficiency) for p in pairs)
    own = {c.config_id: found for c in timed if (found := c.invalid)}
    invalid = {p.multi.config_id: p.invalid for p in judged if p.invalid}
    invalid |= own
    repeats = assess(timed, judged)
    return Verdicts(configs, judged, refused, budgets, invalid, repeats)

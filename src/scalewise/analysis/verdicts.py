"""Every verdict of a sweep: what its report says, and what ``repeats=auto`` stops for.

Both come from here, so that no comparison is called decided that the report calls undecided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scalewise.analysis.configuration import (
    Configuration,
    configurations,
    describe_inferred_scaling,
    read_scaling,
)
from scalewise.analysis.doubts import Budgets, doubt_speedup
from scalewise.analysis.figures import factor, number
from scalewise.analysis.loss_budget import (
    CAUSE_WORDS,
    LossBudget,
    LossCause,
    LostTime,
    make_budget,
)
from scalewise.analysis.model import Sweep
from scalewise.analysis.remarks import Remark
from scalewise.analysis.repeats import Repeats, assess
from scalewise.analysis.scaling import Pair, Refused, pair_all
from scalewise.analysis.verdict import MIN_EFFICIENCY

WORTH_SAYING = 0.02
"""Share of the step below which a loss is not told in an answer."""

_MOST_LOSSES = 2
"""Losses that an answer names; the report has all of them."""


def worth_saying(budget: LossBudget | None) -> list[LostTime]:
    """Its losses, the largest first, but for those too small to tell."""
    return [loss for loss in budget.losses if loss.share > WORTH_SAYING] if budget else []


def lost_words(budget: LossBudget | None, names: Mapping[LossCause, str] = CAUSE_WORDS) -> str:
    """``lost 5.76 ms a step: 3.23 exposed transfer, 1.12 waiting for a core``; empty if nothing is.

    Where these parts are more than the whole, the largest gain follows.
    """
    worth = worth_saying(budget)[:_MOST_LOSSES]
    if budget is None or budget.ideal_ms is None or not worth:
        return ""
    gap = budget.measured_ms - budget.ideal_ms
    each = ", ".join(f"{number(loss.ms)} {names[loss.cause]}" for loss in worth)
    least = min(budget.losses, key=lambda loss: loss.ms)
    if least.ms < 0 and sum(loss.ms for loss in worth) > gap:
        each += f", offset by {number(-least.ms)} saved on {names[least.cause]}"
    return f"lost {number(gap)} ms a step: {each}" if gap > 0 else f"lost: {each}"


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The configurations of a sweep, and what they say about one another."""

    configurations: tuple[Configuration, ...]
    pairs: tuple[Pair, ...]
    refused: tuple[Refused, ...]
    budgets: Budgets
    invalid: Mapping[str, tuple[Remark, ...]]
    """``config_id`` to why its figures mean nothing; sound configurations are absent."""
    repeats: tuple[Repeats, ...]
    """Who needs how many runs under ``repeats=auto``, and why."""

    def say_why(self, pair: Pair) -> str:
        """The verdict's whole sentence: the interval, the largest losses, and the remarks."""
        if pair.invalid:
            return "; ".join(one.text for one in pair.invalid)
        said = [pair.judgement.reason, describe_inferred_scaling(pair.multi)]
        if pair.multi.is_ceiling:
            said = [
                f"{pair.devices} independent models, not one: the most that data parallelism could "
                f"reach on these devices is a speedup of {factor(pair.speedup.value)}"
            ]
        said.append(lost_words(self.budgets.get(pair.multi.config_id)))
        for one in pair.remarks:
            whose = f"{pair.single.device_words}: " * (one.about == pair.single.config_id)
            said.append(f"{whose}{one.text if one.gravity == 'undecided' else one.brief}")
        return "; ".join(dict.fromkeys(filter(None, said)))


def reach_verdicts(sweep: Sweep, min_efficiency: float = MIN_EFFICIENCY) -> Verdicts:
    """Measure every finished cell, compare what may be compared, and doubt what has to be."""
    configs = read_scaling(configurations(sweep))
    timed = tuple(config for config in configs if config.is_timed)
    pairs, refused = pair_all(timed, min_efficiency)
    baselines = {pair.multi.config_id: pair.single for pair in pairs}
    budgets = {
        i: budget
        for i, c in ((c.config_id, c) for c in configs)
        if (budget := make_budget(c, baselines.get(i))) is not None
    }
    judged = tuple(doubt_speedup(p, budgets) for p in pairs)
    own = {c.config_id: found for c in timed if (found := c.invalid)}
    invalid = {p.multi.config_id: p.invalid for p in judged if p.invalid}
    invalid |= own
    repeats = assess(timed, judged)
    return Verdicts(configs, judged, refused, budgets, invalid, repeats)

"""Why a configuration is not faster: a budget in ms from the ideal step on.

The ideal step is the baseline's, scaled to the samples that each device has: its n-th part where n
devices share one batch, all of it where each has a batch of its own. Every part of a step is held
against the same part of that ideal, so the losses add up to the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final, Literal

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.figures import number
from scalewise.analysis.run import Run
from scalewise.analysis.step_parts import LATE_SHARE, Part, StepParts, measure_parts
from scalewise.records import words_beside

LIMIT_SHARE: Final = 0.10
"""Share of the step from which a loss is a limit: repeats of a run differ by about as much."""
CLOCKS_SHARE: Final = 0.01
"""Share by which the SM clock lies below the other side's from which time is put down to it."""
LossCause = Literal[Part, "clocks", "unexplained"]


@dataclass(frozen=True)
class _Cause:
    """What a cause is called, as loss_budget.toml has it, and a template of what was measured."""

    words: str
    evidence: str
    short: str = ""
    of_script: str = ""
    of_collectives: str = ""
    of_weak: str = ""


_CAUSES: Final = words_beside(__file__, dict[LossCause, _Cause])
CAUSE_WORDS: Final = {name: cause.words for name, cause in _CAUSES.items()}


@dataclass(frozen=True)
class LostTime:
    """One cause of lost time."""

    cause: LossCause
    ms: float
    """A step, mean over runs. Below 0 the part shrank by more than its share: a gain."""
    share: float
    """Of the measured step."""
    evidence: str
    """What was measured, one plain sentence without its full stop."""
    rank: int | None = None
    """The rank that is waited for, where it is the same one in all runs."""
    by_script: bool = False
    """Whether a script of the user's own lost it."""
    is_weak: bool = False
    """Whether a device has no fewer samples than the baseline's: nothing was to shrink."""
    holds_collectives: bool = False
    """Whether ranks meet inside forward and backward, so that these hold that time too."""

    def words(self, *, short: bool = False) -> str:
        """What the cause is called; ``short`` in a line of 80 columns."""
        cause = _CAUSES[self.cause]
        return (
            (self.by_script and cause.of_script)
            or (self.holds_collectives and cause.of_collectives)
            or (self.is_weak and cause.of_weak)
            or (short and cause.short)
            or cause.words
        )

    @property
    def is_limit(self) -> bool:
        return self.share >= LIMIT_SHARE


@dataclass(frozen=True)
class LossBudget:
    """Where the time of one configuration goes, mean over its runs."""

    ideal_ms: float | None
    """None without a baseline: then the losses are whatever is not work of the device."""
    measured_ms: float
    work_ms: float
    """Forward and backward on the device, as they should be: the ideal's, or all of it."""
    losses: tuple[LostTime, ...]
    """Every cause that takes time, the largest first; with ``ideal_ms`` they add up to the gap."""
    knows_activity: bool
    """Whether the device's work was told from its host's lateness: see :class:`StepParts`."""
    at_equal_clocks: float | None = None
    """The speedup over the measured one if the side with the lower SM clock had the other's: the
    farthest from 1 that it can be. None where a clock was not read."""

    @property
    def limits(self) -> tuple[LostTime, ...]:
        """Losses of a tenth of the step or more, the largest first."""
        return tuple(loss for loss in self.losses if loss.is_limit)

    @property
    def late_rank(self) -> int | None:
        """The rank whose lateness is a limit; None where none is named."""
        waiting = self.loss("waiting")
        return waiting.rank if waiting is not None and waiting.is_limit else None

    def loss(self, cause: LossCause) -> LostTime | None:
        return next((loss for loss in self.losses if loss.cause == cause), None)

    def ms(self, cause: LossCause) -> float | None:
        """Lost to it; None where it takes no time."""
        found = self.loss(cause)
        return found.ms if found else None

    @property
    def first_ms(self) -> float:
        """What the losses lead on from: the ideal step, or the step's own work."""
        return self.work_ms if self.ideal_ms is None else self.ideal_ms


def make_budget(config: Configuration, baseline: Configuration | None = None) -> LossBudget | None:
    """The budget of ``config`` against ``baseline``; None where no run of it was timed.

    Without a baseline, or with one that was not timed, there is no ideal to be held against.
    """
    ours = _measured(config.runs)
    theirs = _measured(baseline.runs) if baseline is not None else []
    if not ours:
        return None
    scale = _scale(config, baseline) if baseline is not None and theirs else None
    parts = _means(ours)
    ideal = {name: (scale or 0.0) * ms for name, ms in _means(theirs).items()}
    causes: dict[LossCause, float] = {
        ("unexplained" if name == "untimed" else name): parts.get(name, 0.0) - ideal.get(name, 0.0)
        for name in {**parts, **ideal}
    }
    knows_activity = all(one.knows_activity for _, one in (*ours, *theirs))
    measured_ms = mean(one.step_ms for _, one in ours)
    ideal_ms = at_equal_clocks = None
    if scale is not None:
        if not knows_activity:
            _join_work_and_lateness(causes)
        assert baseline is not None
        ideal_ms = scale * mean(one.step_ms for _, one in theirs)
        clocks = config.clock_mhz, baseline.clock_mhz
        if clocks[0] and clocks[1]:
            lost_ms = _lost_to_clocks(parts, clocks[0] / clocks[1])
            causes["clocks"] = lost_ms
            causes["device_work"] = causes.get("device_work", 0.0) - lost_ms
            theirs_lost_ms = _lost_to_clocks(ideal, clocks[1] / clocks[0])
            at_equal_clocks = (
                measured_ms / (measured_ms - lost_ms) * (ideal_ms - theirs_lost_ms) / ideal_ms
            )
    else:
        causes.pop("device_work", None)
    rank = _late_rank([one for _, one in ours])
    figures = _figures(config, ours, ideal, rank)
    lost = [
        LostTime(
            cause,
            ms,
            ms / measured_ms,
            _CAUSES[cause].evidence.format(ms=parts.get(cause, 0.0), **figures),
            rank if cause == "waiting" else None,
            config.started_by == "script",
            scale is not None and scale >= 1,
            config.hides_collectives,
        )
        for cause, ms in causes.items()
        if ms != 0.0
    ]
    lost.sort(key=lambda loss: -loss.ms)
    work_ms = (ideal if scale is not None else parts).get("device_work", 0.0)
    return LossBudget(ideal_ms, measured_ms, work_ms, tuple(lost), knows_activity, at_equal_clocks)


Measured = Sequence[tuple[Run, StepParts]]


def _measured(runs: Iterable[Run]) -> list[tuple[Run, StepParts]]:
    return [(run, parts) for run in runs if (parts := measure_parts(run)) is not None]


def _means(measured: Measured) -> dict[LossCause, float]:
    names = dict.fromkeys(name for _, one in measured for name in one.ms)
    return {name: mean(one.ms.get(name, 0.0) for _, one in measured) for name in names}


def _scale(config: Configuration, baseline: Configuration) -> float | None:
    """Samples that each device of ``config`` has in a step over those of the baseline's."""
    ours, theirs = config.result, baseline.result
    if ours is None or theirs is None:
        return None
    if ours.global_batch_size is None or theirs.global_batch_size is None:
        return None
    return ours.global_batch_size / ours.world_size / (theirs.global_batch_size / theirs.world_size)


def _join_work_and_lateness(causes: dict[LossCause, float]) -> None:
    """Their sum alone is known without a GPU's activity: it goes under the one that lost more."""
    work, late = causes.get("device_work", 0.0), causes.get("host_late", 0.0)
    both = work + late
    causes["host_late"], causes["device_work"] = (both, 0.0) if late > work else (0.0, both)


def _lost_to_clocks(parts: Mapping[LossCause, float], ratio: float) -> float:
    """Ms that the device's work would not have taken at the other side's higher SM clock.

    Work whose time does not follow the clock (memory) is counted as if it did: an upper bound.
    ``ratio`` is the clock over the other side's.
    """
    return parts.get("device_work", 0.0) * (1 - ratio) if ratio <= 1 - CLOCKS_SHARE else 0.0


def _figures(
    config: Configuration, measured: Measured, ideal: Mapping[LossCause, float], rank: int | None
) -> dict[str, Any]:
    """What the evidence of causes is filled in with."""
    parts, ideal_ms = [one for _, one in measured], ideal.get("device_work")
    times = reductions_per_step(config) if reduces_redundantly(config) else None
    return {
        "ideally": f", ideally {ideal_ms:.3g} ms" if ideal_ms else "",
        "activity": _activity_words(config),
        "reductions": f"; gradients are reduced {times:g} times a step" if times else "",
        "waiting": _waiting_words(parts, rank),
        "callbacks": _callbacks_words(measured),
        "between": _between_words(config),
        "long_steps": _long_words(parts),
        "clock_mhz": config.clock_mhz or 0.0,
    }


def _late_rank(parts: Sequence[StepParts]) -> int | None:
    """The rank that is latest in all runs: by luck one of two is, in two of three runs."""
    rank, *others = {one.late_rank for one in parts}
    often = sum(one.late_share > LATE_SHARE for one in parts)
    return rank if not others and 2 * often > len(parts) else None


def _waiting_words(parts: Sequence[StepParts], rank: int | None) -> str:
    if rank is None:
        return "the ranks are late in turns"
    share = mean(one.late_share for one in parts if one.late_rank == rank)
    return f"rank {rank} makes up {share:.0%} of it"


def _callbacks_words(measured: Measured) -> str:
    """``ModelCheckpoint takes 1.6 ms a step``: the dearest first."""
    each: dict[str, list[float]] = {}
    ranks = [rank for run, _ in measured for rank in run.ranks]
    for rank in ranks:
        for name, ms in rank.callbacks_ms_per_step.items():
            each.setdefault(name, []).append(ms)
    means = {name: sum(found) / len(ranks) for name, found in each.items()}
    named = sorted(means.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} takes {ms:.3g} ms a step" for name, ms in named)


def _between_words(config: Configuration) -> str:
    """A script may reduce its gradients there, where no hook sees it."""
    if config.started_by != "script":
        return "the loop and hooks take"
    reduced = config.devices == 1 or any(r.communication for r in config.rank_summaries)
    own = "" if reduced else ", its communication perhaps among it,"
    return f"what the script does beside these parts{own} takes"


def _long_words(parts: Sequence[StepParts]) -> str:
    worst = max(parts, key=lambda one: one.ms["long_steps"] / one.step_ms).path
    of = f"{worst.long_steps} of {worst.steps} steps take over 3 medians"
    return f"{of}, the longest {worst.longest:.3g} ms"


def _activity_words(config: Configuration) -> str:
    """``; SMs busy 59 %, tensor cores 35 %`` while the run was timed; empty where not counted."""
    names = {"sm_activity_percent": "SMs busy", "tensor_activity_percent": "tensor cores"}
    known = {words: percent for name, words in names.items()
             if (percent := config.mean_of_devices(name)) is not None}  # fmt: skip
    told = ", ".join(f"{words} {percent:.0f} %" for words, percent in known.items())
    return f"; {told}" if told else ""


WORTH_SAYING = 0.02
"""Share of the step below which a loss, or a gain, is not told in an answer."""
_MOST_LOSSES = 2
"""Losses that an answer names; the report has all of them."""


def worth_saying(budget: LossBudget | None) -> list[LostTime]:
    """Its losses, the largest first, but for those too small to tell."""
    return [loss for loss in budget.losses if loss.share > WORTH_SAYING] if budget else []


def lost_words(budget: LossBudget | None, *, short: bool = False) -> str:
    """``lost 5.76 ms a step: 3.23 exposed transfer, 1.12 waiting for a core``; empty if nothing is.

    Where these parts are more than the whole, the largest gain follows.
    """
    worth = worth_saying(budget)[:_MOST_LOSSES]
    if budget is None or budget.ideal_ms is None or not worth:
        return ""
    gap = budget.measured_ms - budget.ideal_ms
    each = ", ".join(f"{number(one.ms)} {one.words(short=short)}" for one in worth)
    least = min(budget.losses, key=lambda loss: loss.ms)
    if least.share < -WORTH_SAYING and sum(loss.ms for loss in worth) > gap:
        saved = least.words(short=short).partition(" that ")[0]
        each += f", offset by {number(-least.ms)} saved on {saved}"
    return f"lost {number(gap)} ms a step: {each}" if gap > 0 else f"lost: {each}"


_MORE_THAN_ONCE: Final = 1.05
"""Reductions a step from which some are redundant; an epoch's last, shorter step may add one."""


def reductions_per_step(config: Configuration) -> float | None:
    """How often gradients are reduced for one optimizer step; None where none are."""
    counted = [
        r.communication.rounds_per_step
        for r in config.rank_summaries
        if r.communication is not None and r.communication.what == "gradients"
    ]
    return max(counted, default=None)


def reduces_redundantly(config: Configuration) -> bool:
    """Whether gradients are reduced after every batch though a step comes after several."""
    # LBFGS asks for the gradients of a batch several times a step, and needs each.
    if any("LBFGS" in (rank.own_optimizer or "") for rank in config.rank_summaries):
        return False
    return (reductions_per_step(config) or 0.0) > _MORE_THAN_ONCE

"""Rows ranked by a figure: the fastest, the best learned, and numbers of devices side by side.

Numbers of devices stand in one ladder where all of them have the same single-device baseline and
strategy, and no field of identity in which they differ but the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from scalewise.analysis.comparability import differences, grouped
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.run import RUN_FIGURES
from scalewise.analysis.scaling import Pair, rate_ratio
from scalewise.analysis.statistics import VERDICT_RUNS, RatioEstimate, bonferroni, estimate_ratio
from scalewise.config import DEFAULT_OBJECTIVE, Mode, known_mode, of_validation

Ranked = TypeVar("Ranked")


@dataclass(frozen=True)
class Ranking(Generic[Ranked]):
    """Rows, the fastest first, and those that may be as fast."""

    rows: tuple[Ranked, ...]
    rivals: tuple[Ranked, ...]
    """Not shown to be slower than the first, the fastest of them first."""
    lead: RatioEstimate | None
    """Of the first over its first rival, else over the second; None of one row."""

    @property
    def first(self) -> Ranked:
        return self.rows[0]


def samples_per_s(config: Configuration) -> float:
    """The mean over runs; 0 where none has it."""
    found = config.estimate("global_samples_per_s")
    return found.value if found is not None else 0.0


def rank(
    rows: Iterable[Ranked],
    of: Callable[[Ranked], float],
    ratio_of: Callable[[Ranked, Ranked, float], RatioEstimate],
) -> Ranking[Ranked]:
    """Sort rows that have the figure ``of``, one or more, of which more is better.

    A row is beaten if the first's ratio to it lies above 1 with its whole interval, of three runs
    or more. The intervals hold for all rows together: ``ratio_of`` takes their confidence.
    """
    first, *others = sorted(rows, key=of, reverse=True)
    ratios = [ratio_of(first, other, bonferroni(len(others))) for other in others]
    near = [i for i, r in enumerate(ratios) if min(r.n) < VERDICT_RUNS or not r.is_above(1)]
    lead = ratios[near[0] if near else 0] if ratios else None
    return Ranking((first, *others), tuple(others[i] for i in near), lead)


@dataclass(frozen=True)
class LadderRow:
    """One number of devices in a ladder."""

    config: Configuration
    devices: int
    pair: Pair | None = None
    """None of the single device."""
    smaller: int | None = None
    """The next smaller number; None of the single device, and where that is not comparable."""
    gain: RatioEstimate | None = None
    """Samples/s over those of the smaller number."""


Ladder = tuple[LadderRow, ...]
"""One workload and strategy from one device up; more devices below fewer."""


def ladders(pairs: Sequence[Pair]) -> tuple[Ladder, ...]:
    """Every workload and strategy that ran on one device and on several, in the pairs' order.

    Independent models are left out: they are a bound, and nothing that one could choose. So are
    invalid pairs.
    """
    sound = (pair for pair in pairs if not pair.multi.is_ceiling and not pair.invalid)
    groups = grouped(sound, lambda pair: (pair.single.config_id, _same(pair.multi)))
    return tuple(map(_ladder, groups.values()))


def _same(config: Configuration) -> tuple[tuple[str, str], ...]:
    """What those of one ladder share: the strategy's settings but its devices, and the scaling."""
    fields = {k: v for k, v in config.identity.items() if k.startswith("strategy.")}
    fields.pop("strategy.devices", None)
    return tuple(sorted({**fields, "scaling": config.identity.get("scaling", "")}.items()))


def _ladder(pairs: Sequence[Pair]) -> Ladder:
    found = [LadderRow(pairs[0].single, 1)]
    for pair in sorted(pairs, key=lambda p: p.devices):
        smaller = [rung for rung in found if rung.devices < pair.devices]
        found.append(_beside(fastest_of_each(smaller)[-1], pair))
    return tuple(found)


def _beside(below: LadderRow, pair: Pair) -> LadderRow:
    if below.pair is not None and differences(below.config.identity, pair.multi.identity):
        return LadderRow(pair.multi, pair.devices, pair)
    gain = pair.speedup if below.pair is None else rate_ratio(pair.multi, below.config)
    return LadderRow(pair.multi, pair.devices, pair, below.devices, gain)


def fastest_of_each(rungs: Sequence[LadderRow]) -> tuple[LadderRow, ...]:
    """One of each number of devices, in their order.

    Of two with as many (other GPUs of the host) neither is the other's next, and nobody who adds
    devices would begin with the slower one.
    """
    each = grouped(rungs, lambda rung: rung.devices).values()
    return tuple(max(same, key=lambda rung: samples_per_s(rung.config)) for same in each)


def devices_to_take(ladder: Ladder) -> LadderRow:
    """The most devices that pay and are faster than the next smaller number; else one device."""
    worth = [
        rung
        for rung in fastest_of_each(ladder)
        if rung.pair is not None
        and rung.pair.verdict == "pays"
        and (rung.gain is None or rung.gain.is_above(1))
    ]
    return worth[-1] if worth else ladder[0]


_HOW_IT_RUNS = (
    "execution", "batch", "scaling", "accumulate_grad_batches", "dataset.loader", "max_steps",
    "max_epochs", "measure.min_time_s", "warmup_steps",
)  # fmt: skip


def train_the_same(one: Configuration, other: Configuration) -> bool:
    """Whether they differ in devices, strategy, batch and how they run alone."""
    return not differences(one.identity, other.identity, also=_HOW_IT_RUNS)


@dataclass(frozen=True)
class Objective:
    """A metric that modules logged, and which value is the better one."""

    metric: str
    mode: Mode
    was_typed: bool
    """Else it is the first score of validation that runs logged."""


def asked_in_vain(configs: Sequence[Configuration]) -> str | None:
    """An objective that was typed and that no run logged; None where there is none such."""
    typed = {config.setting("sweep.objective"): None for config in configs}
    known = {None, DEFAULT_OBJECTIVE, *RUN_FIGURES, *(k for one in configs for k in one.logged)}
    return next((key for key in typed if key not in known), None)


def objective_of(configs: Sequence[Configuration]) -> Objective | None:
    """What the rows of a sweep are to be ranked by; None where nobody says, or nothing has it."""
    if asked_in_vain(configs) is not None:
        return None
    logged = dict.fromkeys(key for config in configs for key in config.logged)
    for config in configs:
        key, mode = config.setting("sweep.objective"), config.setting("sweep.mode")
        if key != DEFAULT_OBJECTIVE and key in logged and (known := mode or known_mode(key)):
            return Objective(key, known, True)
    scores = ((key, known_mode(key)) for key in logged if of_validation(key))
    return next((Objective(key, mode, False) for key, mode in scores if mode is not None), None)


def rank_by(
    objective: Objective, configs: Sequence[Configuration]
) -> Iterator[Ranking[Configuration]]:
    """The rows of each data set that have the metric, two or more, the best first.

    Runs are samples by their seed, and are compared seed by seed where rows have the same ones.
    """
    sign = 1.0 if objective.mode == "max" else -1.0

    def goodness(config: Configuration) -> float:
        found = config.estimate(objective.metric)
        assert found is not None
        return sign * found.value

    def ratio(above: Configuration, below: Configuration, level: float) -> RatioEstimate:
        """How much better the first is; without an interval where a value is not positive."""
        sides = above.rounds(objective.metric), below.rounds(objective.metric)
        if objective.mode == "min":
            sides = sides[::-1]
        each = [[*(s.values() if isinstance(s, dict) else s)] for s in sides]
        if min(min(one) for one in each) <= 0:
            return RatioEstimate(1.0, (len(each[0]), len(each[1])), None, None)
        return estimate_ratio(*sides, level)

    having = [config for config in configs if config.estimate(objective.metric) is not None]
    for rows in grouped(having, lambda config: config.name("dataset")).values():
        if len(rows) > 1:
            yield rank(rows, goodness, ratio)

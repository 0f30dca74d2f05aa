"""Verdicts that rest on a step which other processes disturbed, or that are too good: said so.

Intervals over runs see noise between runs. A crowd that slows every run of one side alike moves
the speedup without widening its interval, and more than linear scaling is what that looks like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean

from scalewise.analysis.ceiling import is_ceiling
from scalewise.analysis.diagnosis import Diagnosis
from scalewise.analysis.figures import factor
from scalewise.analysis.identity import mixtures
from scalewise.analysis.lost_time import hiccup_clause, hiccup_line, long_step_clause, wait_clause
from scalewise.analysis.rank_validity import Invalid, untrained_steps
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.analysis.verdict import Judgement

LINEAR_UP_TO = 1.02
"""Efficiency up to which an interval is not called more than linear: a smaller share of the batch
that fits a cache gains a little."""

Diagnoses = Mapping[str, Sequence[Diagnosis]]
"""``config_id`` to what limits it."""


def doubted(pair: Pair, diagnoses: Diagnoses) -> Pair:
    """The pair with what its ranks wait and the doubts about its verdict in its reason.

    A whole interval beyond linear, after division by the ratio of the SM clocks, is *invalid*:
    something other than the devices made the difference. Beside a disturbed single device it is
    *inconclusive*, since the disturbance explains it; where that device is short of memory, the
    devices do gain what they seem to.
    """
    if pair.invalid:
        return pair
    disturbed = [(c, d) for c in (pair.single, pair.multi) if (d := _find_contention(c, diagnoses))]
    clocks = clock_ratio(pair)
    interval, value = pair.efficiency.interval, pair.efficiency.value / clocks
    beyond = interval is not None and interval.low / clocks > LINEAR_UP_TO
    explained = beyond and any(config is pair.single for config, _ in disturbed)
    invalid: tuple[Invalid, ...] = ()
    if beyond and not explained and not is_ceiling(pair.multi) and not _thrashes(pair, diagnoses):
        invalid = (Invalid("superlinear", _superlinear(pair, clocks)),)
    doubts = [one.reason for one in invalid]
    # A point beyond linear is within the noise unless there is a reason to doubt it.
    if not invalid and (beyond or (disturbed and value > LINEAR_UP_TO)):
        doubts.append(f"more than linear: efficiency {factor(value)}")
    if disturbed:
        each = " and ".join(_disturbed(config, found) for config, found in disturbed)
        doubts.append(f"{each}: measure again on a quiet host")
    both = (pair.single, pair.multi)
    without = ((side, untrained_steps(side.rank_summaries)) for side in both)
    doubts += [f"{_side(side)}: {words}" for side, words in without if words]
    doubts += [clause for side in both if (clause := long_step_clause(side))]
    doubts += [clause for side in both if (clause := _hiccups(side, diagnoses))]
    sides_cells = [[run.cell for run in side.runs] for side in (pair.single, pair.multi)]
    mixed = (mixtures(cells, ("code", "data_file")).items() for cells in sides_cells)
    doubts += dict.fromkeys(
        f"its repeats are of several {name}: {told}" for found in mixed for name, told in found
    )
    waits = wait_clause(pair.multi)
    said = [*([waits] if waits else []), *doubts]
    if not said:
        return pair
    told = pair.judgement
    verdict = "invalid" if invalid else "inconclusive" if explained else told.verdict
    judgement = Judgement(verdict, "; ".join([told.reason, *said]))
    return replace(pair, judgement=judgement, doubts=tuple(doubts), invalid=invalid)


def _thrashes(pair: Pair, diagnoses: Diagnoses) -> bool:
    """Whether the single device is short of memory, which several devices are not."""
    found = diagnoses.get(pair.single.config_id, ())
    return any(d.limit == "allocator thrash" for d in found)


def clock_ratio(pair: Pair) -> float:
    """Mean SM clock over runs of several devices over that of one; 1 where it was not read.

    One GPU that works hard is held at its power cap, while several that wait run faster.
    """
    clocks = [
        [run.usage.mean("sm_clock_mhz") for run in side.runs if run.usage is not None]
        for side in (pair.multi, pair.single)
    ]
    multi, single = ([mhz for mhz in side if mhz] for side in clocks)
    return mean(multi) / mean(single) if multi and single else 1.0


def _superlinear(pair: Pair, clocks: float) -> str:
    clock = "" if clocks == 1 else f" (at {factor(clocks)} times the single device's clock)"
    return (
        f"more than linear: efficiency {factor(pair.efficiency.value)}{clock}, and nothing "
        "measured explains it: the single device does other work, or something slowed it"
    )


def hiccup_lines(configs: Sequence[Configuration], diagnoses: Diagnoses) -> list[str]:
    """A line for each configuration of which hiccups took much, unless named as stalls."""
    found = ((c.label, hiccup_line(c)) for c in configs if not _stalls(c, diagnoses))
    return [f"{label}: {line}" for label, line in found if line]


def _hiccups(config: Configuration, diagnoses: Diagnoses) -> str | None:
    return None if _stalls(config, diagnoses) else hiccup_clause(config)


def _stalls(config: Configuration, diagnoses: Diagnoses) -> bool:
    return any(d.limit == "stalls" for d in diagnoses.get(config.config_id, ()))


def _find_contention(config: Configuration, diagnoses: Diagnoses) -> Diagnosis | None:
    """Named from a tenth of the step on (:mod:`scalewise.analysis.checks_host`)."""
    found = diagnoses.get(config.config_id, ())
    return next((d for d in found if d.limit == "host oversubscribed"), None)


def _disturbed(config: Configuration, found: Diagnosis) -> str:
    return f"the step of {_side(config)} was disturbed by other processes for {found.cost}"


def _side(config: Configuration) -> str:
    return "one device" if config.devices == 1 else f"{config.devices} devices"

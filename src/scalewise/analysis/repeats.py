"""Who needs how many repeats, and why: the state of ``repeats=auto`` as the records tell it.

Pure and without memory: the same records give the same answer, to the sweep that decides what
runs next, to the one that resumes it, and to the report that says why it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalewise.analysis.figures import estimate
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.analysis.sequential import (
    Adaptive,
    Decided,
    DecidedAlone,
    adaptive,
    decide_alone,
    stop_or_go_on,
)

MOST_FAILURES = 2
"""Runs of a configuration that may fail before no more are added: it would fail for ever."""

Because = Literal["verdict", "precision", "cap", "failures"]


@dataclass(frozen=True)
class Repeats:
    """Where configurations that are repeated together stand."""

    members: tuple[Configuration, ...]
    """A multi-device configuration and its single-device twin, or one without a partner."""
    runs: int
    """Finished, of the member that has fewest."""
    wanted: int | None
    """Finished runs each member needs before the next look; None once it is decided."""
    because: Because | None
    """Why no more are needed; None while they are."""
    reason: str

    @property
    def label(self) -> str:
        return " against ".join(m.label for m in self.members)

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
    return (*found, *(_alone(c, asked[c.config_id]) for c in alone))


def _pair(pair: Pair, asked: Adaptive) -> Repeats:
    members = (pair.multi, pair.single)
    runs = min(len(m.values("samples_per_s")) for m in members)
    failed = _failure(members)
    if failed is not None:
        return Repeats(members, runs, None, "failures", failed)
    # What is no verdict about a training job, a ceiling, is measured until its interval would be.
    judgement = pair.statistical if pair.judgement.verdict == "ceiling" else pair.judgement
    short = replace(judgement, reason="; ".join([pair.statistical.reason, *pair.doubts]))
    found = stop_or_go_on(short, pair.speedup, runs, precision=asked.precision, cap=asked.cap)
    if isinstance(found, Decided):
        return Repeats(members, runs, None, found.because, found.judgement.reason)
    spent = _all_spent(members, asked.cap)
    if spent is not None:
        return Repeats(members, runs, None, "cap", f"{spent}; {found.reason}")
    return Repeats(members, runs, found.runs_each, None, found.reason)


def _alone(config: Configuration, asked: Adaptive) -> Repeats:
    values = config.values("samples_per_s")
    failed = _failure((config,))
    if failed is not None:
        return Repeats((config,), len(values), None, "failures", failed)
    found = decide_alone(values, precision=asked.precision, cap=asked.cap)
    if isinstance(found, DecidedAlone):
        reason = f"{estimate(found.figure)} samples/s"
        return Repeats((config,), len(values), None, found.because, reason)
    spent = _all_spent((config,), asked.cap)
    if spent is not None:
        return Repeats((config,), len(values), None, "cap", f"{spent}; {found.reason}")
    return Repeats((config,), len(values), found.runs_each, None, found.reason)


def _all_spent(members: Sequence[Configuration], cap: int) -> str | None:
    """A neighbour that never goes away, or a file that changes again and again, would have repeats
    set aside and made up for, for ever."""
    for member in members:
        if member.aside and len(member.runs) + len(member.aside) >= cap:
            remedies = " and ".join(dict.fromkeys(a.remedy for a in member.aside))
            return (
                f"{len(member.aside)} runs of {member.label} are set aside: run it again {remedies}"
            )
    return None


def _failure(members: Sequence[Configuration]) -> str | None:
    for member in members:
        invalid = member.invalid
        if invalid:
            return f"{member.label}: {invalid[0].reason}"
        failed = [c for c in member.cells if c.state in ("failed", "skipped")]
        unmeasured = [r for r in member.runs if r.throughput is None]
        if len(failed) + len(unmeasured) >= MOST_FAILURES:
            why = failed[-1].failure if failed else unmeasured[-1].missing["throughput"]
            lost = len(failed) + len(unmeasured)
            return f"{lost} runs of {member.label} gave no figure ({why})"
    return None

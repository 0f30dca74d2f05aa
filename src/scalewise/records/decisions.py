"""Decisions about a cell, with the evidence.

``decision.json``: the strategy that was fastest. ``imported.json``: a published result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from scalewise.records.files import WorldSize

_LOPSIDED = 0.05
"""How far from the middle of its interval, in halves of it, a figure is still written with ±; as
reports write theirs."""


@dataclass(frozen=True)
class CandidateEvidence:
    """The outcome of the short runs of one strategy."""

    name: str
    devices: int | None
    """Devices it ran on; None where no run ended well."""
    runs: int
    """Those that gave a figure."""
    global_samples_per_s: float | None
    """Mean over runs."""
    low: float | None = None
    """Lower end of its 95 % t interval; None with fewer than two runs."""
    high: float | None = None
    problem: str = ""
    """Why there is no figure."""

    @property
    def doubt(self) -> str:
        """The interval as it is written behind the figure: a half of it where both are alike.

        Intervals of rates come from logarithms; a half of a wide one would reach below zero.
        """
        if self.global_samples_per_s is None or self.low is None or self.high is None:
            return ""
        half, middle = (self.high - self.low) / 2, (self.high + self.low) / 2
        if abs(middle - self.global_samples_per_s) > _LOPSIDED * half:
            return f" [{_rate(self.low)}, {_rate(self.high)}]"
        return f" ± {half:,.0f}"


@dataclass(frozen=True)
class ThresholdRule:
    """The choice of the published PCIe study's rule, from parameters and batch alone."""

    says: Literal["single", "ddp", "undecided"]
    reason: str


@dataclass(frozen=True)
class StrategyDecision:
    """The strategy chosen, and what it was chosen by; absent where it was asked for by name."""

    FILE: ClassVar[str] = "decision.json"
    chosen: str
    reason: str
    speedup: float | None
    """Samples/s of the fastest candidate over those of the one with fewest devices; where they are
    the same, of the other over those. None with one candidate measured."""
    speedup_low: float | None
    """Lower end of its interval: at 95 %, for all candidates together where there are several."""
    speedup_high: float | None
    probe_steps: int
    """Steps of each short run, warm-up included."""
    candidates: tuple[CandidateEvidence, ...]
    rule: ThresholdRule | None
    """None where the parameters are not known."""

    def lines(self) -> tuple[str, str, str]:
        """The measurement, the choice and the rule of thumb, a line each."""
        return self._measured(), f"chosen: {self.chosen}; {self.reason}", self._baseline()

    def _measured(self) -> str:
        each = []
        for one in self.candidates:
            if one.global_samples_per_s is None:
                each.append(f"{one.name} has no figure ({one.problem})")
                continue
            each.append(
                f"{one.name} x{one.devices} {one.global_samples_per_s:,.0f}{one.doubt} samples/s "
                f"({one.runs} run{'s' if one.runs != 1 else ''})"
            )
        return f"measured in {self.probe_steps} steps each: {', '.join(each)}"

    def _baseline(self) -> str:
        if self.rule is None:
            return "published rule of thumb: not asked, the parameters are not known"
        agrees = {True: "agrees", False: "disagrees with the measurement"}
        verdict = "leaves it open" if self.rule.says == "undecided" else agrees[self.agrees]
        return f"published rule of thumb: {self.rule.says} ({self.rule.reason}); {verdict}"

    @property
    def agrees(self) -> bool:
        """Whether the rule of thumb chooses one device or several as the measurement does."""
        if self.rule is None:
            return False
        return (self.rule.says == "single") == (self.chosen == "single")


def _rate(samples_per_s: float) -> str:
    """Whole samples/s, two digits below 10: intervals of two runs end near zero, never at it."""
    return f"{samples_per_s:,.0f}" if samples_per_s >= 10 else f"{samples_per_s:.2g}"


@dataclass(frozen=True)
class ImportedResult:
    """One published line beside the records of a cell. None is "not published"."""

    FILE: ClassVar[str] = "imported.json"
    devices: WorldSize
    global_batch_size: PositiveInt
    step_time_ms: PositiveFloat
    samples_per_s: PositiveFloat
    """As it was published, whatever was counted."""
    communication_ms: float | None = None
    """Published communication a step."""

    @property
    def counted_batch(self) -> float:
        """The samples a step that the published throughput stands for."""
        return self.samples_per_s * self.step_time_ms / 1e3

"""Decisions about a cell, with the evidence.

``decision.json``: the strategy that was fastest. ``imported.json``: a published result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from scalewise.records.files import WorldSize


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

    def __str__(self) -> str:
        if self.global_samples_per_s is None:
            return f"{self.name} has no figure ({self.problem})"
        interval = ""
        if self.low is not None and self.high is not None:
            interval = f" ({_rate(self.low)}-{_rate(self.high)})"
        runs = f"{self.runs} run{'s' if self.runs != 1 else ''}"
        rate = f"{self.global_samples_per_s:,.0f}{interval} samples/s"
        return f"{self.name} x{self.devices} {rate} ({runs})"


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
        measured = f"measured in {self.probe_steps} steps each: "
        measured += ", ".join(map(str, self.candidates))
        return measured, f"chosen: {self.chosen}; {self.reason}", self._baseline()

    def _baseline(self) -> str:
        if self.rule is None:
            return "published rule of thumb: not asked, the parameters are not known"
        # It chooses one device or several, no strategy.
        agrees = (self.rule.says == "single") == (self.chosen == "single")
        verdict = "agrees" if agrees else "disagrees with the measurement"
        if self.rule.says == "undecided":
            verdict = "leaves it open"
        return f"published rule of thumb: {self.rule.says} ({self.rule.reason}); {verdict}"


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

    @property
    def counted_batch(self) -> float:
        """The samples a step that the published throughput stands for."""
        return self.samples_per_s * self.step_time_ms / 1e3

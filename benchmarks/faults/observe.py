"""What is named in each run of a self-test: limits of its budget by size, then codes of findings.

What was planted is read from the overrides of the cell; the analysis gets the records alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from faults.plan import ALONE, CROWDED, Fault, Workload
from scalewise.analysis import CAUSE_WORDS, Configuration, LostTime, Run
from scalewise.analysis.disturbances import disturbances
from scalewise.analysis.loss_budget import make_budget
from scalewise.analysis.validity import check_published

HEALTHY = "healthy"
NOTHING = "nothing"
TRUE_LIMITS = frozenset(
    {"device_work", "host_late", "copy", "transfer", "optimizer", "between_steps"}
)
"""What may limit a healthy run: no fault of anybody's."""
POWER_CAP = "power cap"
"""Where a GPU that works hard is to be."""


@dataclass(frozen=True)
class Finding:
    """One finding: of an invalid run, a published figure, a slowed GPU or a disturbance."""

    code: str
    evidence: str


@dataclass(frozen=True)
class Observation:
    """What was planted in one run, and what was named."""

    fault: str
    expected: str
    magnitude: str
    strength: int
    """0 is the weakest."""
    losses: tuple[LostTime, ...]
    """Limits of the budget, the largest first."""
    step_ms: float | None = None
    """Mean step of the run; None where nothing ran for this observation."""
    findings: tuple[Finding, ...] = ()
    is_healthy: bool = False
    """Whether the training has no fault, whatever its host has."""

    @property
    def limits(self) -> tuple[str, ...]:
        return tuple(loss.cause for loss in self.losses)

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.code for one in self.findings))

    @property
    def first(self) -> str:
        """What the fault is judged by: findings have no size to stand among losses by."""
        named = self.limits if self.expected in {*CAUSE_WORDS, NOTHING} else self.codes
        return named[0] if named else NOTHING

    @property
    def accused(self) -> tuple[str, ...]:
        """Faults among what was named, without the one that was planted.

        Ranks that are late in turns accuse nobody. A crowd that is named makes steps long, and
        stops all ranks at once, too.
        """
        true = {*TRUE_LIMITS, self.expected}
        if CROWDED in self.limits:
            true |= {"common_stall", "long_steps"}
        faults = [
            one.cause for one in self.losses if one.cause != "waiting" or one.rank is not None
        ]
        return tuple(name for name in (*faults, *self.codes) if name not in true)

    @property
    def right(self) -> bool:
        """Named first what was planted; of a healthy training, nothing else."""
        named = self.fault == HEALTHY or self.first == self.expected
        return named and not (self.is_healthy and self.accused)


def observe_all(
    workload: Workload, configurations: Sequence[Configuration]
) -> Iterator[Observation]:
    """Every finished two-device run of a self-test's sweep."""
    planted = _by_overrides(workload)
    singles = {
        _planted_overrides(c): c for c in configurations if c.runs and set(ALONE) <= _overrides(c)
    }
    for config in configurations:
        if not config.runs or set(ALONE) <= _overrides(config):
            continue
        key = _planted_overrides(config)
        if key and key not in planted:
            continue
        fault, strength = planted[key] if key else (None, 0)
        for run in config.runs:
            yield observe(replace(config, runs=(run,)), fault, strength, singles.get(key))


def observe(
    config: Configuration, fault: Fault | None, strength: int, single: Configuration | None
) -> Observation:
    """What is named of one run, against the same on one device where that was run."""
    (run,) = config.runs
    budget = make_budget(config, single)
    is_healthy = fault is None or fault.is_healthy
    return Observation(
        HEALTHY if fault is None else fault.name,
        NOTHING if fault is None else fault.expected,
        "" if fault is None else fault.magnitudes[strength].words,
        strength,
        budget.limits if budget is not None else (),
        run.value("step_time_ms"),
        tuple(findings(run)),
        is_healthy,
    )


def findings(run: Run) -> Iterator[Finding]:
    """Invalid runs first, then published figures, slowed GPUs and disturbances."""
    yield from (Finding(one.code, one.text) for one in run.invalid)
    if run.cell.imported is not None:
        yield from (Finding(one.code, one.text) for one in check_published(run.cell.imported))
    for device in run.usage.devices if run.usage else ():
        reasons = set(device.throttle_reasons) - {POWER_CAP}
        if reasons:
            yield Finding("throttled", f"{device.label}: {', '.join(sorted(reasons))}")
    # The others say what cannot be told.
    told = [one for one in disturbances(run.cell) if one.gravity != "note"]
    yield from (Finding(one.code, one.text) for one in told)


def _by_overrides(workload: Workload) -> Mapping[frozenset[str], tuple[Fault, int]]:
    return {
        frozenset(fault.overrides(strength)): (fault, strength)
        for fault in workload.faults
        for strength in range(len(fault.magnitudes))
    }


def _overrides(config: Configuration) -> frozenset[str]:
    return frozenset(config.cells[0].planned.overrides)


def _planted_overrides(config: Configuration) -> frozenset[str]:
    """The fault of a cell and its magnitude, as they stand in its plan.

    A cell's overrides are those of the workload, the strategy, then the fault's.
    """
    every = config.cells[0].planned.overrides
    begin = next((i for i, text in enumerate(every) if text.startswith("+fault.")), len(every))
    return frozenset(every[begin:])

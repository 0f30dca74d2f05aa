"""What is named in each run of a self-test: limits by the diagnosis, disturbances by findings.

What was planted is read from the overrides of the cell; both get the records alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from faults.plan import ALONE, CROWDED, Fault, Workload
from scalewise.analysis import CODES, Configuration, Disturbance, Run
from scalewise.analysis.diagnosis import diagnose_run, in_order
from scalewise.analysis.diagnosis_case import Diagnosis
from scalewise.analysis.disturbances import disturbances

HEALTHY = "healthy"
NOTHING = "nothing"
TRUE_LIMITS = frozenset({"communication-bound", "launch-bound", "compute-bound", "memory-bound"})
"""What may limit a healthy run: no fault of anybody's."""


@dataclass(frozen=True)
class Observation:
    """What was planted in one run, and what was named."""

    fault: str
    expected: str
    magnitude: str
    strength: int
    """0 is the weakest."""
    named: tuple[Diagnosis, ...]
    """The largest first."""
    step_ms: float | None = None
    """Mean step of the run; None where nothing ran for this observation."""
    findings: tuple[Disturbance, ...] = ()
    is_healthy: bool = False
    """Whether the training has no fault, whatever its host has."""

    @property
    def limits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d.limit for d in self.named))

    @property
    def found(self) -> tuple[str, ...]:
        """Codes of what was found, without what cannot be told."""
        return tuple(one.code for one in self.findings if one.status == "found")

    @property
    def first(self) -> str:
        """Of what the fault is judged by: findings have no size to stand among limits by."""
        named = self.found if self.expected in CODES else self.limits
        return named[0] if named else NOTHING

    @property
    def accused(self) -> tuple[str, ...]:
        """Faults among what was named, without the one that was planted.

        A crowd that is named stops all ranks at once too.
        """
        true = {*TRUE_LIMITS, self.expected}
        if CROWDED in self.limits:
            true.add("common_stall")
        return tuple(name for name in (*self.limits, *self.found) if name not in true)

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
        if not key:
            yield from (observe(run, None, 0, None) for run in config.runs)
        elif key in planted:
            fault, strength = planted[key]
            yield from (observe(run, fault, strength, singles.get(key)) for run in config.runs)


def observe(
    run: Run, fault: Fault | None, strength: int, single: Configuration | None
) -> Observation:
    """Diagnose one run beside its single-device twin, where it has one."""
    named, findings = in_order(diagnose_run(run, single)), disturbances(run.cell)
    if fault is None:
        took_ms = run.value("step_time_ms")
        return Observation(HEALTHY, NOTHING, "", 0, named, took_ms, findings, True)
    words = fault.magnitudes[strength].words
    return Observation(
        fault.name,
        fault.expected,
        words,
        strength,
        named,
        run.value("step_time_ms"),
        findings,
        fault.is_healthy,
    )


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

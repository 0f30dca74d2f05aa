"""Step records of a training that is simulated: hosts that launch, GPUs that work, one reduction.

A host takes its phases one after another and launches each phase's kernels in pieces. Its GPU runs
them in order, as early as they were launched. Ranks meet at the reduction. A host may be a few
steps ahead of its GPU, and then waits in its forward. So what a delay costs, and where the marks
see it, comes from the queue, as on a real GPU, and from no rule of the analysis.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from scalewise.records import PHASES, STEP_DTYPE, WARMUP, StepSeries

Delay = Callable[[int, int], float]
"""Rank and step to extra ms."""
_PIECES = 40
_LEAD_STEPS = 3
_REACHED = 4
"""Phases until the last gradient is there."""


@dataclass(frozen=True)
class Training:
    """One run: mean ms of each phase on the host and on the GPU, without any delay."""

    ranks: int = 2
    host_ms: Mapping[str, float] = field(default_factory=dict)
    gpu_ms: Mapping[str, float] | None = None
    """None on a CPU, where ``host_ms`` is the work itself."""
    transfer_ms: float = 0.5
    host_delay: Mapping[str, Delay] = field(default_factory=dict)
    """By phase."""
    gpu_delay: Mapping[str, Delay] = field(default_factory=dict)
    steps: int = 100
    warmup: int = 20
    samples: int = 64
    noise: float = 0.02
    """CV of every phase's time."""


def simulate(training: Training) -> tuple[tuple[StepSeries, ...], list[float]]:
    """The step series of each rank, and the share of the timed steps in which its GPU worked."""
    ranks = [_Rank(training, rank) for rank in range(training.ranks)]
    for step in range(training.steps):
        for one in ranks:
            one.begin(step)
            for phase in ("data_wait", "h2d", "forward", "backward"):
                one.run(phase, step)
        arrived = max(one.arrived for one in ranks)
        for one in ranks:
            if training.ranks > 1:
                one.reduce(arrived + training.transfer_ms)
            one.mark()
            one.run("optimizer", step)
            one.run("other", step)
            one.end(step)
    series = tuple(StepSeries(rank, one.rows, 0) for rank, one in enumerate(ranks))
    return series, [one.activity for one in ranks]


class _Rank:
    """The clocks of one rank's host and GPU in ms, and the rows of its steps."""

    def __init__(self, training: Training, rank: int) -> None:
        self.training, self.rank = training, rank
        self.rows = np.zeros(training.steps, STEP_DTYPE)
        self.host = self.gpu = self.busy = self.timed_from = 0.0
        self.step_ends: list[float] = []
        self.marks: dict[str, list[float]] = {}
        self.random = np.random.default_rng(rank)

    @property
    def arrived(self) -> float:
        return self.host if self.training.gpu_ms is None else self.gpu

    @property
    def activity(self) -> float:
        return self.busy / max(1e-9, self.gpu - self.timed_from)

    def begin(self, step: int) -> None:
        if step == self.training.warmup:
            self.busy, self.timed_from = 0.0, self.gpu
        self.marks = {"host": [self.host], "device": [self.gpu]}

    def run(self, phase: str, step: int) -> None:
        told = self.training
        host_ms = self._drawn(told.host_ms.get(phase, 0.0)) + self._delay(
            told.host_delay, phase, step
        )
        if told.gpu_ms is None:
            self.host += host_ms
        else:
            if phase == "forward" and len(self.step_ends) >= _LEAD_STEPS:
                self.host = max(self.host, self.step_ends[-_LEAD_STEPS])
            gpu_ms = self._drawn(told.gpu_ms.get(phase, 0.0)) + self._delay(
                told.gpu_delay, phase, step
            )
            for _ in range(_PIECES):
                self.host += host_ms / _PIECES
                if gpu_ms:
                    self.gpu = max(self.gpu, self.host) + gpu_ms / _PIECES
            self.busy += gpu_ms
            # A mark is passed when it was recorded and all before it is done.
            self.gpu = max(self.gpu, self.host)
        self.mark()

    def reduce(self, until: float) -> None:
        if self.training.gpu_ms is None:
            self.host = until
        else:
            self.busy += until - self.gpu
            self.gpu = until
            self.host += 0.1

    def mark(self) -> None:
        self.marks["host"].append(self.host)
        self.marks["device"].append(self.gpu)

    def end(self, step: int) -> None:
        self.step_ends.append(self.gpu)
        row, told = self.rows[step], self.training
        row["step"], row["samples"] = step, told.samples
        row["start_ns"] = int(self.marks["host"][0] * 1e6)
        row["flags"] = WARMUP if step < told.warmup else 0
        for line, times in self.marks.items():
            known = line == "host" or told.gpu_ms is not None
            phases = np.diff(times) if known else np.full(len(PHASES), np.nan)
            for phase, ms in zip(PHASES, phases, strict=True):
                row[f"{line}_{phase}_ms"] = ms
            if told.ranks == 1:
                row[f"{line}_exposed_comm_ms"] = np.nan
            row[f"{line}_step_ms"] = phases.sum()
            row[f"{line}_arrival_ms"] = phases[:_REACHED].sum()

    def _drawn(self, ms: float) -> float:
        return float(ms * max(0.1, self.random.normal(1.0, self.training.noise)))

    def _delay(self, delays: Mapping[str, Delay], phase: str, step: int) -> float:
        return delays[phase](self.rank, step) if phase in delays else 0.0

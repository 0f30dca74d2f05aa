"""Every number of one finished run, each with the reason where it could not be taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scalewise.analysis.balance import LoadBalance, ShardAudit, audit_shards
from scalewise.analysis.devices import Usage, measure_usage
from scalewise.analysis.losses import (
    LossCurve,
    RunLosses,
    longest_loss_curve,
    loss_curve,
    run_losses,
)
from scalewise.analysis.model import CellRecords
from scalewise.analysis.step_figures import StepFigures, figures_of
from scalewise.analysis.steps import Anatomy, NotMeasuredError, Throughput, take
from scalewise.analysis.validity import Invalid, invalid_run
from scalewise.records import RankSummary, last_metrics


@dataclass(frozen=True)
class Run:
    """One finished cell and every number taken from it; None has its reason in ``missing``."""

    cell: CellRecords
    world_size: int
    throughput: Throughput | None
    anatomy: Anatomy | None
    balance: LoadBalance | None
    usage: Usage | None
    loss: LossCurve | None
    """The loss to compare by: on the validation set where that was scored."""
    loss_history: LossCurve | None
    """The loss with the most points, to look at."""
    shards: ShardAudit | None
    invalid: tuple[Invalid, ...] = ()
    """Why its figures mean nothing; empty for a sound run."""
    missing: Mapping[str, str] = field(default_factory=dict)

    def value(self, metric: Metric) -> float | None:
        """A figure of :data:`FIGURES`; None where it was not measured."""
        return FIGURES[metric][0](self)

    @property
    def samples_per_s(self) -> float | None:
        return self.value("global_samples_per_s")

    @property
    def utilization_readings(self) -> int:
        """Of all devices, of which ``utilization_percent`` is the mean; 0 where it is None."""
        return sum(d.utilization_readings for d in self.usage.devices) if self.usage else 0

    @property
    def ranks(self) -> Sequence[RankSummary]:
        return self.cell.result.ranks if self.cell.result else ()


def _energy_j(run: Run) -> float | None:
    """All devices, from first to last reading of the energy counter."""
    devices = run.usage.devices if run.usage else ()
    known = [d.energy.run_j for d in devices if d.energy and d.energy.run_j is not None]
    return sum(known) if known and len(known) == len(devices) else None


def _joules_per_step(run: Run) -> float | None:
    """All devices, over the timed steps."""
    joules = run.usage.timed_energy_j if run.usage else None
    return None if joules is None or run.throughput is None else joules / run.throughput.steps


def _joules_per_million_samples(run: Run) -> float | None:
    """All devices, by their energy over the timed steps, else by the mean of their power."""
    if run.usage is None or run.throughput is None or run.usage.source != "nvml":
        return None
    if run.usage.timed_energy_j is not None:
        return run.usage.timed_energy_j / run.throughput.samples * 1e6
    power_w = run.usage.power_w
    return None if power_w is None else power_w / run.throughput.global_samples_per_s * 1e6


def _peak_memory_mib(run: Run) -> float | None:
    """Largest over ranks: the allocator's peak on GPUs, the resident set on a CPU host."""
    peaks = [r.peak_allocated_mib if r.device.kind == "cuda" else r.peak_rss_mib for r in run.ranks]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _optimizer_memory_mib(run: Run) -> float | None:
    """Optimizer state of the rank that keeps most."""
    known = [r.optimizer_state_bytes for r in run.ranks if r.optimizer_state_bytes is not None]
    return max(known) / 2**20 if known else None


def _mean_of_devices(metric: str) -> Read:
    return lambda run: run.usage.mean(metric) if run.usage else None


def _cv_of_devices(metric: str) -> Read:
    return lambda run: run.usage.cv(metric) if run.usage else None


_ACCURACIES = ("val_accuracy", "val_acc")


def _accuracy(run: Run) -> float | None:
    """The last validation accuracy, as recorded: our own models record a share of 1."""
    last = last_metrics(run.ranks)
    return next((last[name] for name in _ACCURACIES if last.get(name) is not None), None)


Metric = str
"""A name in :data:`FIGURES`."""
Read = Callable[[Run], float | None]
Scale = Literal["positive", "not negative", "any sign"]

FIGURES: Mapping[Metric, tuple[Read, Scale]] = {
    "global_samples_per_s": (
        lambda r: r.throughput.global_samples_per_s if r.throughput else None,
        "positive",
    ),
    "step_time_ms": (
        lambda r: r.throughput.step_time_ms.mean if r.throughput else None,
        "positive",
    ),
    "loss_reached": (lambda r: r.loss.final if r.loss else None, "any sign"),
    "val_accuracy_reached": (_accuracy, "not negative"),
    "points_dropped_per_batch": (
        lambda r: last_metrics(r.ranks).get("points_dropped_per_batch"),
        "not negative",
    ),
    "peak_memory_per_device_mib": (_peak_memory_mib, "positive"),
    "memory_used_per_device_mib": (_mean_of_devices("memory_used_mib"), "positive"),
    "utilization_per_device_percent": (_mean_of_devices("utilization_percent"), "not negative"),
    "arrival_cv_percent": (lambda r: r.balance.cv_percent if r.balance else None, "not negative"),
    "memory_cv_percent": (_cv_of_devices("memory_used_mib"), "not negative"),
    "utilization_cv_percent": (_cv_of_devices("utilization_percent"), "not negative"),
    "power_cv_percent": (_cv_of_devices("power_w"), "not negative"),
    "sm_activity_cv_percent": (_cv_of_devices("sm_activity_percent"), "not negative"),
    "energy_j_per_step": (_joules_per_step, "positive"),
    "energy_j_per_run": (_energy_j, "positive"),
    "energy_j_per_million_samples": (_joules_per_million_samples, "positive"),
    "optimizer_memory_mib": (_optimizer_memory_mib, "not negative"),
}
"""Numbers of a run that can be estimated over repeats, each with the scale of its interval.

Figures of devices are means, or the CV, over the devices of a run."""


def measure_run(cell: CellRecords) -> Run:
    """Take every number of a finished cell. Raises ValueError for a cell without a result."""
    if cell.result is None:
        raise ValueError(f"{cell.planned.name}: only a finished cell can be measured")
    world_size = cell.result.world_size
    steps = figures_of(cell)
    missing = dict(steps.missing)
    batch, losses = cell.result.global_batch_size, run_losses(cell)
    shards = audit_shards(cell.shards, world_size, batch) if world_size > 1 else None
    return Run(
        cell=cell,
        world_size=world_size,
        throughput=steps.throughput,
        anatomy=steps.anatomy,
        balance=take(missing, "balance", _balance, cell, steps),
        usage=take(missing, "usage", measure_usage, cell.devices, steps.all_s, steps.timed_s),
        loss_history=take(missing, "loss", longest_loss_curve, losses.rows, losses.said),
        loss=take(missing, "loss", _final_loss, cell, losses),
        shards=shards,
        invalid=tuple(invalid_run(cell, shards, losses.rows, steps.contradiction)),
        missing=missing,
    )


def _final_loss(cell: CellRecords, losses: RunLosses) -> LossCurve:
    """Not of damaged metrics: the last one they hold is not what the run reached."""
    if cell.metric_faults:
        raise NotMeasuredError(cell.metric_faults[0])
    return loss_curve(losses.rows, said=losses.said)


def _balance(cell: CellRecords, steps: StepFigures) -> LoadBalance | None:
    ranks = cell.result.ranks if cell.result else ()
    reasons = [rank.missing["arrival"] for rank in ranks if "arrival" in rank.missing]
    if reasons:
        raise NotMeasuredError(reasons[0])
    return steps.balance

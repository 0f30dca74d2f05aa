"""Every number of one finished run, each with the reason where it could not be taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from scalewise.analysis.balance import LoadBalance, ShardAudit, audit_shards, measure_balance
from scalewise.analysis.devices import Usage, joules_per_million_samples, measure_usage
from scalewise.analysis.losses import (
    LossCurve,
    RunLosses,
    longest_loss_curve,
    loss_curve,
    run_losses,
)
from scalewise.analysis.model import CellRecords
from scalewise.analysis.steps import (
    Anatomy,
    NotMeasuredError,
    Throughput,
    measure_anatomy,
    measure_throughput,
)
from scalewise.analysis.validity import Invalid, invalid_run
from scalewise.records import data_shards_of

P = ParamSpec("P")
T = TypeVar("T")


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

    @property
    def samples_per_s(self) -> float | None:
        return self.throughput.global_samples_per_s if self.throughput else None

    @property
    def step_time_ms(self) -> float | None:
        return self.throughput.step_time_ms.mean if self.throughput else None

    @property
    def final_loss(self) -> float | None:
        return self.loss.final if self.loss else None

    @property
    def arrival_cv_percent(self) -> float | None:
        return self.balance.cv_percent if self.balance else None

    @property
    def memory_used_mib(self) -> float | None:
        return self.usage.mean("memory_used_mib") if self.usage else None

    @property
    def utilization_percent(self) -> float | None:
        return self.usage.mean("utilization_percent") if self.usage else None

    @property
    def utilization_readings(self) -> int:
        """Of all devices, of which ``utilization_percent`` is the mean; 0 where it is None."""
        return self.usage.utilization_readings if self.usage else 0

    @property
    def memory_cv_percent(self) -> float | None:
        return self.usage.cv("memory_used_mib") if self.usage else None

    @property
    def utilization_cv_percent(self) -> float | None:
        return self.usage.cv("utilization_percent") if self.usage else None

    @property
    def power_cv_percent(self) -> float | None:
        return self.usage.cv("power_w") if self.usage else None

    @property
    def sm_activity_cv_percent(self) -> float | None:
        """GPM's measure of load; None before Hopper."""
        return self.usage.cv("sm_activity_percent") if self.usage else None

    @property
    def energy_j(self) -> float | None:
        """All devices, from first to last reading of the energy counter."""
        devices = self.usage.devices if self.usage else ()
        known = [d.energy.run_j for d in devices if d.energy and d.energy.run_j is not None]
        return sum(known) if known and len(known) == len(devices) else None

    @property
    def joules_per_step(self) -> float | None:
        """All devices, over the timed steps."""
        if self.usage is None or self.throughput is None or self.usage.timed_energy_j is None:
            return None
        return self.usage.timed_energy_j / self.throughput.steps

    @property
    def joules_per_million_samples(self) -> float | None:
        if self.usage is None or self.throughput is None or self.usage.source != "nvml":
            return None
        if self.usage.timed_energy_j is not None:
            return self.usage.timed_energy_j / self.throughput.samples * 1e6
        return joules_per_million_samples(self.usage, self.throughput.global_samples_per_s)

    @property
    def optimizer_memory_mib(self) -> float | None:
        """Optimizer state, pruning masks and scores of the rank that keeps most."""
        ranks = self.cell.result.ranks if self.cell.result else ()
        known = [
            r.optimizer_state_bytes + (r.pruning_state_bytes or 0)
            for r in ranks
            if r.optimizer_state_bytes is not None
        ]
        return max(known) / 2**20 if known else None

    @property
    def pruned_share(self) -> float | None:
        """Share of the prunable weights that are 0 at the end, mean over ranks, 0 to 1."""
        ranks = self.cell.result.ranks if self.cell.result else ()
        known = [r.pruned_share for r in ranks if r.pruned_share is not None]
        return sum(known) / len(known) if known else None

    @property
    def peak_memory_mib(self) -> float | None:
        """Largest over ranks: the allocator's peak on GPUs, the resident set on a CPU host."""
        ranks = self.cell.result.ranks if self.cell.result else ()
        peaks = [r.peak_allocated_mib if r.device.kind == "cuda" else r.peak_rss_mib for r in ranks]
        known = [p for p in peaks if p is not None]
        return max(known) if known and len(known) == len(peaks) else None


def measure_run(cell: CellRecords) -> Run:
    """Take every number of a finished cell. Raises ValueError for a cell without a result."""
    if cell.result is None:
        raise ValueError(f"{cell.planned.name}: only a finished cell can be measured")
    world_size = cell.result.world_size
    missing: dict[str, str] = {}

    def take(name: str, measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return measure(*args, **kwargs)
        except NotMeasuredError as reason:
            missing[name] = str(reason)
            return None

    batch, losses = cell.result.global_batch_size, run_losses(cell)
    shards = audit_shards(cell.shards, world_size, batch) if world_size > 1 else None
    return Run(
        cell=cell,
        world_size=world_size,
        throughput=take(
            "throughput",
            measure_throughput,
            cell.steps,
            world_size,
            data_shards_of(cell.result.ranks),
        ),
        anatomy=take("anatomy", measure_anatomy, cell.steps, world_size),
        balance=take("balance", _measure_balance, cell, world_size),
        usage=take("usage", measure_usage, cell.devices, cell.steps),
        loss_history=take("loss", longest_loss_curve, losses.rows, losses.said),
        loss=take("loss", _final_loss, cell, losses),
        shards=shards,
        invalid=tuple(invalid_run(cell, shards, losses.rows)),
        missing=missing,
    )


def _final_loss(cell: CellRecords, losses: RunLosses) -> LossCurve:
    """Not of damaged metrics: the last one they hold is not what the run reached."""
    if cell.metric_faults:
        raise NotMeasuredError(cell.metric_faults[0])
    return loss_curve(losses.rows, said=losses.said)


def _measure_balance(cell: CellRecords, world_size: int) -> LoadBalance:
    ranks = cell.result.ranks if cell.result else ()
    reasons = [rank.missing["arrival"] for rank in ranks if "arrival" in rank.missing]
    if reasons:
        raise NotMeasuredError(reasons[0])
    return measure_balance(cell.steps, world_size)

"""Every finished run measured, and repeats gathered into what a table shows as one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, ParamSpec, TypeVar

from scalewise.analysis.balance import LoadBalance, measure_balance
from scalewise.analysis.breakdown import Anatomy, measure_anatomy
from scalewise.analysis.identity import Identity, identity
from scalewise.analysis.labels import configuration_labels, named, swept_order
from scalewise.analysis.load import Cell, Sweep
from scalewise.analysis.loss import LossCurve, longest_loss_curve, loss_curve
from scalewise.analysis.shards import ShardAudit, audit_shards
from scalewise.analysis.shared_host import Parted, part
from scalewise.analysis.statistics import (
    Estimate,
    estimate_mean,
    estimate_not_negative,
    estimate_positive,
)
from scalewise.analysis.throughput import (
    NotMeasuredError,
    Throughput,
    data_shards_of,
    measure_throughput,
)
from scalewise.analysis.usage import Usage, joules_per_million_samples, measure_usage

P = ParamSpec("P")
T = TypeVar("T")

Metric = Literal[
    "samples_per_s",
    "step_time_ms",
    "final_loss",
    "peak_memory_mib",
    "memory_used_mib",
    "utilization_percent",
    "arrival_cv_percent",
    "memory_cv_percent",
    "utilization_cv_percent",
    "power_cv_percent",
    "sm_activity_cv_percent",
    "joules_per_step",
    "energy_j",
    "joules_per_million_samples",
    "optimizer_memory_mib",
    "pruned_share",
]
"""Properties of :class:`Run` that can be estimated over repeats; device figures are means over
the devices of a run."""
_POSITIVE = frozenset(
    {
        "samples_per_s", "step_time_ms", "peak_memory_mib", "memory_used_mib", "joules_per_step",
        "energy_j", "joules_per_million_samples",
    }
)  # fmt: skip
_OF_ANY_SIGN = frozenset({"final_loss"})


@dataclass(frozen=True)
class Run:
    """One finished cell and every number taken from it; None has its reason in ``missing``."""

    cell: Cell
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


@dataclass(frozen=True)
class SetAside:
    """A finished run that is not compared, and why."""

    run: Run
    reason: str


@dataclass(frozen=True)
class Configuration:
    """All cells that differ in nothing but the repeat."""

    config_id: str
    label: str
    """Short and unique within the sweep."""
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]
    """The finished ones, but for those in ``aside``."""
    identity: Identity
    aside: tuple[SetAside, ...] = ()
    """Finished ones whose figures are not mixed with the others'."""

    @property
    def devices(self) -> int | None:
        """Devices it ran on; if it never ran, what it asked for (None: all of the host)."""
        if self.runs:
            return self.runs[0].world_size
        config = self.cells[0].config
        if config is not None and named(config, "strategy") == "single":
            return 1
        return self.cells[0].planned.devices

    def name(self, group: str) -> str | None:
        """``name("model")`` is the chosen model's name."""
        config = self.cells[0].config
        return None if config is None else named(config, group)

    def values(self, metric: Metric) -> list[float]:
        """``metric`` of every run that has it."""
        return [v for v in (getattr(run, metric) for run in self.runs) if v is not None]

    def estimate(self, metric: Metric) -> Estimate | None:
        """``metric`` over runs with its interval; None if no run has it.

        What is positive by its nature is estimated on a logarithmic scale (an energy counter may
        not have moved, and then cannot be), shares and CVs have an interval that ends at 0.
        """
        values = self.values(metric)
        if not values:
            return None
        if metric in _POSITIVE and min(values) > 0:
            return estimate_positive(values)
        return estimate_mean(values) if metric in _OF_ANY_SIGN else estimate_not_negative(values)

    @property
    def is_cpu(self) -> bool:
        results = [run.cell.result for run in self.runs]
        return any(d.device.kind == "cpu" for r in results if r for d in r.ranks)


def measure_run(cell: Cell) -> Run:
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

    batch = cell.result.global_batch_size
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
        loss=take("loss", loss_curve, cell.metrics.get(0, ())),
        loss_history=take("loss", longest_loss_curve, cell.metrics.get(0, ())),
        shards=audit_shards(cell.shards, world_size, batch) if world_size > 1 else None,
        missing=missing,
    )


def _measure_balance(cell: Cell, world_size: int) -> LoadBalance:
    ranks = cell.result.ranks if cell.result else ()
    reasons = [rank.missing["arrival"] for rank in ranks if "arrival" in rank.missing]
    if reasons:
        raise NotMeasuredError(reasons[0])
    return measure_balance(cell.steps, world_size)


def configurations(sweep: Sweep) -> tuple[Configuration, ...]:
    """The cells of a sweep grouped by ``config_id``.

    Workloads in the order of the plan, within them swept values, numbers from small to large, and
    within those single device first, so that twins stand below one another.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in sweep.cells:
        groups.setdefault(cell.planned.config_id, []).append(cell)
    for cells in groups.values():
        cells.sort(key=lambda c: c.planned.repeat)
    labels = configuration_labels({key: cells[0] for key, cells in groups.items()})
    parted = part(groups)
    found = [_configuration(key, labels[key], cells, parted[key]) for key, cells in groups.items()]
    ordered: list[Configuration] = []
    for workload in dict.fromkeys(map(_workload, found)):
        rows = [c for c in found if _workload(c) == workload]
        rows.sort(key=lambda c: c.devices or 1 << 30)
        swept = swept_order([c.label for c in rows])
        ordered += sorted(rows, key=lambda c: swept[c.label])
    return tuple(ordered)


def _configuration(
    config_id: str, label: str, cells: Sequence[Cell], finished: Parted
) -> Configuration:
    runs = tuple(measure_run(cell) for cell in finished.kept)
    aside = tuple(
        SetAside(measure_run(cell), finished.aside[cell.planned.name])
        for cell in cells
        if cell.planned.name in finished.aside
    )
    shared = identity(finished.kept or cells)
    return Configuration(config_id, label, tuple(cells), runs, shared, aside)


def _workload(config: Configuration) -> tuple[str | None, str | None]:
    return config.name("model"), config.name("dataset")

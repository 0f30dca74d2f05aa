"""Repeats gathered into what a table shows as one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scalewise.analysis import shared_host
from scalewise.analysis.cells import Cell, Sweep
from scalewise.analysis.identity import Identity, identity
from scalewise.analysis.labels import configuration_labels, named, swept_order
from scalewise.analysis.parted import Parted, part_by_protocol, part_by_state
from scalewise.analysis.rank_validity import Invalid
from scalewise.analysis.run import Run, measure_run
from scalewise.analysis.statistics import (
    Estimate,
    estimate_mean,
    estimate_not_negative,
    estimate_positive,
)
from scalewise.records import RankSummary

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
class SetAside:
    """A finished run that is not compared, and why."""

    run: Run
    reason: str
    """What it did, as ``shared the host with pid 4711 (python)``."""
    remedy: str
    """How to run it again so that it counts, as ``on a quiet host``."""


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
    def rank_summaries(self) -> list[RankSummary]:
        """Of every rank of every run."""
        return [r for run in self.runs if run.cell.result for r in run.cell.result.ranks]

    @property
    def invalid(self) -> tuple[Invalid, ...]:
        """Why its figures mean nothing, a reason of each code; empty where every run is sound.

        One run is enough: a mean with it in is as wrong as it is.
        """
        found = {one.code: one for run in reversed(self.runs) for one in run.invalid}
        return tuple(found.values())

    @property
    def is_cpu(self) -> bool:
        results = [run.cell.result for run in self.runs]
        return any(d.device.kind == "cpu" for r in results if r for d in r.ranks)


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
    parted = _parted(groups)
    found = [_configuration(key, labels[key], cells, parted[key]) for key, cells in groups.items()]
    ordered: list[Configuration] = []
    for workload in dict.fromkeys(map(_workload, found)):
        rows = [c for c in found if _workload(c) == workload]
        rows.sort(key=lambda c: c.devices or 1 << 30)
        swept = swept_order([c.label for c in rows])
        ordered += sorted(rows, key=lambda c: swept[c.label])
    return tuple(ordered)


def _parted(groups: Mapping[str, Sequence[Cell]]) -> dict[str, Parted]:
    """Repeats that were timed alike, of those the ones of the same code and data, and of those the
    ones with like neighbours."""
    found = {key: Parted(tuple(cells), {}) for key, cells in groups.items()}
    for part in (part_by_protocol, part_by_state, shared_host.part):
        again = part({key: parted.kept for key, parted in found.items()})
        found = {
            key: Parted(again[key].kept, {**parted.aside, **again[key].aside})
            for key, parted in found.items()
        }
    return found


def _configuration(
    config_id: str, label: str, cells: Sequence[Cell], finished: Parted
) -> Configuration:
    runs = tuple(measure_run(cell) for cell in finished.kept)
    aside = tuple(
        SetAside(measure_run(cell), why.reason, why.remedy)
        for cell in cells
        if (why := finished.aside.get(cell.planned.name)) is not None
    )
    shared = identity(finished.kept or cells)
    return Configuration(config_id, label, tuple(cells), runs, shared, aside)


def _workload(config: Configuration) -> tuple[str | None, str | None]:
    return config.name("model"), config.name("dataset")

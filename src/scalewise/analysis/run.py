"""Every number of one finished run, each with the reason where it could not be taken.

Model FLOPs utilisation is declared operations a second over what the device could do:

    MFU = flops_per_sample * samples per second and device / peak of one device

The operations are the model's own declaration (forward and backward of one sample), as in appendix
B of PaLM (arXiv:2204.02311). The peak is the data sheet's, which no kernel reaches, and beside it
the fastest GEMM that ``scalewise doctor`` measured on the same devices. A figure names its peak.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scalewise.analysis.balance import LoadBalance, ShardAudit, audit_shards
from scalewise.analysis.devices import Usage, measure_usage
from scalewise.analysis.figures import Figure, as_plain, mean_alone
from scalewise.analysis.labels import named
from scalewise.analysis.losses import (
    Losses,
    MetricCurve,
    logged_figures,
    longest_loss_curve,
    loss_curve,
    run_losses,
)
from scalewise.analysis.model import CellRecords, WarmUp, setting
from scalewise.analysis.remarks import Remark
from scalewise.analysis.step_figures import StepFigures, figures_of
from scalewise.analysis.steps import Anatomy, NotMeasuredError, Throughput, take
from scalewise.analysis.validity import invalid_run
from scalewise.records import (
    CellResult,
    DeviceInfo,
    DoctorReport,
    RankSummary,
    cv_text,
    last_metrics,
)


@dataclass(frozen=True)
class Run:
    """One finished cell and every number taken from it; None has its reason in ``missing``."""

    cell: CellRecords
    world_size: int
    throughput: Throughput | None
    anatomy: Anatomy | None
    balance: LoadBalance | None
    usage: Usage | None
    loss: MetricCurve | None
    """The loss to compare by: on the validation set where that was scored."""
    loss_history: MetricCurve | None
    """The loss with the most points, to look at."""
    shards: ShardAudit | None
    invalid: tuple[Remark, ...] = ()
    """Why its figures mean nothing; empty for a sound run."""
    logged: Mapping[str, float | None] = field(default_factory=dict)
    """What its module logged, by the figure's key: the last and the best value of each metric."""
    missing: Mapping[str, str] = field(default_factory=dict)

    def value(self, key: str) -> float | None:
        """A number of :data:`RUN_FIGURES`, or one that a module logged; None without it."""
        own = RUN_FIGURES.get(key)
        found: float | None = self.logged.get(key) if own is None else own.of(self)
        return found

    def as_plain(self) -> dict[str, Any]:
        own = {key: as_plain(figure.of(self)) for key, figure in RUN_FIGURES.items()}
        return {**own, **self.logged}

    @property
    def samples_per_s(self) -> float | None:
        return self.throughput.global_samples_per_s if self.throughput else None

    @property
    def utilization_readings(self) -> int:
        """Of all devices, of which ``utilization_percent`` is the mean; 0 where it is None."""
        return sum(d.utilization_readings for d in self.usage.devices) if self.usage else 0

    @property
    def result(self) -> CellResult:
        assert self.cell.result is not None, "only a finished cell is measured"
        return self.cell.result

    @property
    def ranks(self) -> Sequence[RankSummary]:
        return self.result.ranks


def _joules_per_step(run: Run) -> float | None:
    joules = run.usage.energy_j("timed_j") if run.usage else None
    return None if joules is None or run.throughput is None else joules / run.throughput.steps


def _joules_per_million_samples(run: Run) -> float | None:
    """All devices, by their energy over the timed steps, else by the mean of their power."""
    fed, rate = (run.throughput and run.throughput.samples), run.samples_per_s
    if run.usage is None or not fed or not rate or run.usage.source != "nvml":
        return None
    if (joules := run.usage.energy_j("timed_j")) is not None:
        return joules / fed * 1e6
    power_w = run.usage.power_w
    return None if power_w is None else power_w / rate * 1e6


def _peak_memory_mib(run: Run) -> float | None:
    """Largest over ranks: the allocator's peak on GPUs, the resident set on a CPU host."""
    peaks = [r.peak_allocated_mib if r.device.kind == "cuda" else r.peak_rss_mib for r in run.ranks]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _optimizer_memory_mib(run: Run) -> float | None:
    known = [r.optimizer_state_bytes for r in run.ranks if r.optimizer_state_bytes is not None]
    return max(known) / 2**20 if known else None


_ACCURACY = re.compile(r"val(id(ation)?)?[^A-Za-z0-9]acc(uracy)?")


def accuracy_of(run: Run) -> tuple[str, float] | None:
    """Name and last value of the validation accuracy, as recorded."""
    last = last_metrics(run.ranks).items()
    found = ((name, v) for name, v in last if v is not None and _ACCURACY.fullmatch(name))
    return next(found, None)


RunFigure = Figure[Run]


def _of_warm_up(read: Callable[[WarmUp], object]) -> Callable[[Run], object]:
    """None too where no step was timed."""
    return lambda run: read(run.cell.warm_up) if run.cell.warm_up and run.throughput else None


def _of_timed(read: Callable[[Throughput], float | None]) -> Callable[[Run], float | None]:
    return lambda run: read(run.throughput) if run.throughput else None


def _mean_of_devices(name: str) -> Callable[[Run], float | None]:
    return lambda run: run.usage.mean(name) if run.usage else None


def _cv_of_devices(name: str) -> Callable[[Run], float | None]:
    return lambda run: run.usage.cv(name) if run.usage else None


_ALL = (
    RunFigure("cell", lambda r: r.cell.planned.name, "name of the cell, and of its folder"),
    RunFigure("config_id", lambda r: r.cell.planned.config_id,
              "hash of the configuration without the repeat: its repeats share it"),
    RunFigure("repeat", lambda r: r.cell.planned.repeat,
              "number of the repeat, from 0: the round of the sweep it ran in"),
    RunFigure("seed", lambda r: (r.cell.config or {}).get("seed"), "of the run"),
    RunFigure("started_at_unix_s", lambda r: r.result.started_at, "when it started"),
    RunFigure("world_size", lambda r: r.world_size, "ranks: one a device"),
    RunFigure("scaling", lambda r: r.result.scaling,
              "`strong` (one global batch) or `weak` (one batch a device)"),
    RunFigure("global_batch_size_samples", lambda r: r.result.global_batch_size,
              "samples a step of all devices together", "batch", "global", on="summary"),
    RunFigure("per_device_batch_size_samples", lambda r: r.result.per_device_batch_size,
              "samples a step of each device"),
    RunFigure("parameters_total", lambda r: r.ranks[0].parameters_total,
              "parameters of the model, counted from the live module", "parameters", on="summary",
              text="{:,}".format),
    RunFigure("parameters_trainable", lambda r: r.ranks[0].parameters_trainable,
              "those of them that are trained"),
    RunFigure("timed_from_step", _of_warm_up(lambda w: w.timed_from),
              "first step of the steady window"),
    RunFigure("timed_steps", _of_timed(lambda t: t.steps), "steps in the steady window",
              "timed steps", on="resources"),
    RunFigure("warmup_rule", _of_warm_up(lambda w: w.rule),
              "how the beginning of that window was chosen ([method](method.md))"),
    RunFigure("global_samples_per_s", _of_timed(lambda t: t.global_samples_per_s),
              "samples a second of all devices, over the timed steps", "samples/s", "global",
              on="scaling summary speed page", has_ends=True, scale="positive"),
    RunFigure("step_time_ms", _of_timed(lambda t: t.step_time_ms.mean), "mean of the timed steps",
              "step", "ms", on="resources", has_ends=True, scale="positive"),
    RunFigure("step_time_p50_ms", _of_timed(lambda t: t.step_time_ms.p50),
              "median of the timed steps", "median step", "ms", on="resources use",
              text=mean_alone, in_csv=False, scale="positive"),
    RunFigure("step_time_p99_ms", _of_timed(lambda t: t.step_time_ms.p99),
              "99th percentile of the timed steps, of 100 or more", "p99", "ms", on="resources",
              text=mean_alone, in_csv=False, scale="positive"),
    RunFigure("peak_memory_per_device_mib", _peak_memory_mib,
              "largest peak of a rank: of the allocator on a GPU, resident on a CPU",
              "peak memory", "MiB a device", on="resources use page", text=mean_alone,
              scale="positive"),
    RunFigure("memory_used_per_device_mib", _mean_of_devices("memory_used_mib"),
              "mean over devices and readings: of the whole GPU, resident on a CPU",
              "memory used", "MiB a device", on="resources", text=mean_alone, scale="positive"),
    RunFigure("memory_cv_percent", _cv_of_devices("memory_used_mib"),
              "spread of that over the devices of a run", "memory CV", "%", on="balance",
              in_csv=False, scale="not negative"),
    RunFigure("utilization_per_device_percent", _mean_of_devices("utilization_percent"),
              "mean over devices and readings: time with any kernel, on a CPU share of a core",
              "utilisation", "%", on="resources", text=mean_alone, scale="not negative"),
    RunFigure("utilization_readings", lambda r: r.utilization_readings,
              "readings of all devices behind it", "readings", on="resources"),
    RunFigure("utilization_cv_percent", _cv_of_devices("utilization_percent"),
              "spread of the utilisation over devices", "utilisation CV", "%", on="balance",
              in_csv=False, scale="not negative"),
    RunFigure("power_cv_percent", _cv_of_devices("power_w"), "spread of the power over devices",
              "power CV", "%", on="balance", in_csv=False, scale="not negative"),
    RunFigure("sm_activity_cv_percent", _cv_of_devices("sm_activity_percent"),
              "spread of the SM activity over devices", in_csv=False, scale="not negative"),
    RunFigure("arrival_cv_percent", lambda r: r.balance.cv_percent if r.balance else None,
              "spread of the ranks' arrivals at the gradients' exchange", "arrival CV", "%",
              on="resources balance", text=lambda figure: cv_text(figure.value),
              scale="not negative"),
    RunFigure("loss_name", lambda r: r.loss.name if r.loss else None,
              "which loss: on the validation set where that was scored", "loss", text=str,
              on="resources"),
    RunFigure("loss_reached", lambda r: r.loss.final if r.loss else None, "the last of that loss",
              "loss reached", on="resources", scale="any sign"),
    RunFigure("val_accuracy_reached", lambda r: (found := accuracy_of(r)) and found[1],
              "last accuracy on the validation set, as recorded: our models record a share of 1",
              "val_accuracy reached", on="resources", scale="not negative"),
    RunFigure("points_dropped_per_batch",
              lambda r: last_metrics(r.ranks).get("points_dropped_per_batch"),
              "points outside the grid, of a batch of a rank: voxelization alone",
              "points outside the grid", "a batch of a rank", on="resources", text=mean_alone,
              scale="not negative"),
    RunFigure("energy_j_per_million_samples", _joules_per_million_samples,
              "of all devices, over the timed steps", "energy", "J per million samples",
              on="resources use page", scale="positive"),
    RunFigure("energy_j_per_step", _joules_per_step, "of all devices, over the timed steps",
              scale="positive"),
    RunFigure("energy_j_per_run", lambda r: r.usage.energy_j("run_j") if r.usage else None,
              "of all devices, from the first reading of the counter to the last",
              scale="positive"),
    RunFigure("optimizer_memory_mib", _optimizer_memory_mib,
              "optimizer state of the rank that keeps most", "optimizer state", "MiB a rank",
              on="resources", text=mean_alone, in_csv=False, scale="not negative"),
    RunFigure("invalid", lambda r: "; ".join(one.text for one in r.invalid) or None,
              "why its figures mean nothing; missing for a sound run"),
)  # fmt: skip

RUN_FIGURES: Mapping[str, RunFigure] = {one.key: one for one in _ALL}
"""Every figure of a run by its key; those with a scale are estimated over repeats.

Figures of devices are means, or the CV, over the devices of a run."""


def measure_run(cell: CellRecords) -> Run:
    """Take every number of a finished cell. Raises ValueError for a cell without a result."""
    result = cell.result
    if result is None:
        raise ValueError(f"{cell.planned.name}: only a finished cell can be measured")
    world_size = result.world_size
    steps = figures_of(cell)
    missing = dict(steps.missing)
    losses = run_losses(cell, result)
    shards = None
    if world_size > 1:
        shards = audit_shards(cell.shards, world_size, result.global_batch_size)
    return Run(
        cell=cell,
        world_size=world_size,
        throughput=steps.throughput,
        anatomy=steps.anatomy,
        balance=take(missing, "balance", _balance, result, steps),
        usage=take(missing, "usage", measure_usage, cell.devices, steps.all_s, steps.timed_s),
        loss_history=take(missing, "loss", longest_loss_curve, losses),
        loss=take(missing, "loss", _final_loss, cell, losses),
        shards=shards,
        invalid=tuple(invalid_run(cell, result, steps, shards, losses)),
        logged=logged_figures(cell, RUN_FIGURES, missing),
        missing=missing,
    )


def _final_loss(cell: CellRecords, losses: Losses) -> MetricCurve:
    """Not of damaged metrics: the last one they hold is not what the run reached."""
    if cell.metric_faults:
        raise NotMeasuredError(cell.metric_faults[0])
    return loss_curve(losses)


def _balance(result: CellResult, steps: StepFigures) -> LoadBalance | None:
    for rank in result.ranks:
        if "arrival" in rank.missing:
            raise NotMeasuredError(rank.missing["arrival"])
    return steps.balance


Peak = Literal["data sheet", "measured GEMM"]

_FORMATS = {
    "fp32": "fp32", "tf32": "tf32", "bf16-mixed": "bf16", "fp16-mixed": "fp16",
}  # fmt: skip
"""The number format of the products in each shipped precision."""


@dataclass(frozen=True)
class Mfu:
    """One run against one peak."""

    against: Peak
    share: float
    """0.42 is 42 %."""
    achieved_tflops: float
    """Of one device, mean over the devices."""
    peak_tflops: float
    """Of one device."""
    source: str


@dataclass(frozen=True)
class MfuResult:
    """What could be said of one run."""

    figures: tuple[Mfu, ...]
    missing: Mapping[str, str]
    """Why there is no figure against a peak."""


def measure_mfu(run: Run, doctor: DoctorReport | None = None) -> MfuResult:
    """MFU of a run against every peak that is known for its devices and precision."""
    number_format = _FORMATS.get(str(named(run.cell.config or {}, "precision")))
    missing: dict[str, str] = {}

    def against(peak: Peak, known: Callable[..., tuple[float, str]], *more: object) -> Mfu:
        achieved = _achieved_tflops(run)
        rate, source = known(run, number_format, *more)
        return Mfu(peak, achieved / rate, achieved, rate, source)

    found = (
        take(missing, "data sheet", against, "data sheet", _data_sheet),
        take(missing, "measured GEMM", against, "measured GEMM", _measured, doctor),
    )
    return MfuResult(tuple(one for one in found if one is not None), missing)


def _achieved_tflops(run: Run) -> float:
    """Of one device, in 10^12 operations a second."""
    if run.samples_per_s is None:
        raise NotMeasuredError(run.missing.get("throughput", "no throughput"))
    declared = {rank.flops_per_sample for rank in run.ranks}
    if len(declared) != 1 or None in declared:
        raise NotMeasuredError("the model declares no FLOPs (flops_per_sample)")
    (flops,) = declared
    assert flops is not None
    return flops * run.samples_per_s / run.world_size / 1e12


def _data_sheet(run: Run, number_format: str | None) -> tuple[float, str]:
    if number_format is None:
        raise NotMeasuredError("the precision has no peak of its own")
    peak = setting(run.cell.config, "hardware.peak")
    # A profile that was allowed not to describe the device has no say about it.
    if isinstance(peak, Mapping) and not setting(run.cell.config, "hardware.allow_mismatch"):
        rate = peak.get(f"{number_format}_tflops")
        if rate is not None:
            return float(rate), f"{peak.get('source')}, {peak.get('date')}"
    known = run.cell.provenance
    if known is not None and number_format in known.peak_tflops:
        return known.peak_tflops[number_format], known.peak_source or "data sheet"
    names = ", ".join(dict.fromkeys(rank.device.name for rank in run.ranks))
    raise NotMeasuredError(f"no hardware profile gives the {number_format} rate of {names}")


def _measured(
    run: Run, number_format: str | None, doctor: DoctorReport | None
) -> tuple[float, str]:
    if doctor is None:
        raise NotMeasuredError(
            f"no {DoctorReport.FILE} beside the cells: run scalewise doctor --out FOLDER"
        )
    rates = []
    for device in (rank.device for rank in run.ranks):
        gemms = [
            gemm.tflops
            for rank in doctor.ranks
            if rank.rank < len(doctor.devices) and _same(doctor.devices[rank.rank].device, device)
            for gemm in rank.gemm
            if gemm.precision == number_format
        ]
        if not gemms:
            held = f"{DoctorReport.FILE} holds no {number_format} GEMM of {device.name}"
            raise NotMeasuredError(held)
        rates.append(max(gemms))
    # Ranks wait for one another, so the mean over devices is what the whole could have done.
    return sum(rates) / len(rates), f"fastest {number_format} GEMM of scalewise doctor"


def _same(measured: DeviceInfo, used: DeviceInfo) -> bool:
    if used.uuid is not None:
        return measured.uuid == used.uuid
    return len({(one.kind, one.name, len(one.cores)) for one in (measured, used)}) == 1

"""What the gradients cost: bytes, bandwidth against the doctor's curve, and ratios.

Three figures of one thing are kept apart: *exposed* communication (timed cells, every step),
*total* and *overlapped* (a profiler's window in a cell of its own), and what the doctor's
all-reduce curve says these buckets should take with nothing beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from scalewise.analysis.comparability import differences
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.figures import BoundedFigure, bounding, factor
from scalewise.analysis.scaling import Pair
from scalewise.analysis.steps import ExposedCommunication, mean_of_known
from scalewise.records import (
    Backend,
    DeviceInfo,
    DoctorReport,
    RankSummary,
    StepSeries,
    WindowProfile,
    bus_factor,
)


@dataclass(frozen=True)
class ProfiledWindow:
    """A profiler's window over a configuration, ms a step."""

    cell: str
    """Name of the cell that was profiled."""
    span_ms: float
    """Mean over ranks. A profiled step is longer than a timed one."""
    total_ms: float | None
    """Communication, mean over ranks, waiting inside the collectives included; this and the two
    below are None where the profiler made ranks wait."""
    overlapped_ms: float | None
    """The part of ``total_ms`` beside which something was computed."""
    least_total_ms: float | None
    """Of the rank that waits least."""
    on_ms: float | None
    """Median step with reduction, the profiler stopped; None where none was left out."""
    off_ms: float | None
    """Median step without (``no_sync``), in blocks between those."""
    transfer_ms: float | None = None
    """Communication without the waiting: each collective as long as it ran on the rank that came to
    it last. None where ranks ran different ones."""
    slower_ms: float | None = None
    """How much later the last gradient of a step is there with reduction than without, median
    less median of the mean over ranks: computation beside collectives, and what DDP does to each
    gradient. None where phases were not marked."""

    @property
    def cost_ms(self) -> float | None:
        """All that reducing costs a step: what is exposed, and the slower computation beside it."""
        return None if self.on_ms is None or self.off_ms is None else self.on_ms - self.off_ms


def _window(config: Configuration) -> ProfiledWindow | None:
    cell = config.runs[-1].cell
    ranks = cell.profiles
    totals = [r.communication_ms for r in ranks if r.communication_ms is not None]
    if len(totals) != config.runs[-1].world_size:
        return None
    steps, first = tuple(cell.steps), ranks[0]
    return ProfiledWindow(
        cell=cell.planned.name,
        span_ms=_mean([r.span_ms for r in ranks]),
        total_ms=_mean(totals),
        overlapped_ms=_mean([r.overlapped_ms or 0.0 for r in ranks]),
        least_total_ms=min(totals),
        transfer_ms=_transfer_ms(ranks),
        on_ms=_median_step(steps, first.reduced_steps),
        off_ms=_median_step(steps, first.unreduced_steps),
        slower_ms=_later(steps, first.reduced_steps, first.unreduced_steps),
    )


def _transfer_ms(ranks: Sequence[WindowProfile]) -> float | None:
    """A step. A collective begins where its rank is ready, and ends everywhere at once."""
    durations = [rank.collectives_ms for rank in ranks]
    if not durations[0] or len({len(each) for each in durations}) > 1:
        return None
    return math.fsum(min(each) for each in zip(*durations, strict=True)) / ranks[0].steps


def _later(
    series: Sequence[StepSeries], reduced: Sequence[int], unreduced: Sequence[int]
) -> float | None:
    """Median *arrival* with reduction less that without, in ms."""
    medians = []
    for steps in (reduced, unreduced):
        arrivals = _chosen(series, steps, "arrival")
        means = [] if arrivals is None else arrivals.mean(axis=0)
        known = [mean for mean in means if not np.isnan(mean)]
        if not known:
            return None
        medians.append(float(np.median(known)))
    return medians[0] - medians[1]


def _median_step(series: Sequence[StepSeries], steps: Sequence[int]) -> float | None:
    """Median over these steps of the slowest rank's time, in ms."""
    times = _chosen(series, steps, "step")
    return None if times is None else float(np.median(times.max(axis=0)))


def _chosen(
    series: Sequence[StepSeries], steps: Sequence[int], name: str
) -> npt.NDArray[np.float64] | None:
    """Column ``name`` in ms of these steps, shape ``[ranks, steps]``; None without any."""
    if not steps or not series:
        return None
    chosen = [one.column(name)[np.isin(one.rows["step"], steps)] for one in series]
    if len({len(times) for times in chosen}) != 1 or len(chosen[0]) == 0:
        return None
    return np.stack(chosen)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class AllReduceCurve:
    """Time over size, between measured sizes by a straight line in logarithms of both."""

    ranks: int
    points: tuple[tuple[int, float], ...]
    """Bytes and ms, smallest first; two or more."""

    def ms(self, size_bytes: float) -> float:
        """Below the smallest size its time, above the largest its bandwidth."""
        (least, least_ms), (most, most_ms) = self.points[0], self.points[-1]
        if size_bytes <= least:
            return least_ms
        if size_bytes >= most:
            return most_ms * size_bytes / most
        sizes, times_ms = np.log(self.points).T
        return float(np.exp(np.interp(np.log(size_bytes), sizes, times_ms)))

    def bus_gb_s(self, size_bytes: float) -> float:
        """10^9 bytes a second on each link."""
        return size_bytes * bus_factor("all_reduce", self.ranks) / self.ms(size_bytes) / 1e6


def all_reduce_curve(
    report: DoctorReport | None, devices: Sequence[DeviceInfo]
) -> AllReduceCurve | str:
    """The curve for these devices, or why there is none."""
    if report is None:
        return "no doctor.json beside the cells: scalewise doctor --out FOLDER writes one"
    backend: Backend = "nccl" if all(d.kind == "cuda" for d in devices) else "gloo"
    examined = [facts.device for facts in report.devices]
    if len(examined) != len(devices):
        return f"the doctor examined {len(examined)} devices, and {len(devices)} trained"
    if sorted(d.uuid or d.name for d in examined) != sorted(d.uuid or d.name for d in devices):
        return "the doctor examined other devices than those that trained"
    points = report.curve(backend, len(devices))
    if len(points) < 2:
        return f"the doctor measured no {backend} all-reduce over {len(devices)} ranks"
    return AllReduceCurve(len(devices), points)


CommunicationSource = Literal["profiler window", "doctor's curve", "exposed only"]
_WORTH_SAYING = 0.02
"""Share of a profiled step below which waiting is no reason to doubt a window."""
_HELD_BACK = 1.5
"""A window whose uncovered collectives last so many times those of timed steps is doubted."""


@dataclass(frozen=True)
class Communication:
    """One multi-device configuration; ms are of a step, None has its reason in ``missing``."""

    ranks: int
    gradient_bytes: int | None
    """Reduced in one step, before any compression."""
    buckets: int | None
    payload_bytes: float | None
    """Handed to the collective in one step, as compressed; mean over ranks."""
    exposed: ExposedCommunication | None
    """Mean over runs."""
    window: ProfiledWindow | None
    expected_ms: float | None
    """All buckets one after another at the doctor's rate."""
    achieved_bus_gb_s: float | None
    """Of the collectives beside computation, each on the rank that came to it last; where
    ranks ran different ones, of all collectives of the rank that waits least."""
    doctor_bus_gb_s: float | None
    """The doctor's at the mean size of a bucket, nothing beside it."""
    compute_to_communication: float | None
    """Forward, backward and optimizer of the timed steps over communication."""
    against: CommunicationSource | None
    missing: Mapping[str, str] = field(default_factory=dict)
    amdahl_serial_fraction: BoundedFigure | str | None = None
    """Of Karp and Flatt, from the speedup, or why there is none; None without a baseline."""


def measure_communications(
    configs: Sequence[Configuration], pairs: Sequence[Pair], doctor: DoctorReport | None
) -> dict[str, Communication]:
    """By ``config_id``, each with the window over its profiled counterpart."""
    profiled = [config for config in configs if not config.is_timed and config.runs]
    found = {}
    for config in (config for config in configs if config.is_timed and config.runs):
        window = None
        for other in profiled:
            if not differences(config.identity, other.identity, "measuring"):
                window = _window(other) or window
        pair = next((p for p in pairs if p.multi.config_id == config.config_id), None)
        if cost := measure_communication(config, window, doctor, pair):
            found[config.config_id] = cost
    return found


def measure_communication(
    config: Configuration,
    window: ProfiledWindow | None,
    doctor: DoctorReport | None,
    pair: Pair | None = None,
) -> Communication | None:
    """None for one device, or where nothing ran."""
    result = config.result
    if result is None or result.world_size < 2 or result.models > 1:
        return None
    ranks = result.ranks
    missing: dict[str, str] = {}
    curve = all_reduce_curve(doctor, [rank.device for rank in ranks])
    if isinstance(curve, str):
        missing["doctor's curve"] = curve
    if window is None:
        own = config.has_own_settings
        way = "a script of your own has none" if own else "add profile.window=false,true"
        missing["total and overlapped"] = f"no profiler window: {way}"
    gradient_bytes, buckets = ranks[0].gradient_bytes, ranks[0].gradient_buckets
    payload = _payload(ranks)
    if payload is None:
        told = ranks[0].missing
        why = told.get("phases") or told.get("exposed_comm_ms") or "no gradient bucket was seen"
        missing["gradient bytes"] = why
    exposed = _exposed(config)
    doubted = _why_doubted(window, exposed)
    if window is not None and doubted is not None:
        window = replace(window, total_ms=None, overlapped_ms=None, least_total_ms=None)
        missing["total and overlapped"] = doubted
    known = None if isinstance(curve, str) else curve
    at_bucket = payload / buckets if payload and buckets else None
    expected = buckets * known.ms(at_bucket) if known and buckets and at_bucket else None
    phases_ms = config.anatomy.phases_ms if config.anatomy else {}
    parts = [phases_ms.get(phase) for phase in ("forward", "backward", "optimizer")]
    compute_ms = None if None in parts else sum(ms or 0.0 for ms in parts)
    total, against = _communication_ms(window, expected, exposed)
    return Communication(
        ranks=result.world_size,
        gradient_bytes=gradient_bytes,
        buckets=buckets,
        payload_bytes=payload,
        exposed=exposed,
        window=window,
        expected_ms=expected,
        achieved_bus_gb_s=_achieved(window, payload, result.world_size),
        doctor_bus_gb_s=known.bus_gb_s(at_bucket) if known and at_bucket else None,
        compute_to_communication=compute_ms / total if compute_ms and total else None,
        against=against if compute_ms and total else None,
        missing=missing,
        amdahl_serial_fraction=measured_serial_fraction(pair) if pair else None,
    )


def serial_fraction(speedup: float, devices: int) -> float:
    """Amdahl's serial fraction that explains a measured speedup of a fixed problem.

    ``(1/S - 1/N) / (1 - 1/N)``: Karp and Flatt, Measuring Parallel Processor Performance, 1990.
    A fraction for speedups of 1 to ``devices``; more than 1 below, less than 0 above.
    """
    return (1 / speedup - 1 / devices) / (1 - 1 / devices)


def measured_serial_fraction(pair: Pair) -> BoundedFigure | str:
    """Of a pair under strong scaling, within 0 to 1, or why there is none.

    Its interval is the speedup's: it grows as the speedup falls.
    """
    result = pair.multi.result
    if result is None or result.scaling != "strong":
        return "Amdahl's law is about a fixed batch: scaling=strong"
    interval, value = bounding(pair.speedup), pair.speedup.value
    if value < 1:
        return f"not defined: slower than one device (speedup {factor(value)})"
    if value > pair.devices:
        return f"not defined: more than linear (speedup {factor(value)} on {pair.devices} devices)"
    of: Callable[[float], float] = lambda s: serial_fraction(s, pair.devices)  # noqa: E731
    if interval is None:
        return BoundedFigure(of(value), None, None)
    # What lies beyond 0 and 1 cannot be true of a fraction, as an interval of a CV ends at 0.
    return BoundedFigure(of(value), max(0.0, of(interval.high)), min(1.0, of(interval.low)))


def _payload(ranks: Sequence[RankSummary]) -> float | None:
    counted = [r.communication.payload_bytes_per_step for r in ranks if r.communication is not None]
    if counted and len(counted) == len(ranks):
        return _mean(counted)
    return mean_of_known([r.gradient_bytes for r in ranks])


def _exposed(config: Configuration) -> ExposedCommunication | None:
    each = [run.anatomy.communication for run in config.runs if run.anatomy is not None]
    found = [one for one in each if one is not None]
    if not found:
        return None
    names = ("mean_ms", "transfer_ms", "wait_ms")
    means = {name: _mean([getattr(one, name) for one in found]) for name in names}
    return ExposedCommunication(**means, timeline=found[0].timeline)


def _why_doubted(window: ProfiledWindow | None, exposed: ExposedCommunication | None) -> str | None:
    """More of a window is uncovered than steps expose where a profiler delays one of the ranks."""
    if window is None or exposed is None or window.total_ms is None or window.overlapped_ms is None:
        return None
    uncovered = window.total_ms - window.overlapped_ms
    if uncovered <= _HELD_BACK * max(exposed.mean_ms, _WORTH_SAYING * window.span_ms):
        return None
    return (
        f"the profiler made ranks wait: {uncovered:.3g} ms of collectives a step lie beside no "
        f"computation, in timed steps {exposed.mean_ms:.3g} ms"
    )


def _achieved(window: ProfiledWindow | None, payload: float | None, ranks: int) -> float | None:
    if window is None or payload is None:
        return None
    ms = window.least_total_ms if window.transfer_ms is None else window.transfer_ms
    return payload * bus_factor("all_reduce", ranks) / ms / 1e6 if ms else None


def _communication_ms(
    window: ProfiledWindow | None, expected: float | None, exposed: ExposedCommunication | None
) -> tuple[float | None, CommunicationSource | None]:
    """The best figure of all communication of a step, and what it is."""
    if window is not None and window.total_ms is not None:
        return window.total_ms, "profiler window"
    if expected is not None:
        return expected, "doctor's curve"
    return (exposed.mean_ms, "exposed only") if exposed else (None, None)

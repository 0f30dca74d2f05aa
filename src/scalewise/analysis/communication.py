"""What the gradients cost: bytes, bandwidth against the doctor's curve, and ratios.

Three figures of one thing are kept apart: *exposed* communication (timed cells, every step),
*total* and *overlapped* (a profiler's window in a cell of its own), and what the doctor's
all-reduce curve says these buckets should take with nothing beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scalewise.analysis.apart import Window
from scalewise.analysis.breakdown import ExposedCommunication
from scalewise.analysis.collective_curve import AllReduceCurve, all_reduce_curve, bus_factor
from scalewise.analysis.figures import bounds_nothing, factor
from scalewise.analysis.kinds import is_monitored
from scalewise.analysis.limits import mean_anatomy
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.records import RankSummary
from scalewise.records.doctor import DoctorReport

Against = Literal["profiler window", "doctor's curve", "exposed only"]

_WORTH_SAYING = 0.02
"""Share of a profiled step below which waiting is no reason to doubt a window."""
_HELD_BACK = 1.5
"""What a window leaves uncovered, over what the timed steps expose, from which it is doubted."""


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
    window: Window | None
    expected_ms: float | None
    """All buckets one after another at the doctor's rate."""
    achieved_bus_gb_s: float | None
    """Of the collectives beside computation, each on the rank that came to it last; in older
    records, of all collectives of the rank that waits least."""
    doctor_bus_gb_s: float | None
    """The doctor's at the mean size of a bucket, nothing beside it."""
    compute_ms: float | None
    """Forward, backward and optimizer of the timed steps."""
    compute_to_communication: float | None
    """``compute_ms`` over the communication of ``against``."""
    against: Against | None
    missing: Mapping[str, str] = field(default_factory=dict)


def measure_communication(
    config: Configuration, window: Window | None, doctor: DoctorReport | None
) -> Communication | None:
    """None for one device, or where nothing ran."""
    result = config.runs[0].cell.result if config.runs else None
    if result is None or result.world_size < 2 or result.models > 1:
        return None
    ranks = result.ranks
    missing: dict[str, str] = {}
    curve = all_reduce_curve(doctor, [rank.device for rank in ranks])
    if isinstance(curve, str):
        missing["doctor's curve"] = curve
    if window is None:
        monitored = is_monitored(config.cells[0].config)
        way = "only cells of a sweep have one" if monitored else "add profile.window=false,true"
        missing["total and overlapped"] = f"no profiler window: {way}"
    gradient_bytes, buckets = ranks[0].gradient_bytes, ranks[0].gradient_buckets
    payload = _payload(ranks)
    if payload is None:
        missing["gradient bytes"] = _why_no_bytes(ranks)
    exposed = _exposed(config)
    doubted = _why_doubted(window, exposed)
    if window is not None and doubted is not None:
        window = window.without_waiting()
        missing["total and overlapped"] = doubted
    expected = _expected_ms(curve, payload, buckets)
    compute_ms = _compute_ms(config)
    total, against = _communication_ms(window, expected, exposed)
    at_bucket = payload / buckets if payload and buckets else None
    known = curve if isinstance(curve, AllReduceCurve) else None
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
        compute_ms=compute_ms,
        compute_to_communication=compute_ms / total if compute_ms and total else None,
        against=against if compute_ms and total else None,
        missing=missing,
    )


def serial_fraction(speedup: float, devices: int) -> float:
    """Amdahl's serial fraction that explains a measured speedup of a fixed problem.

    ``(1/S - 1/N) / (1 - 1/N)``: Karp and Flatt, Measuring Parallel Processor Performance, 1990.
    A fraction for speedups of 1 to ``devices``; more than 1 below, less than 0 above.
    """
    return (1 / speedup - 1 / devices) / (1 - 1 / devices)


@dataclass(frozen=True)
class SerialFraction:
    """With the interval that the speedup's gives, within 0 to 1; it grows as the speedup falls."""

    value: float
    low: float | None
    high: float | None


def measured_serial_fraction(pair: Pair) -> SerialFraction | str:
    """Of a pair under strong scaling, or why there is none."""
    result = pair.multi.runs[0].cell.result
    if result is None or result.scaling != "strong":
        return "Amdahl's law is about a fixed batch: scaling=strong"
    interval, value = pair.speedup.interval, pair.speedup.value
    if value < 1:
        return f"not defined: slower than one device (speedup {factor(value)})"
    if value > pair.devices:
        return f"not defined: more than linear (speedup {factor(value)} on {pair.devices} devices)"
    of: Callable[[float], float] = lambda s: serial_fraction(s, pair.devices)  # noqa: E731
    if interval is None or bounds_nothing(interval):
        return SerialFraction(of(value), None, None)
    # What lies beyond 0 and 1 cannot be true of a fraction, as an interval of a CV ends at 0.
    return SerialFraction(of(value), max(0.0, of(interval.high)), min(1.0, of(interval.low)))


def _payload(ranks: Sequence[RankSummary]) -> float | None:
    counted = [r.communication for r in ranks if r.communication is not None]
    if counted and len(counted) == len(ranks):
        return sum(c.payload_bytes_per_step for c in counted) / len(counted)
    known = [r.gradient_bytes for r in ranks if r.gradient_bytes is not None]
    return sum(known) / len(known) if known else None


def _why_no_bytes(ranks: Sequence[RankSummary]) -> str:
    for name in ("phases", "exposed_comm_ms"):
        if name in ranks[0].missing:
            return ranks[0].missing[name]
    return "no gradient bucket was seen"


def _exposed(config: Configuration) -> ExposedCommunication | None:
    found = [
        run.anatomy.communication
        for run in config.runs
        if run.anatomy is not None and run.anatomy.communication is not None
    ]
    if not found:
        return None
    count = len(found)
    return ExposedCommunication(
        sum(one.mean_ms for one in found) / count,
        sum(one.transfer_ms for one in found) / count,
        sum(one.wait_ms for one in found) / count,
        found[0].timeline,
    )


def _why_doubted(window: Window | None, exposed: ExposedCommunication | None) -> str | None:
    """Why a window's communication is no figure: more of it is uncovered than steps can expose.

    A profiler that delays one rank makes the others wait inside their collectives.
    """
    uncovered = window.not_overlapped_ms if window else None
    if window is None or exposed is None or uncovered is None:
        return None
    if uncovered <= _HELD_BACK * max(exposed.mean_ms, _WORTH_SAYING * window.span_ms):
        return None
    return (
        f"the profiler made ranks wait: {uncovered:.3g} ms of collectives a step lie beside no "
        f"computation, in timed steps {exposed.mean_ms:.3g} ms"
    )


def _expected_ms(
    curve: AllReduceCurve | str, payload: float | None, buckets: int | None
) -> float | None:
    if isinstance(curve, str) or not payload or not buckets:
        return None
    return buckets * curve.ms(payload / buckets)


def _achieved(window: Window | None, payload: float | None, ranks: int) -> float | None:
    if window is None or payload is None:
        return None
    ms = window.least_total_ms if window.transfer_ms is None else window.transfer_ms
    return payload * bus_factor(ranks) / ms / 1e6 if ms else None


def _compute_ms(config: Configuration) -> float | None:
    anatomy = mean_anatomy(config)
    if anatomy is None:
        return None
    parts = [anatomy[0].get(name) for name in ("forward", "backward", "optimizer")]
    known = [ms for ms in parts if ms is not None]
    return sum(known) if len(known) == len(parts) else None


def _communication_ms(
    window: Window | None, expected: float | None, exposed: ExposedCommunication | None
) -> tuple[float | None, Against | None]:
    """The best figure of all communication of a step, and what it is."""
    if window is not None and window.total_ms is not None:
        return window.total_ms, "profiler window"
    if expected is not None:
        return expected, "doctor's curve"
    return (exposed.mean_ms, "exposed only") if exposed else (None, None)

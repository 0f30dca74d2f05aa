"""What a cell's records say against the GPUs it ran on: pure functions.

* errors: the driver reported an XID that harms the GPU, uncorrected memory errors, or its loss;
* throttling: heat, a power brake or a hardware slowdown in a tenth of the samples. A power cap is
  how a busy GPU lives, and clocks that somebody chose are no fault;
* slow: its clock stays 15 % below its twins' in the same cell, read in the same moments, all under
  load and all or none at their power cap (who works harder than its twins, as in a pipeline or
  while the doctor measures them in turn, is capped alone); or twice in single-GPU cells it makes
  less than three quarters of what at least two twins make of the same configuration. GPUs of one
  kind differ by 8 % on average and up to 22 %, so less is no evidence.

A rank that is slow by what it has to do (its data, its code) is no evidence against its GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalewise.records import DeviceSample, DeviceSeries
from scalewise.records.quarantine import Reason

POWER_CAP = "power cap"
HARMLESS = frozenset({POWER_CAP, "sync boost", "application clocks", "display clock setting"})
"""Throttle reasons that are no fault of a GPU."""
THROTTLED_SHARE = 0.1
FEWEST_SAMPLES = 5
"""Fewer samples under load, or of a throttle reason, tell nothing."""
BUSY_PERCENT = 50.0
CLOCK_RATIO = 0.85
RATE_RATIO = 0.75
SLOW_RUNS = 2
"""Runs of its own in which a GPU must have been slow."""


@dataclass(frozen=True)
class FaultyGpu:
    """One GPU and what speaks against it."""

    uuid: str
    reason: Reason
    evidence: str


def find_faulty_gpus(series: Iterable[DeviceSeries]) -> Iterator[FaultyGpu]:
    """GPUs that one cell's device series speak against; several findings of one GPU may come."""
    for one in series:
        if one.source == "nvml":
            yield from _erring(one)
            yield from _throttling(one)
            yield from _low_clocks(one)


def _erring(series: DeviceSeries) -> Iterator[FaultyGpu]:
    for alert in series.alerts:
        if alert.level == "error" and alert.condition in ("xid", "ecc", "lost"):
            yield FaultyGpu(alert.device_id, "errors", alert.text)


def _throttling(series: DeviceSeries) -> Iterator[FaultyGpu]:
    for device in series.devices:
        read = _reasons(series, device.id)
        for reason in sorted({word for reasons in read for word in reasons} - HARMLESS):
            held = sum(reason in reasons for reasons in read)
            if held >= FEWEST_SAMPLES and held >= THROTTLED_SHARE * len(read):
                yield FaultyGpu(
                    device.id,
                    "throttling",
                    f"held back by {reason} in {held} of {len(read)} samples",
                )


def _reasons(series: DeviceSeries, device: str) -> list[tuple[str, ...]]:
    rows = [sample[device] for sample in series.samples if device in sample]
    return [row.throttle_reasons for row in rows if row.throttle_reasons is not None]


def _low_clocks(series: DeviceSeries) -> Iterator[FaultyGpu]:
    pairs: dict[str, list[tuple[float, float]]] = {}
    for sample in series.samples:
        for uuid, own, twins in _comparable_clocks(series, sample):
            pairs.setdefault(uuid, []).append((own, statistics.median(twins)))
    for uuid, read in pairs.items():
        if len(read) < FEWEST_SAMPLES:
            continue
        if statistics.median(own / twins for own, twins in read) < CLOCK_RATIO:
            own, twins = (statistics.median(column) for column in zip(*read, strict=True))
            yield FaultyGpu(
                uuid, "slow", f"ran at {own:.0f} MHz under load, its twins at {twins:.0f} MHz"
            )


def _comparable_clocks(
    series: DeviceSeries, sample: Mapping[str, DeviceSample]
) -> Iterator[tuple[str, float, list[float]]]:
    """In one moment: each GPU, its clock in MHz, and those of its twins in the same state."""
    alike: dict[tuple[str, bool], dict[str, float]] = {}
    for device in series.devices:
        row = sample.get(device.id)
        if row is None or row.sm_clock_mhz is None:
            continue
        if (row.utilization_percent or 0.0) >= BUSY_PERCENT:
            capped = POWER_CAP in (row.throttle_reasons or ())
            alike.setdefault((device.name, capped), {})[device.id] = row.sm_clock_mhz
    for clocks in alike.values():
        for uuid, own in clocks.items():
            twins = [clock for other, clock in clocks.items() if other != uuid]
            if twins:
                yield uuid, own, twins


@dataclass(frozen=True)
class SingleRun:
    """What one GPU made of one configuration, alone."""

    config_id: str
    uuid: str
    samples_per_s: float


def find_slow_gpus(runs: Sequence[SingleRun]) -> Iterator[FaultyGpu]:
    """GPUs that fall behind their twins in single-GPU runs of the same configurations."""
    slow: dict[str, list[float]] = {}
    usual: dict[str, int] = {}
    for run in runs:
        twins: dict[str, list[float]] = {}
        for other in runs:
            if other.config_id == run.config_id and other.uuid != run.uuid:
                twins.setdefault(other.uuid, []).append(other.samples_per_s)
        if len(twins) < 2:
            continue
        ratio = run.samples_per_s / statistics.median(
            statistics.median(rates) for rates in twins.values()
        )
        if ratio < RATE_RATIO:
            slow.setdefault(run.uuid, []).append(ratio)
        else:
            usual[run.uuid] = usual.get(run.uuid, 0) + 1
    for uuid, ratios in slow.items():
        if len(ratios) >= SLOW_RUNS and len(ratios) > usual.get(uuid, 0):
            made = ", ".join(f"{100 * ratio:.0f} %" for ratio in ratios)
            yield FaultyGpu(uuid, "slow", f"made {made} of its twins' samples/s in the same cells")

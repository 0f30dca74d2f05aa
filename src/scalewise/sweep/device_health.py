"""Finds faulty GPUs in the records of the cells that ran on them, and quarantines them.

* errors: the driver reported an XID that harms the GPU, uncorrected memory errors, or its loss;
* throttling: heat, a power brake or a hardware slowdown in a tenth of the samples. A power cap is
  how a busy GPU lives, and clocks that somebody chose are no fault;
* slow: its clock stays 15 % below its peers' in the same cell, read in the same moments, all under
  load and all or none at their power cap (one that works harder than its peers, as in a pipeline or
  while the doctor measures them in turn, is capped alone); or twice in single-GPU cells it makes
  less than three quarters of what at least two peers make of the same configuration. GPUs of one
  kind differ by 8 % on average and up to 22 %, so less is no evidence.

A rank that is slow by what it has to do (its data, its code) is no evidence against its GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.host import host_id
from scalewise.records import (
    CellFolder,
    DeviceInfo,
    DeviceSample,
    DeviceSeries,
    Quarantine,
    QuarantinedDevice,
    Reason,
    RecordError,
    load_quarantine,
    read_device_series,
    save_quarantine,
)
from scalewise.supervisor import Outcome

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
        for uuid, own, peers in _comparable_clocks(series, sample):
            pairs.setdefault(uuid, []).append((own, statistics.median(peers)))
    for uuid, read in pairs.items():
        if len(read) < FEWEST_SAMPLES:
            continue
        if statistics.median(own / peers for own, peers in read) < CLOCK_RATIO:
            own, peers = (statistics.median(column) for column in zip(*read, strict=True))
            yield FaultyGpu(
                uuid, "slow", f"ran at {own:.0f} MHz under load, its peers at {peers:.0f} MHz"
            )


def _comparable_clocks(
    series: DeviceSeries, sample: Mapping[str, DeviceSample]
) -> Iterator[tuple[str, float, list[float]]]:
    """In one moment: each GPU, its clock in MHz, and those of its peers in the same state."""
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
            peers = [clock for other, clock in clocks.items() if other != uuid]
            if peers:
                yield uuid, own, peers


@dataclass(frozen=True)
class SingleRun:
    """Throughput of one configuration on one GPU alone."""

    config_id: str
    uuid: str
    samples_per_s: float


def find_slow_gpus(runs: Sequence[SingleRun]) -> Iterator[FaultyGpu]:
    """GPUs that fall behind their peers in single-GPU runs of the same configurations."""
    slow: dict[str, list[float]] = {}
    usual: dict[str, int] = {}
    for run in runs:
        peers: dict[str, list[float]] = {}
        for other in runs:
            if other.config_id == run.config_id and other.uuid != run.uuid:
                peers.setdefault(other.uuid, []).append(other.samples_per_s)
        if len(peers) < 2:
            continue
        ratio = run.samples_per_s / statistics.median(
            statistics.median(rates) for rates in peers.values()
        )
        if ratio < RATE_RATIO:
            slow.setdefault(run.uuid, []).append(ratio)
        else:
            usual[run.uuid] = usual.get(run.uuid, 0) + 1
    for uuid, ratios in slow.items():
        if len(ratios) >= SLOW_RUNS and len(ratios) > usual.get(uuid, 0):
            made = ", ".join(f"{100 * ratio:.0f} %" for ratio in ratios)
            yield FaultyGpu(uuid, "slow", f"made {made} of its peers' samples/s in the same cells")


class DeviceQuarantine:
    """The devices that one sweep leases no more.

    Args:
        sweep: the sweep's folder. Devices that an earlier process of it put aside stay so.
    """

    def __init__(self, sweep: Path) -> None:
        self._sweep = sweep
        self.quarantine = load_quarantine(sweep)
        self._runs: list[SingleRun] = []

    def examine(
        self, folder: CellFolder, config_id: str, slots: Sequence[DeviceInfo], outcome: Outcome
    ) -> list[QuarantinedDevice]:
        """Put aside what the cell's records speak against; returns what is new."""
        gpus = {slot.uuid: slot for slot in slots if slot.kind == "cuda" and slot.uuid}
        if not gpus:
            return []
        rate = outcome.global_samples_per_s
        if len(gpus) == 1 and outcome.state == "done" and rate is not None:
            self._runs.append(SingleRun(config_id, next(iter(gpus)), rate))
        new: dict[str, QuarantinedDevice] = {}
        for one in (*_found_in(folder), *find_slow_gpus(self._runs)):
            slot = gpus.get(one.uuid)
            if slot is not None and one.uuid not in self.quarantine.uuids | new.keys():
                new[one.uuid] = _put_aside(slot, one, folder.name)
        if new:
            self.quarantine = Quarantine((*self.quarantine.devices, *new.values()))
            save_quarantine(self._sweep, self.quarantine)
        return list(new.values())

    def usable(self, slots: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
        """``slots`` without those put aside."""
        uuids = self.quarantine.uuids
        return tuple(slot for slot in slots if slot.uuid not in uuids)

    def refusal(self, wanted: int, slots: Sequence[DeviceInfo]) -> str | None:
        """Why a cell of this world size cannot run on what is left of ``slots``; None if it can."""
        left = self.usable(slots)
        if wanted <= len(left):
            return None
        uuids = {slot.uuid for slot in slots}
        aside = "; ".join(str(d) for d in self.quarantine.devices if d.uuid in uuids)
        return (
            f"needs {wanted} devices, and {len(left)} of this host's {len(slots)} are left: "
            f"{aside}; mend them and resume with sweep.quarantine=false, or use fewer devices"
        )


def _found_in(folder: CellFolder) -> list[FaultyGpu]:
    found: list[FaultyGpu] = []
    for path in folder.device_series_paths():
        try:
            found += find_faulty_gpus([read_device_series(path)])
        except RecordError:
            continue  # cut off with its sampler; the report names the file
    return found


def _put_aside(slot: DeviceInfo, one: FaultyGpu, cell: str) -> QuarantinedDevice:
    return QuarantinedDevice(
        one.uuid, slot.index, slot.name, host_id(), one.reason, one.evidence, cell, time.time()
    )

"""Finds faulty GPUs in the records of the cells that ran on them, and quarantines them.

* errors: the driver reported an XID that harms the GPU, uncorrected memory errors, or its loss;
* throttling: heat, a power brake or a hardware slowdown in a tenth of the samples. A power cap is
  how a busy GPU lives, and clocks that somebody chose are no fault.

A slow rank alone is no evidence against its GPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.host import host_id
from scalewise.records import (
    CellFolder,
    DeviceInfo,
    DeviceSeries,
    Quarantine,
    QuarantinedDevice,
    Reason,
    RecordError,
    find_record,
    read_device_series,
    save_record,
)

HARMLESS = frozenset({"power cap", "sync boost", "application clocks", "display clock setting"})
"""Throttle reasons that are no fault of a GPU."""
THROTTLED_SHARE = 0.1
FEWEST_SAMPLES = 5
"""Fewer samples of a throttle reason tell nothing."""


@dataclass(frozen=True)
class FaultyGpu:
    """One GPU and what speaks against it."""

    uuid: str
    reason: Reason
    evidence: str


def find_faulty_gpus(series: DeviceSeries) -> Iterator[FaultyGpu]:
    """GPUs that a cell's device series speaks against; several findings of one GPU may come."""
    if series.source != "nvml":
        return
    for alert in series.alerts:
        if alert.level == "error" and alert.condition in ("xid", "ecc", "lost"):
            yield FaultyGpu(alert.device_id, "errors", alert.text)
    for device in series.devices:
        rows = [sample[device.id] for sample in series.samples if device.id in sample]
        read = [row.throttle_reasons for row in rows if row.throttle_reasons is not None]
        for reason in sorted({word for reasons in read for word in reasons} - HARMLESS):
            held = sum(reason in reasons for reasons in read)
            if held >= FEWEST_SAMPLES and held >= THROTTLED_SHARE * len(read):
                evidence = f"held back by {reason} in {held} of {len(read)} samples"
                yield FaultyGpu(device.id, "throttling", evidence)


class DeviceQuarantine:
    """The devices that one sweep leases no more.

    Args:
        sweep: the sweep's folder. Devices that an earlier process of it put aside stay so.
    """

    def __init__(self, sweep: Path) -> None:
        self._sweep = sweep
        self.quarantine = find_record(sweep, Quarantine) or Quarantine()

    def examine(self, folder: CellFolder, slots: Sequence[DeviceInfo]) -> list[QuarantinedDevice]:
        """Put aside what the cell's records speak against; returns what is new."""
        gpus = {slot.uuid: slot for slot in slots if slot.kind == "cuda" and slot.uuid}
        if not gpus:
            return []
        new: dict[str, QuarantinedDevice] = {}
        for one in _found_in(folder):
            slot = gpus.get(one.uuid)
            if slot is not None and one.uuid not in self.quarantine.uuids | new.keys():
                new[one.uuid] = QuarantinedDevice(
                    one.uuid, slot.index, slot.name, host_id(), one.reason, one.evidence,
                    folder.name, time.time(),
                )  # fmt: skip
        if new:
            self.quarantine = Quarantine((*self.quarantine.devices, *new.values()))
            save_record(self._sweep, self.quarantine)
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
            found += find_faulty_gpus(read_device_series(path))
        except RecordError:
            continue  # cut off with its sampler; the report names the file
    return found

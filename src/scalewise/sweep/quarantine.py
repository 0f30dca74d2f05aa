"""Puts a sweep's bad GPUs aside: from the records of a cell that has ended to the leases."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from scalewise.host_identity import host_id
from scalewise.records import CellFolder, DeviceInfo, RecordError, read_device_series
from scalewise.records.quarantine import (
    Quarantine,
    QuarantinedDevice,
    load_quarantine,
    save_quarantine,
)
from scalewise.sweep.job import Outcome
from scalewise.sweep.suspects import FaultyGpu, SingleRun, find_faulty_gpus, find_slow_gpus


class DeviceQuarantine:
    """The devices that one sweep leases no more.

    Args:
        sweep: the sweep's folder. What an earlier process of the sweep put aside stays so.
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
        """Why a cell of this width cannot run on what is left of ``slots``; None if it can."""
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

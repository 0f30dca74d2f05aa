"""What an all-reduce of any size takes on the devices, from the doctor's measured sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.records import DeviceInfo
from scalewise.records.doctor import DoctorReport
from scalewise.records.doctor_rates import Backend, CollectiveRate


def bus_factor(ranks: int) -> float:
    """Bus over algorithm bandwidth of an all-reduce: 2 (n - 1) / n, as nccl-tests defines it."""
    return 2 * (ranks - 1) / ranks


@dataclass(frozen=True)
class AllReduceCurve:
    """Time over size, between measured sizes by a straight line in logarithms of both."""

    backend: Backend
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
        for (low, low_ms), (high, high_ms) in zip(self.points, self.points[1:], strict=False):
            if size_bytes <= high:
                share = math.log(size_bytes / low) / math.log(high / low)
                return math.exp(math.log(low_ms) * (1 - share) + math.log(high_ms) * share)
        raise AssertionError("unreachable: the size lies between the ends")

    def bus_gb_s(self, size_bytes: float) -> float:
        """10^9 bytes a second on each link."""
        return size_bytes * bus_factor(self.ranks) / self.ms(size_bytes) / 1e6


def all_reduce_curve(
    report: DoctorReport | None, devices: Sequence[DeviceInfo]
) -> AllReduceCurve | str:
    """The curve for these devices, or why there is none."""
    if report is None:
        return "no doctor.json beside the cells: add sweep.doctor=true"
    backend: Backend = "nccl" if all(d.kind == "cuda" for d in devices) else "gloo"
    examined = [facts.device for facts in report.devices]
    if len(examined) != len(devices):
        return f"the doctor examined {len(examined)} devices, and {len(devices)} trained"
    if sorted(map(_known_as, examined)) != sorted(map(_known_as, devices)):
        return "the doctor examined other devices than those that trained"
    rates: list[CollectiveRate] = [
        rate for rate in report.collectives
        if (rate.backend, rate.collective, rate.ranks) == (backend, "all_reduce", len(devices))
    ]  # fmt: skip
    points = {rate.bytes: rate.timing.median_us / 1e3 for rate in rates}
    if len(points) < 2:
        return f"the doctor measured no {backend} all-reduce over {len(devices)} ranks"
    return AllReduceCurve(backend, len(devices), tuple(sorted(points.items())))


def _known_as(device: DeviceInfo) -> str:
    return device.uuid or device.name

"""What a link between GPUs, or between a GPU and its host, carries. Torch-free."""

from __future__ import annotations

from scalewise.records.doctor import DoctorReport
from scalewise.records.doctor_rates import PairRate

_NVLINK_GB_S = 25.0
"""One NVLink, one direction: NVLink 2 to 4 alike (NVIDIA's V100, A100 and H100 data sheets give
300 GB/s over 6, 600 over 12 and 900 over 18 links, both directions together). NVLink 5 has twice
that, so that it is judged mildly here."""

_PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""One lane, one direction, after line coding (PCI-SIG's figures)."""


def has_direct_path(kind: str | None) -> bool:
    """Whether GPUs joined so can be expected to reach each other without the host's processor."""
    return kind is not None and (kind.startswith("NV") or kind in ("PIX", "PXB", "INT"))


def pcie_gb_s(generation: int | None, lanes: int | None) -> float | None:
    """10^9 bytes a second one way; None where generation or width is not known."""
    lane = _PCIE_LANE_GB_S.get(generation or 0)
    return lane * lanes if lane and lanes else None


def expected_gb_s(report: DoctorReport, first: int, second: int) -> float | None:
    """What the link of two ranks' GPUs carries one way; None where nothing can be expected."""
    kind = next((x.kind for x in report.links if (x.first, x.second) == (first, second)), None)
    if kind is None or not has_direct_path(kind):
        return None
    if kind.startswith("NV"):
        count = kind.removeprefix("NV")
        return _NVLINK_GB_S * int(count) if count.isdecimal() else None
    ends = [rank.pcie for rank in report.ranks if rank.rank in (first, second)]
    rates = [pcie_gb_s(end.generation, end.lanes) for end in ends if end is not None]
    if len(rates) < 2:
        return None
    return min((rate for rate in rates if rate is not None), default=None)


def measured_pairs(report: DoctorReport) -> dict[tuple[int, int], PairRate]:
    """The copies between GPUs, by their ranks."""
    return {(p.first, p.second): p for p in report.pairs if p.transport == "cuda copy"}


def rank_names(report: DoctorReport, *ranks: int) -> str:
    """``GPU 0 and GPU 3`` (NVML's numbers), or ``rank 1`` on a CPU host."""
    names = []
    for rank in ranks:
        index = report.devices[rank].device.index
        names.append(f"rank {rank}" if index is None else f"GPU {index}")
    return " and ".join(names)
